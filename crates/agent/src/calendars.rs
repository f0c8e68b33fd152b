//! Fetches the calendars that the owner's schedule names, files and feeds, and keeps what was read last on the disk, so that a server which is down while the PC
//! starts opens and closes nothing either. What a text says is read by `sela-sensors`; what follows from it is the core's.

use anyhow::{Context as _, bail, ensure};
use futures_util::StreamExt as _;
use sela_core::Input;
use sela_core::schedule::calendar::Calendar;
use sela_protocol::blob::BlobId;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// How often each is read again.
const EVERY: Duration = Duration::from_secs(900);
/// How long a server may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often an address may lead to another.
const MOST_MOVES: usize = 5;
/// More than the reader takes is not fetched.
const MOST_BYTES: usize = 8 << 20;

/// Where a calendar is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CalendarSource {
    /// On this machine.
    File(PathBuf),
    /// At a server: https, or http on this machine.
    Feed(reqwest::Url),
}

/// By name.
pub(crate) type CalendarSources = BTreeMap<String, CalendarSource>;

impl CalendarSource {
    /// Reads an address as people write it.
    ///
    /// # Errors
    /// In words, where it is neither an absolute path nor an address of a server that can be trusted on the way.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if Path::new(text).is_absolute() {
            return Ok(Self::File(text.into()));
        }
        // Programs write webcal:// for "subscribe to this".
        let address = text
            .strip_prefix("webcal://")
            .map_or_else(|| text.to_owned(), |rest| format!("https://{rest}"));
        let url = reqwest::Url::parse(&address).map_err(|_| {
            format!(
                "{text:?} is no calendar; write the path of a file from / on, or an address that begins with https://"
            )
        })?;
        let here = matches!(url.host_str(), Some("127.0.0.1" | "[::1]" | "localhost"));
        match url.scheme() {
            "https" => Ok(Self::Feed(url)),
            "http" if here => Ok(Self::Feed(url)),
            _ => Err(format!(
                "{text:?} is read over https:// only: whoever is on the way could open your card"
            )),
        }
    }
}

/// The calendars that are followed; no longer when this is dropped.
#[derive(Debug)]
pub(crate) struct Calendars(Option<JoinHandle<()>>);

impl Calendars {
    /// None.
    pub(crate) const fn none() -> Self {
        Self(None)
    }

    /// Reads all of them now and again, and reports each attempt. What was read last lies in `folder`.
    ///
    /// # Errors
    /// Where TLS cannot be set up.
    pub(crate) fn follow(
        sources: CalendarSources,
        folder: PathBuf,
        report: mpsc::Sender<Input>,
    ) -> reqwest::Result<Self> {
        if sources.is_empty() {
            return Ok(Self(None));
        }
        let http = client()?;
        Ok(Self(Some(tokio::spawn(async move {
            for (name, source) in &sources {
                if let Ok(text) = tokio::fs::read_to_string(kept(&folder, source)).await
                    && let Ok(calendar) = sela_sensors::calendar::read(&text)
                    && !tell(&report, name, Ok(calendar)).await
                {
                    return;
                }
            }
            loop {
                for (name, source) in &sources {
                    let attempt = read(source, &folder, &http).await.map_err(|error| format!("{error:#}"));
                    if let Err(problem) = &attempt {
                        tracing::warn!(
                            calendar = name,
                            problem,
                            "a calendar could not be read; what was read last stays in force"
                        );
                    }
                    if !tell(&report, name, attempt).await {
                        return;
                    }
                }
                tokio::time::sleep(EVERY).await;
            }
        }))))
    }
}

impl Drop for Calendars {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// A client for calendars. Feeds move; but no answer leads from a safe way to one that is not.
fn client() -> reqwest::Result<reqwest::Client> {
    let follow = reqwest::redirect::Policy::custom(|attempt| {
        let began_safe = attempt.previous().first().is_none_or(|first| first.scheme() == "https");
        if attempt.previous().len() > MOST_MOVES || began_safe && attempt.url().scheme() != "https" {
            attempt.stop()
        } else {
            attempt.follow()
        }
    });
    reqwest::Client::builder()
        .user_agent(concat!("sela/", env!("CARGO_PKG_VERSION")))
        .redirect(follow)
        .build()
}

/// Whether anybody still listens.
async fn tell(report: &mpsc::Sender<Input>, name: &str, attempt: Result<Calendar, String>) -> bool {
    let name = name.to_owned();
    report.send(Input::Calendar { name, attempt }).await.is_ok()
}

async fn read(source: &CalendarSource, folder: &Path, http: &reqwest::Client) -> anyhow::Result<Calendar> {
    let text = match source {
        CalendarSource::File(path) => {
            let length = tokio::fs::metadata(path)
                .await
                .with_context(|| format!("{} cannot be read", path.display()))?
                .len();
            ensure!(length <= MOST_BYTES as u64, "{} is larger than 8 MiB", path.display());
            let bytes = tokio::fs::read(path)
                .await
                .with_context(|| format!("{} cannot be read", path.display()))?;
            String::from_utf8_lossy(&bytes).into_owned()
        }
        CalendarSource::Feed(url) => fetch(url, http).await?,
    };
    let calendar = sela_sensors::calendar::read(&text)?;
    // What cannot be kept is in force all the same until the agent starts again.
    let keep = async {
        tokio::fs::create_dir_all(folder).await?;
        let (file, new) = (kept(folder, source), kept(folder, source).with_extension("new"));
        tokio::fs::write(&new, &text).await?;
        tokio::fs::rename(&new, &file).await
    };
    if let Err(error) = keep.await {
        tracing::warn!(%error, "what was read of a calendar cannot be kept for the next start");
    }
    Ok(calendar)
}

/// An address often is a secret: no error repeats it.
async fn fetch(url: &reqwest::Url, http: &reqwest::Client) -> anyhow::Result<String> {
    let whole = async {
        let answer = http
            .get(url.clone())
            .send()
            .await
            .map_err(reqwest::Error::without_url)
            .context("the server does not answer")?;
        let status = answer.status();
        if !status.is_success() {
            bail!("the server says {status}; look whether the address is still right");
        }
        let mut bytes = Vec::new();
        let mut pieces = answer.bytes_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece
                .map_err(reqwest::Error::without_url)
                .context("the server stopped in the middle")?;
            ensure!(
                bytes.len() + piece.len() <= MOST_BYTES,
                "the server sends more than 8 MiB"
            );
            bytes.extend_from_slice(&piece);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    match tokio::time::timeout(PATIENCE, whole).await {
        Ok(text) => text,
        Err(_) => bail!("the server takes longer than {} s", PATIENCE.as_secs()),
    }
}

/// Where a calendar's text lies: by what its address hashes to, since an address may be a secret and hold any letter.
fn kept(folder: &Path, source: &CalendarSource) -> PathBuf {
    let address = match source {
        CalendarSource::File(path) => path.display().to_string(),
        CalendarSource::Feed(url) => url.to_string(),
    };
    let hash = BlobId::of(address.as_bytes()).to_string();
    folder.join(hash.replace(':', "-")).with_extension("ics")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const GOOD: &str =
        "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nUID:1\r\nDTSTART:20260302T090000Z\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n";

    /// A server that gives one answer after the other.
    async fn server(answers: Vec<String>) -> reqwest::Url {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            for answer in answers {
                let (mut peer, _) = listener.accept().await.expect("a peer");
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    asked.push(peer.read_u8().await.expect("a request"));
                }
                peer.write_all(answer.as_bytes()).await.expect("answers");
            }
        });
        format!("http://{address}/k7f3q.ics").parse().expect("an address")
    }

    fn answer(status: &str, body: &str) -> String {
        format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    }

    #[tokio::test]
    async fn a_feed_that_turns_into_a_login_page_is_told_and_what_it_said_last_outlives_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let login = answer("200 OK", "<!DOCTYPE html><html>Log in</html>");
        let url = server(vec![answer("200 OK", GOOD), login, answer("403 Forbidden", "")]).await;
        let source = CalendarSource::Feed(url);
        crate::market::install_tls();
        let http = client().expect("TLS");
        let calendar = read(&source, folder.path(), &http).await.expect("a calendar");
        assert_eq!(calendar.events.len(), 1);
        for words in ["web page", "403"] {
            let error = read(&source, folder.path(), &http).await.expect_err(words);
            let error = format!("{error:#}");
            assert!(error.contains(words) && !error.contains("k7f3q"), "{error}");
        }
        // The agent starts again while the server is gone.
        let (report, mut reports) = mpsc::channel(8);
        let sources = CalendarSources::from([("work".to_owned(), source)]);
        let _calendars = Calendars::follow(sources, folder.path().to_owned(), report).expect("TLS");
        let attempts = [reports.recv().await, reports.recv().await];
        let [
            Some(Input::Calendar { attempt: Ok(kept), .. }),
            Some(Input::Calendar { attempt: Err(_), .. }),
        ] = attempts
        else {
            panic!("{attempts:?}")
        };
        assert_eq!(kept, calendar);
    }

    #[tokio::test]
    async fn a_file_is_read_and_one_that_is_gone_says_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mine.ics");
        let source = CalendarSource::parse(&path.display().to_string()).expect("a path");
        crate::market::install_tls();
        let http = client().expect("TLS");
        let error = read(&source, &folder.path().join("kept"), &http)
            .await
            .expect_err("no file");
        assert!(format!("{error:#}").contains("mine.ics cannot be read"), "{error:#}");
        std::fs::write(&path, GOOD).expect("writes");
        assert!(read(&source, &folder.path().join("kept"), &http).await.is_ok());
    }

    #[test]
    fn an_address_is_a_path_or_an_address_that_nobody_on_the_way_can_change() {
        for good in [
            "/home/me/work.ics",
            "https://example.org/a.ics",
            "webcal://example.org/a.ics",
            "http://127.0.0.1:8000/a",
        ] {
            CalendarSource::parse(good).expect(good);
        }
        for bad in ["work.ics", "http://example.org/a.ics", "ftp://example.org/a.ics", ""] {
            CalendarSource::parse(bad).expect_err(bad);
        }
    }
}
