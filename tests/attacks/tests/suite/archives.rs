//! What a job left, opened with its key as its tenant would.

use crate::ground::key;
use sela_protocol::sealed::{Purpose, open};
use sela_sandbox::keeper::wire::Archive;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;

/// Path → content of everything in an archive.
pub(crate) fn contents(archive: &Archive, purpose: Purpose) -> BTreeMap<String, Vec<u8>> {
    let opened = open(&key(), purpose, &fs::read(&archive.path).unwrap()).unwrap();
    let mut contents = BTreeMap::new();
    for entry in tar::Archive::new(opened.as_slice()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        contents.insert(entry.path().unwrap().display().to_string(), bytes);
    }
    contents
}

/// Whether a text is among bytes.
pub(crate) fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}
