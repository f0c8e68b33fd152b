//! Where the agent of this user listens: the one place that says so, for the agent and for all who speak to it.

use std::ffi::OsString;
use std::path::PathBuf;

/// The socket of this user's agent, by this process's environment.
pub fn socket() -> PathBuf {
    runtime_folder(|name| std::env::var_os(name), rustix::process::getuid().as_raw()).join("agent.sock")
}

/// The folder of the socket: `SELA_RUNTIME_DIR`, systemd's `RUNTIME_DIRECTORY`, `sela` under `XDG_RUNTIME_DIR`, else the one that
/// the system gives this user. What is not an absolute path is passed over.
pub fn runtime_folder(variable: impl Fn(&str) -> Option<OsString>, uid: u32) -> PathBuf {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("SELA_RUNTIME_DIR")
        .or_else(|| absolute("RUNTIME_DIRECTORY"))
        .or_else(|| absolute("XDG_RUNTIME_DIR").map(|base| base.join("sela")))
        .unwrap_or_else(|| match uid {
            0 => PathBuf::from("/run/sela"),
            uid => PathBuf::from(format!("/run/user/{uid}/sela")),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_runtime_folder_follows_the_first_variable_that_names_an_absolute_path() {
        for (variables, uid, folder) in [
            (&[][..], 1000, "/run/user/1000/sela"),
            (&[], 0, "/run/sela"),
            (&[("XDG_RUNTIME_DIR", "/x")], 1000, "/x/sela"),
            (&[("RUNTIME_DIRECTORY", "/r"), ("XDG_RUNTIME_DIR", "/x")], 1000, "/r"),
            (&[("SELA_RUNTIME_DIR", "/s"), ("RUNTIME_DIRECTORY", "/r")], 0, "/s"),
            (
                &[("SELA_RUNTIME_DIR", "not/absolute"), ("XDG_RUNTIME_DIR", "/x")],
                0,
                "/x/sela",
            ),
        ] {
            let found = runtime_folder(
                |name| {
                    let set = variables.iter().find(|(known, _)| *known == name);
                    set.map(|(_, value)| OsString::from(value))
                },
                uid,
            );
            assert_eq!(found, Path::new(folder), "{variables:?}");
        }
    }
}
