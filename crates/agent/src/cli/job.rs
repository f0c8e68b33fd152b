//! `sela job watch|cancel|output|list`: what becomes of a tenant's jobs.

use super::end::{CliError, Outcome};
use super::exchange::Exchange;
use super::jobs::{end_words, phase_word};
use super::output::{Output, Tone, local, span};
use futures_util::StreamExt as _;
use reqwest::{Method, Response};
use sela_protocol::id::JobId;
use sela_protocol::local::Page;
use sela_protocol::sealed::{Opening, Purpose};
use sela_protocol::tenant::{JobKey, JobState, JobView, LeaseView};
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

/// How long after a broken stream it is asked for again, and how often in a row without an answer.
const PAUSE: Duration = Duration::from_secs(1);
const TRIES: u32 = 60;

/// Follows a job until it ends.
///
/// # Errors
/// A job that failed or was cancelled, or an exchange that stays away.
pub(crate) async fn watch(exchange: &Exchange, job: JobId, output: &mut Output) -> Outcome {
    let mut last: Option<JobView> = None;
    let mut tries = 0;
    loop {
        let followed = follow(exchange, job, &mut last, output).await;
        match followed {
            Ok(()) => tries = 0,
            Err(CliError::Unavailable(_)) if tries < TRIES => tries += 1,
            Err(error) => return Err(error),
        }
        match last.as_ref().map(|view| &view.state) {
            Some(JobState::Done) => return Ok(()),
            Some(JobState::Failed { .. } | JobState::Cancelled) => return Err(CliError::Said),
            Some(JobState::Queued { .. } | JobState::Leased { .. } | JobState::Unknown) | None => {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// One stream of events, until it ends.
async fn follow(exchange: &Exchange, job: JobId, last: &mut Option<JobView>, output: &Output) -> Result<(), CliError> {
    let request = exchange.request(Method::GET, &format!("/v1/jobs/{job}/events"));
    let response = exchange.send(request).await?;
    let mut chunks = response.bytes_stream();
    let mut waiting = Vec::new();
    while let Some(chunk) = chunks.next().await {
        waiting.extend_from_slice(&chunk.map_err(|error| exchange.not_reached(&error))?);
        while let Some(end) = waiting.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = waiting.drain(..=end).collect();
            let Some(data) = line.strip_prefix(b"data:") else {
                continue;
            };
            let view: JobView = serde_json::from_slice(data)
                .map_err(|error| CliError::Failed(format!("the exchange sent what does not read: {error}")))?;
            tell(&view, last.as_ref(), output)?;
            *last = Some(view);
        }
    }
    Ok(())
}

fn tell(view: &JobView, last: Option<&JobView>, output: &Output) -> Outcome {
    if output.is_json() {
        return Ok(output.json_line(view)?);
    }
    if last.is_none_or(|last| last.state != view.state) {
        output.line(format!("{}  {}", view.job, state_line(view, output)))?;
    }
    Ok(())
}

fn state_line(view: &JobView, output: &Output) -> String {
    let billed = || view.leases.iter().map(|lease| lease.billed_ms.0).sum();
    let paid = format!(
        "paid {} for {}",
        view.paid,
        span(sela_protocol::units::Millis(billed()))
    );
    match &view.state {
        JobState::Queued { why } => format!("waits: {why}"),
        JobState::Leased { phase } => {
            let card = view
                .leases
                .last()
                .map(|lease: &LeaseView| format!(" on {}", lease.card));
            format!("{}{}", phase_word(*phase), card.unwrap_or_default())
        }
        JobState::Done => format!("{}; {paid}", output.tone(Tone::Earning, "done")),
        JobState::Failed { cause, message } => {
            let why = if message.is_empty() {
                end_words(cause)
            } else {
                message.clone()
            };
            format!("{}: {why}; {paid}", output.tone(Tone::Alarm, "failed"))
        }
        JobState::Cancelled => format!("cancelled; {paid}"),
        JobState::Unknown => "in a state that this version does not know".to_owned(),
    }
}

/// Cancels a job.
///
/// # Errors
/// Where the exchange refuses or is not reached.
pub(crate) async fn cancel(exchange: &Exchange, job: JobId, output: &mut Output) -> Outcome {
    let request = exchange.request(Method::POST, &format!("/v1/jobs/{job}/cancel"));
    let view: JobView = exchange.ask(request).await?;
    if output.is_json() {
        return Ok(output.document(&view)?);
    }
    Ok(output.line(format!("{job}  {}", state_line(&view, output)))?)
}

/// All jobs, newest first.
///
/// # Errors
/// As [`cancel`].
pub(crate) async fn list(exchange: &Exchange, output: &mut Output) -> Outcome {
    let mut all = Vec::new();
    let mut page: Page<JobView> = exchange.get("/v1/jobs").await?;
    if page.items.is_empty() && !output.is_json() {
        return Ok(output.line("No job was submitted yet; `sela job submit --help` shows how.")?);
    }
    loop {
        if output.is_json() {
            all.append(&mut page.items);
        }
        for view in &page.items {
            output.line(format!(
                "{}  {}  {}  {}",
                local(view.submitted_utc_ms),
                view.job,
                view.spec.name.as_deref().unwrap_or("(no name)"),
                state_line(view, output)
            ))?;
        }
        let Some(cursor) = page.next else {
            break;
        };
        page = exchange.get(&format!("/v1/jobs?cursor={cursor}")).await?;
    }
    if output.is_json() {
        output.document(&all)?;
    }
    Ok(())
}

/// Fetches what a job left in `/out`, opens it with the job's key and unpacks it: plain files and folders only, none outside of `folder`.
///
/// # Errors
/// A folder that holds something, an archive that does not open or is not as it should be, or an exchange that refuses or is not reached.
pub(crate) async fn output(exchange: &Exchange, job: JobId, folder: &Path, output: &mut Output) -> Outcome {
    let shown = folder.display();
    let is_empty = std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
    if !is_empty || (folder.exists() && !folder.is_dir()) {
        return Err(CliError::Usage(format!("{shown} is not an empty folder; name another")));
    }
    let request = exchange.request(Method::GET, &format!("/v1/jobs/{job}/output"));
    let response = exchange.send(request).await?;
    let sealed = spool(exchange, response).await?;
    let key: JobKey = exchange.get(&format!("/v1/jobs/{job}/key")).await?;
    let archive = open(sealed, &key)?;
    std::fs::create_dir_all(folder).map_err(|error| CliError::Failed(format!("{shown} cannot be made: {error}")))?;
    let files = unpack(archive, folder)?;
    if output.is_json() {
        return Ok(output.document(&serde_json::json!({"folder": folder, "files": files}))?);
    }
    output.line(format!("{} files are in {shown}.", files.len()))?;
    for file in files {
        output.line(format!("  {file}"))?;
    }
    Ok(())
}

async fn spool(exchange: &Exchange, response: Response) -> Result<std::fs::File, CliError> {
    let mut file = tempfile::tempfile()?;
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        file.write_all(&chunk.map_err(|error| exchange.not_reached(&error))?)?;
    }
    std::io::Seek::rewind(&mut file)?;
    Ok(file)
}

/// All of it, before a file is made of any: what was cut short leaves nothing in the folder.
fn open(sealed: std::fs::File, key: &JobKey) -> Result<std::fs::File, CliError> {
    let mut opened = tempfile::tempfile()?;
    Opening::begin(std::io::BufReader::new(sealed), &key.result_key, Purpose::Output)
        .and_then(|mut opening| std::io::copy(&mut opening, &mut opened))
        .map_err(|error| CliError::Failed(format!("what the job left does not open: {error}")))?;
    std::io::Seek::rewind(&mut opened)?;
    Ok(opened)
}

/// The archive was made on a stranger's machine: links, devices and paths that lead elsewhere are left out.
fn unpack(archive: std::fs::File, folder: &Path) -> Result<Vec<String>, CliError> {
    let broken = |error: std::io::Error| CliError::Failed(format!("the archive does not read: {error}"));
    let mut archive = tar::Archive::new(archive);
    archive.set_preserve_permissions(false);
    archive.set_preserve_mtime(false);
    let mut files = Vec::new();
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let kind = entry.header().entry_type();
        if !(kind.is_file() || kind.is_dir()) {
            continue;
        }
        let path = entry.path().map_err(broken)?.display().to_string();
        let inside = entry.unpack_in(folder).map_err(broken)?;
        if inside && kind.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_key_sealed_or_what_was_cut_short_is_not_opened() {
        let key = |byte| JobKey {
            result_key: sela_protocol::confidential::SealingKey::from_bytes([byte; 32]),
        };
        let sealed = sela_protocol::sealed::seal(&key(1).result_key, Purpose::Output, &[7; 19], b"an archive");
        let sealed = sealed.expect("sealed");
        let file = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().expect("a file");
            file.write_all(bytes).expect("written");
            std::io::Seek::rewind(&mut file).expect("rewinds");
            file
        };
        let mut text = String::new();
        let mut opened = open(file(&sealed), &key(1)).expect("opens");
        std::io::Read::read_to_string(&mut opened, &mut text).expect("reads");
        assert_eq!(text, "an archive");
        for (sealed, key) in [
            (&sealed[..], key(2)),
            (&sealed[..sealed.len() - 1], key(1)),
            (b"an archive", key(1)),
        ] {
            let error = open(file(sealed), &key).expect_err("does not open").to_string();
            assert!(error.contains("does not open"), "{error}");
        }
    }

    #[test]
    fn what_would_leave_the_folder_or_is_no_plain_file_is_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let inside = folder.path().join("results");
        std::fs::create_dir(&inside).expect("made");
        let mut builder = tar::Builder::new(tempfile::tempfile().expect("a file"));
        let mut add = |path: &str, kind: tar::EntryType, link: &str| {
            let mut header = tar::Header::new_gnu();
            let name = &mut header.as_old_mut().name;
            name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(kind);
            header.set_size(if kind.is_file() { 1 } else { 0 });
            header.set_mode(0o4755);
            if !link.is_empty() {
                header.set_link_name(link).expect("a link");
            }
            header.set_cksum();
            builder
                .append(&header, &b"x"[..usize::from(kind.is_file())])
                .expect("added");
        };
        add("answers/1.txt", tar::EntryType::Regular, "");
        add("../outside.txt", tar::EntryType::Regular, "");
        add("link", tar::EntryType::Symlink, "/etc/passwd");
        add("/absolute.txt", tar::EntryType::Regular, "");
        let mut file = builder.into_inner().expect("written");
        std::io::Seek::rewind(&mut file).expect("rewinds");
        let mut files = unpack(file, &inside).expect("unpacks");
        files.sort();
        assert_eq!(files, ["/absolute.txt", "answers/1.txt"]);
        assert!(
            inside.join("absolute.txt").is_file(),
            "an absolute path is taken from the folder"
        );
        assert!(!folder.path().join("outside.txt").exists() && !inside.join("link").exists());
    }
}
