//! Our programs' command lines, typed: what is asked with `--json` is read as the protocol's own words.

use std::process::Command;

use anyhow::Context;
use serde::de::DeserializeOwned;

use crate::commands;

/// Runs the command, which must end with 0, and reads the one document that it prints.
///
/// # Errors
/// With what the program said, or with what it printed if that is not what the protocol says.
pub(crate) fn ask<T: DeserializeOwned>(command: &mut Command) -> anyhow::Result<T> {
    let text = commands::output(command)?;
    serde_json::from_str(&text).with_context(|| {
        format!(
            "`{}` printed what the protocol does not know: {text}",
            commands::shown(command)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_and_what_does_not_read_is_shown() {
        let print = |text: &str| ask::<Vec<u32>>(Command::new("printf").args(["%s", text]));
        assert_eq!(print("[1, 2]\n").unwrap(), [1, 2]);
        let error = print("[1, \"two\"]").unwrap_err().to_string();
        assert!(
            error.contains("printed what the protocol does not know: [1, \"two\"]"),
            "{error}"
        );
    }
}
