//! Starts other programs for the verbs: shows what is started, gives it no standard input, says in words when it failed.
//! What the programs are for is not known here.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;

use anyhow::{Context, bail};

use crate::places::Places;

/// Cargo, in the root of the repository. It is given none of the variables that `cargo run` set for this program, so that what it builds
/// has the same fingerprints as when a person types the command.
pub(crate) fn cargo<I, S>(places: &Places, arguments: I) -> Command
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(&places.root).args(arguments);
    // Where a checkout is compiled once and thrown away, what is kept for compiling it again costs time and disk for nothing.
    if std::env::var_os("CI").is_some() {
        command.env("CARGO_INCREMENTAL", "0");
    }
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("CARGO_PKG_")
            || name_text.starts_with("CARGO_MANIFEST_")
            || name_text == "CARGO_BIN_NAME"
        {
            command.env_remove(&name);
        }
    }
    command
}

/// The command as a person would type it, for messages.
pub(crate) fn shown(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let name = program
        .file_name()
        .unwrap_or(program.as_os_str())
        .to_string_lossy()
        .into_owned();
    command
        .get_args()
        .map(OsStr::to_string_lossy)
        .fold(name, |line, argument| format!("{line} {argument}"))
}

/// Shows the command, runs it to its end with our terminal as its output.
///
/// # Errors
/// If it cannot be started, or ends with anything but 0.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    println!("$ {}", shown(command));
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs the command to its end and gives what it wrote to standard output.
///
/// # Errors
/// If it cannot be started, ends with anything but 0 (its standard error is then in the message), or writes what is not UTF-8.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !output.status.success() {
        bail!(
            "`{}` ended with {}: {}",
            shown(command),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{}` wrote what is not UTF-8", shown(command)))
}

/// Shows the command and runs it; each line of its standard output and standard error is shown and handed to `see`.
///
/// # Errors
/// If it cannot be started. That it failed is in the status, since what it wrote says more.
pub(crate) fn watch(command: &mut Command, mut see: impl FnMut(&str)) -> anyhow::Result<ExitStatus> {
    println!("$ {}", shown(command));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    let (sender, lines) = mpsc::channel();
    let readers = [
        child.stdout.take().map(|stream| forward(stream, sender.clone())),
        child.stderr.take().map(|stream| forward(stream, sender)),
    ];
    let mut terminal = std::io::stdout().lock();
    for line in lines {
        // A terminal that went away must not end the tests: their result still counts.
        let _ = writeln!(terminal, "{line}");
        see(&line);
    }
    drop(terminal);
    for reader in readers.into_iter().flatten() {
        let _ = reader.join();
    }
    child
        .wait()
        .with_context(|| format!("cannot wait for `{}`", shown(command)))
}

/// Sends each line of `stream` until it ends. Bytes that are not UTF-8 are replaced: programs under test may write anything.
fn forward(stream: impl Read + Send + 'static, sender: mpsc::Sender<String>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut bytes = Vec::new();
        while matches!(reader.read_until(b'\n', &mut bytes), Ok(count) if count > 0) {
            let line = String::from_utf8_lossy(&bytes)
                .trim_end_matches(['\n', '\r'])
                .to_owned();
            bytes.clear();
            if sender.send(line).is_err() {
                return;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn watching_sees_both_streams_and_the_status() {
        let mut lines = Vec::new();
        let status = watch(
            Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]),
            |line| lines.push(line.to_owned()),
        )
        .unwrap();
        lines.sort();
        assert_eq!(lines, ["err", "out"]);
        assert_eq!(status.code(), Some(3));
    }

    #[cfg(unix)]
    #[test]
    fn a_command_that_fails_is_named_with_what_it_said() {
        let error = output(Command::new("sh").args(["-c", "echo no space left >&2; exit 1"]))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("`sh -c"), "{error}");
        assert!(error.ends_with("no space left"), "{error}");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = run(&mut Command::new("no-such-program-of-sela"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("no-such-program-of-sela"), "{error}");
    }
}
