//! Reading what people write (job specs, `agent.toml`, REST bodies): an unknown field is an error that names the nearest
//! known one, where between our own programs it would be ignored.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// The fields that a document may have, and those of its nested objects and of the objects in its lists.
#[derive(Debug, Clone, Copy)]
pub struct Fields {
    /// Names at this level.
    pub names: &'static [&'static str],
    /// Which of them hold an object (or a list of objects) with fields of its own.
    pub nested: &'static [(&'static str, Fields)],
}

impl Fields {
    /// A level without nested objects.
    pub const fn flat(names: &'static [&'static str]) -> Self {
        Self { names, nested: &[] }
    }
}

/// Why a document that a person wrote was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrittenError {
    /// A field that does not exist.
    #[error("unknown field \"{path}\"{}", suggestion(.nearest.as_deref()))]
    UnknownField {
        /// Where it stands, with dots.
        path: String,
        /// The known name that is nearest, if one is near.
        nearest: Option<String>,
    },
    /// Anything else: a missing field, a wrong type, no JSON.
    #[error("{0}")]
    Malformed(String),
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest
        .map(|name| format!(": did you mean \"{name}\"?"))
        .unwrap_or_default()
}

/// Parses JSON that a person wrote.
///
/// # Errors
/// The first unknown field with the nearest known name, else what serde says is missing or malformed.
pub fn from_json<T: DeserializeOwned>(text: &str, fields: &Fields) -> Result<T, WrittenError> {
    read(value(text, fields)?)
}

/// The first half of [`from_json`]: parsed, and without unknown fields.
///
/// # Errors
/// As [`from_json`], but for missing and malformed fields.
pub(crate) fn value(text: &str, fields: &Fields) -> Result<Value, WrittenError> {
    let value: Value =
        serde_json::from_str(text).map_err(|error| WrittenError::Malformed(format!("this is not JSON: {error}")))?;
    refuse_unknown(&value, fields, "")?;
    Ok(value)
}

/// The second half of it.
///
/// # Errors
/// Missing and malformed fields.
pub(crate) fn read<T: DeserializeOwned>(value: Value) -> Result<T, WrittenError> {
    serde_json::from_value(value).map_err(|error| WrittenError::Malformed(error.to_string()))
}

/// The same for a value that is parsed already (a TOML document turned into one, say).
///
/// # Errors
/// As [`from_json`].
pub fn from_value<T: DeserializeOwned>(value: Value, fields: &Fields) -> Result<T, WrittenError> {
    refuse_unknown(&value, fields, "")?;
    read(value)
}

fn refuse_unknown(value: &Value, fields: &Fields, path: &str) -> Result<(), WrittenError> {
    match value {
        Value::Object(map) => {
            for (name, inner) in map {
                let here = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                if !fields.names.contains(&name.as_str()) {
                    return Err(WrittenError::UnknownField {
                        path: here,
                        nearest: nearest(name, fields.names),
                    });
                }
                if let Some((_, nested)) = fields.nested.iter().find(|(nested, _)| nested == name) {
                    refuse_unknown(inner, nested, &here)?;
                }
            }
            Ok(())
        }
        Value::Array(items) => items.iter().try_for_each(|item| refuse_unknown(item, fields, path)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

fn nearest(name: &str, known: &[&str]) -> Option<String> {
    known
        .iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), *candidate))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate.to_owned())
}
