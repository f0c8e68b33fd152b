//! Target `documents`: what a registry or an archive says of an image before any layer is read: index, manifest, config, and the
//! names of images and of a tar's entries.

use crate::memory;
use crate::tape::Tape;
use sela_sandbox::image::manifest::{
    Compression, Config, Descriptor, Document, Manifest, choose_manifest, machine_architecture,
};
use sela_sandbox::image::{EntryPath, RegistryReference};
use serde_json::{Value, json};

/// Reads an input as one of the documents.
///
/// # Panics
/// If something does not hold.
pub fn hold(input: &[u8]) {
    let mut tape = Tape::new(input);
    let which = tape.choice(4);
    let layers = usize::from(tape.choice(4));
    let text = tape.rest();
    // A document in memory is a small multiple of its text; its text is limited by who fetches it.
    memory::at_most((64 << 10) + text.len() * 64, || match which {
        0 => document(text),
        1 => config(text, layers),
        2 => reference(text),
        _ => entry_path(text),
    });
}

fn document(text: &[u8]) {
    match Document::parse(text) {
        Ok(Document::Index(index)) => {
            assert_eq!(read_again(&index_json(&index)), Document::Index(index.clone()));
            match choose_manifest(&index) {
                Ok(chosen) => assert!(index.contains(chosen)),
                Err(error) => says_something(&error, text.len()),
            }
        }
        Ok(Document::Manifest(manifest)) => {
            assert!((1..=127).contains(&manifest.layers.len()), "overlayfs stacks no more");
            assert_eq!(read_again(&manifest_json(&manifest)), Document::Manifest(manifest));
        }
        Err(error) => says_something(&error, text.len()),
    }
}

fn read_again(value: &Value) -> Document {
    Document::parse(value.to_string().as_bytes()).expect("what was read is written and read again")
}

fn descriptor_json(descriptor: &Descriptor) -> Value {
    let mut value = json!({
        "mediaType": descriptor.media_type, "digest": descriptor.digest.to_string(), "size": descriptor.size,
    });
    if let Some(platform) = &descriptor.platform {
        value["platform"] = json!({ "architecture": platform.architecture, "os": platform.os });
    }
    value
}

fn index_json(index: &[Descriptor]) -> Value {
    let manifests: Vec<Value> = index.iter().map(descriptor_json).collect();
    json!({ "schemaVersion": 2, "manifests": manifests })
}

fn manifest_json(manifest: &Manifest) -> Value {
    let layers: Vec<Value> = manifest
        .layers
        .iter()
        .map(|layer| {
            let media_type = match layer.compression {
                Compression::Plain => "application/vnd.oci.image.layer.v1.tar",
                Compression::Gzip => "application/vnd.docker.image.rootfs.diff.tar.gzip",
                Compression::Zstd => "application/vnd.oci.image.layer.v1.tar+zstd",
            };
            json!({ "mediaType": media_type, "digest": layer.digest.to_string(), "size": layer.size })
        })
        .collect();
    json!({ "schemaVersion": 2, "config": descriptor_json(&manifest.config), "layers": layers })
}

fn config(text: &[u8], layers: usize) {
    let config = match Config::parse(text, layers) {
        Ok(config) => config,
        Err(error) => return says_something(&error, text.len()),
    };
    assert_eq!(config.diff_ids.len(), layers);
    assert!(config.working_directory.starts_with('/'));
    let words = config.entrypoint.iter().chain(&config.command);
    let variables = config.environment.iter().flat_map(|(name, value)| [name, value]);
    let mut words = words.chain(variables).chain([&config.working_directory]);
    assert!(words.all(|word| !word.contains('\0')), "exec would cut it");
    assert!(
        config
            .environment
            .iter()
            .all(|(name, _)| !name.is_empty() && !name.contains('='))
    );
    let env: Vec<String> = config
        .environment
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let diff_ids: Vec<String> = config.diff_ids.iter().map(ToString::to_string).collect();
    let again = json!({
        "architecture": machine_architecture(), "os": "linux",
        "config": {
            "User": config.user, "Env": env, "Entrypoint": config.entrypoint, "Cmd": config.command,
            "WorkingDir": config.working_directory,
        },
        "rootfs": { "diff_ids": diff_ids },
    });
    let again = Config::parse(again.to_string().as_bytes(), layers).expect("what was read is written and read again");
    assert_eq!(again, config);
}

fn reference(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    match RegistryReference::parse(text) {
        Ok(reference) => {
            let again = RegistryReference::parse(&reference.to_string()).expect("what was read reads again");
            assert_eq!(again, reference);
            // It is put into a URL: nothing in it may end the host or the path.
            let unsafe_sign = |sign: char| sign.is_whitespace() || sign.is_control() || "?#\\@%".contains(sign);
            assert!(!reference.repository().contains(unsafe_sign), "{reference}");
            assert!(!reference.authority().contains(unsafe_sign) && !reference.authority().contains('/'));
            assert!(
                !reference
                    .repository()
                    .split('/')
                    .any(|part| matches!(part, "" | "." | ".."))
            );
        }
        Err(error) => says_something(&error, text.len()),
    }
}

fn entry_path(text: &[u8]) {
    let mut buffer = Vec::new();
    let Ok(EntryPath::Below { parent, name }) = EntryPath::parse(text, &mut buffer) else {
        return;
    };
    let parts = || {
        parent
            .split(|byte| *byte == b'/')
            .filter(|_| !parent.is_empty())
            .chain([name])
    };
    for part in parts() {
        assert!(!part.is_empty() && part.len() <= 255 && part != b"." && part != b"..");
        assert!(!part.contains(&0) && !part.contains(&b'/'));
    }
    let whole = parts().collect::<Vec<_>>().join(&b'/');
    let mut again = Vec::new();
    let again = EntryPath::parse(&whole, &mut again).expect("a normal form is read again");
    assert_eq!(again, EntryPath::Below { parent, name });
}

/// An error is read by people: it says something, and repeats no more than the input.
fn says_something(error: &impl ToString, input: usize) {
    let text = error.to_string();
    assert!(
        !text.is_empty() && text.len() <= 4_096 + input * 16,
        "{} bytes of error",
        text.len()
    );
}

/// Words that inputs are put together from.
pub fn seeds() -> Vec<Vec<u8>> {
    let digest = format!("sha256:{}", "5".repeat(64));
    let descriptor = |media_type: &str| json!({ "mediaType": media_type, "digest": digest, "size": 1234 });
    let for_platform = |os: &str, architecture: &str| {
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json");
        entry["platform"] = json!({ "os": os, "architecture": architecture });
        entry
    };
    let kinds = [
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.v1.tar+gzip",
        "application/vnd.oci.image.layer.v1.tar+zstd",
        "application/vnd.docker.image.rootfs.diff.tar.gzip",
    ];
    let documents = [
        json!({ "schemaVersion": 2, "manifests": [for_platform("linux", "amd64"), for_platform("linux", "arm64"),
            for_platform("unknown", "unknown")] }),
        json!({ "schemaVersion": 2, "manifests": [descriptor("application/vnd.oci.image.manifest.v1+json")] }),
        json!({ "schemaVersion": 2, "config": descriptor("application/vnd.oci.image.config.v1+json"),
            "layers": kinds.map(descriptor) }),
    ];
    let config = |layers: usize| {
        json!({
            "architecture": machine_architecture(), "os": "linux",
            "config": { "Env": ["PATH=/bin", "A=b=c"], "Entrypoint": ["/run"], "Cmd": ["-c", "exit"], "User": "1:2",
                "WorkingDir": "/work" },
            "rootfs": { "type": "layers", "diff_ids": vec![digest.clone(); layers] },
        })
    };
    let references = [
        format!("registry.example:5000/a/b-c@{digest}"),
        format!("[::1]:5000/a@{digest}"),
        format!("localhost/a__b@{digest}"),
    ];
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    let mut add = |which: u8, layers: u8, text: String| seeds.push([&[which, layers], text.as_bytes()].concat());
    documents.iter().for_each(|value| add(0, 0, value.to_string()));
    (0..3).for_each(|layers| add(1, layers, config(usize::from(layers)).to_string()));
    references.into_iter().for_each(|text| add(2, 0, text));
    ["./a/b//c/", "a/../b", "a/.wh..wh..opq"]
        .iter()
        .for_each(|path| add(3, 0, (*path).to_owned()));
    seeds
}
