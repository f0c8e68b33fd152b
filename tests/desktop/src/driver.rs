//! The window by WebDriver: WebKit's own driver starts the program and speaks to its page. Clicks are given to the page, as a
//! mouse would; nothing is put into the page but questions.

use crate::Desk;
use anyhow::{Context, bail};
use sela_tests::{Part, wait_for};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// How the protocol calls an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A window that is driven. Ends with its program.
#[derive(Debug)]
pub struct Driver {
    driver: Part,
    base: String,
    session: String,
}

impl Driver {
    /// Starts the shell with these words under the driver, and waits for its page.
    ///
    /// # Errors
    /// Where the driver or the shell does not come up; `cargo xtask setup` installs the driver.
    pub fn start(desk: &Desk, words: &[&str]) -> anyhow::Result<Self> {
        // Free a moment ago; the driver takes no port of its own choice.
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut driver = Part::new("driver", desk.folder().join("logs/driver.log"));
        let mut command = Command::new("WebKitWebDriver");
        command.args(["--host=127.0.0.1", &format!("--port={port}")]);
        desk.surround(&mut command);
        command.env("TAURI_WEBVIEW_AUTOMATION", "true");
        driver
            .start(&mut command)
            .context("install webkit2gtk-driver, or run `cargo xtask setup`")?;
        let base = format!("http://127.0.0.1:{port}");
        wait_for("the driver", || {
            driver.is_up()?;
            Ok(ask("GET", &format!("{base}/status"), None).ok().map(drop))
        })?;
        let options = json!({ "binary": sela_tests::program("sela-desktop")?, "args": words });
        let wanted = json!({ "capabilities": { "alwaysMatch": { "webkitgtk:browserOptions": options } } });
        let answer = ask("POST", &format!("{base}/session"), Some(&wanted))?;
        let session = answer["sessionId"].as_str().context("no session")?.to_owned();
        Ok(Self { driver, base, session })
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        ask(method, &format!("{}/session/{}{path}", self.base, self.session), body)
    }

    /// Runs a function body in the page and gives what it returns, or what its promise comes to.
    ///
    /// # Errors
    /// Where it throws or does not end.
    pub fn run(&self, script: &str) -> anyhow::Result<Value> {
        let script = format!(
            "const done = arguments[arguments.length - 1];\
             (async () => {{ {script} }})().then((value) => done({{ value }}), (error) => done({{ error: String(error) }}));"
        );
        let answer = self.ask("POST", "/execute/async", Some(&json!({ "script": script, "args": [] })))?;
        match answer.get("error") {
            Some(error) => bail!("the page says {error}"),
            None => Ok(answer["value"].clone()),
        }
    }

    /// What the first element of this selector says.
    ///
    /// # Errors
    /// Where there is none.
    pub fn text(&self, selector: &str) -> anyhow::Result<String> {
        let script = format!(
            "return document.querySelector({})?.textContent?.trim() ?? null;",
            json!(selector)
        );
        let text = self.run(&script)?;
        Ok(text
            .as_str()
            .with_context(|| format!("nothing is {selector}"))?
            .to_owned())
    }

    /// Waits until the first element of this selector says this.
    ///
    /// # Errors
    /// Where that takes too long: with what it said last.
    pub fn wait_for_text(&self, selector: &str, wanted: &str) -> anyhow::Result<()> {
        let mut last = None;
        wait_for(&format!("{selector} to say \"{wanted}\""), || {
            last = self.text(selector).ok();
            Ok((last.as_deref() == Some(wanted)).then_some(()))
        })
        .with_context(|| format!("it said last: {last:?}"))
    }

    /// Clicks the first element of this selector as a mouse does.
    ///
    /// # Errors
    /// Where there is none, or it cannot be clicked.
    pub fn click(&self, selector: &str) -> anyhow::Result<()> {
        let found = self.ask(
            "POST",
            "/element",
            Some(&json!({ "using": "css selector", "value": selector })),
        )?;
        let element = found[ELEMENT]
            .as_str()
            .with_context(|| format!("nothing is {selector}"))?;
        self.ask("POST", &format!("/element/{element}/click"), Some(&json!({})))
            .map(drop)
    }

    /// A picture of the page, after what was changed has been drawn.
    ///
    /// # Errors
    /// Where the driver takes none.
    pub fn picture(&self, file: &Path) -> anyhow::Result<()> {
        self.run("await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));")?;
        let picture = self.ask("GET", "/screenshot", None)?;
        let bytes = decode(picture.as_str().context("no picture")?).context("a picture that does not read")?;
        Ok(std::fs::write(file, bytes)?)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The program goes with its session; the driver itself with its part.
        let _ = self.ask("DELETE", "", None);
        let _ = self.driver.kill();
    }
}

fn ask(method: &str, address: &str, body: Option<&Value>) -> anyhow::Result<Value> {
    let agent = ureq::Agent::new_with_config(ureq::config::Config::builder().http_status_as_error(false).build());
    let mut response = match (method, body) {
        ("GET", _) => agent.get(address).call()?,
        ("DELETE", _) => agent.delete(address).call()?,
        (_, Some(body)) => agent.post(address).send_json(body)?,
        (_, None) => agent.post(address).send_json(json!({}))?,
    };
    let answer: Value = response.body_mut().with_config().limit(64 << 20).read_json()?;
    if !response.status().is_success() {
        bail!("{method} {address}: {}", answer["value"]);
    }
    Ok(answer["value"].clone())
}

/// RFC 4648 §4.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for four in text.trim_end_matches('=').as_bytes().chunks(4) {
        let mut bits = 0_u32;
        for sign in four {
            let value = match sign {
                b'A'..=b'Z' => sign - b'A',
                b'a'..=b'z' => sign - b'a' + 26,
                b'0'..=b'9' => sign - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        bits <<= 6 * (4 - four.len());
        bytes.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_every_length_is_read() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zm8=", b"fo"),
            ("Zm9v", b"foo"),
            ("Zm9vYg==", b"foob"),
        ] {
            assert_eq!(decode(text).as_deref(), Some(bytes), "{text}");
        }
        assert_eq!(decode("!!!!"), None);
    }
}
