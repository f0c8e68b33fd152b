//! The window: made and unmade by its owner, live with the agent, closed to everything else.

use crate::{at_a_desk, in_a_world_with_a_desk, running_job, wait_until_no_job_runs};
use anyhow::ensure;
use sela_desktop_tests::{Desk, Driver, Start};
use sela_tests::{Plan, wait_for};

const TITLE: &str = "Sela";
const SENTENCE: &str = "h1";
const SHARE: &str = ".switch .side:first-of-type";
const PAUSE: &str = ".switch .side[aria-pressed='false']:not(:first-of-type)";

fn web_views(desk: &Desk) -> anyhow::Result<usize> {
    let children = desk.children()?;
    Ok(children
        .iter()
        .filter(|(_, name)| name.starts_with("WebKitWebProces"))
        .count())
}

#[test]
fn closing_the_window_ends_its_web_view_and_the_tray_opens_it_again() {
    in_a_world_with_a_desk(&Plan::default(), |_world, desk| {
        desk.start(Start::Shown, &[])?;
        let shown = |times: usize| {
            wait_for("the window to show the agent", || {
                Ok((desk.log().matches("the window shows the agent").count() == times).then_some(()))
            })
        };
        for times in 1..=3 {
            let windows = desk.screen.wait_for_windows(TITLE, 1)?;
            shown(times)?;
            ensure!(web_views(desk)? == 1, "{:?}", desk.children()?);
            desk.screen.close(windows[0])?;
            desk.screen.wait_for_windows(TITLE, 0)?;
            wait_for("the web view to be gone", || Ok((web_views(desk)? == 0).then_some(())))?;
            // The tray is still the same one, and still follows.
            ensure!(desk.panel.announced() == 1);
            desk.panel.click("Open Sela")?;
        }
        desk.screen.wait_for_windows(TITLE, 1).map(drop)
    });
}

#[test]
fn the_window_and_the_tray_say_the_same_and_a_click_in_one_is_seen_in_the_other() {
    in_a_world_with_a_desk(&Plan::default(), |world, desk| {
        let lease = running_job(world)?;
        let driver = Driver::start(desk, &[])?;
        driver.wait_for_text(SENTENCE, "Earning on your card.")?;
        desk.panel.wait_for_state("Earning on your card.")?;

        driver.click(PAUSE)?;
        driver.wait_for_text(SENTENCE, "Paused until you share again.")?;
        desk.panel.wait_for_state("Paused until you share again.")?;
        wait_until_no_job_runs(world)?;
        world.wait_until_nothing_is_left(&[lease])?;

        desk.panel.click("Pause for 1 hour")?;
        let menu = desk.panel.wait("the time", |menu| {
            menu.state().starts_with("Paused until ") && menu.state().ends_with("M.")
        })?;
        // Both write the same time in the same way.
        driver.wait_for_text(SENTENCE, menu.state())?;

        driver.click(SHARE)?;
        desk.panel.wait("sharing again", |menu| {
            menu.item("Share").is_ok_and(|item| item.checked == Some(true))
        })?;

        let status = world.owner.agent.end()?;
        ensure!(status.success(), "the agent ended with {status}");
        desk.panel.wait_for_state("The agent is not running.")?;
        wait_for("the window to say that it is stale", || {
            let text = driver.text("main")?;
            Ok(text.contains("The agent stopped answering").then_some(()))
        })?;
        world.owner.start_agent()?;
        wait_for("the window to be live again", || {
            let text = driver.text("main")?;
            Ok((!text.contains("The agent stopped answering")).then_some(()))
        })
    });
}

#[test]
fn a_missing_agent_is_explained_with_what_to_type() {
    at_a_desk(|desk| {
        let driver = Driver::start(desk, &[])?;
        wait_for("the explanation", || {
            let text = driver.text("main")?;
            Ok((text.contains("The agent is not running.") && text.contains("sela agent run")).then_some(()))
        })
    });
}

#[test]
fn the_language_of_the_command_line_is_that_of_the_window() {
    at_a_desk(|desk| {
        let driver = Driver::start(desk, &["--language", "id"])?;
        wait_for("the explanation", || {
            Ok(driver.text("main")?.contains("Agen tidak berjalan.").then_some(()))
        })
    });
}

#[test]
fn the_page_may_ask_for_the_agent_and_for_nothing_else() {
    at_a_desk(|desk| {
        let driver = Driver::start(desk, &[])?;
        driver.wait_for_text("title", TITLE)?;
        let invoked = |command: &str| {
            let script = format!(
                "return await window.__TAURI_INTERNALS__.invoke('{command}', {{}}).then((value) => 'did ' + JSON.stringify(value), \
                 (error) => 'refused ' + JSON.stringify(error));"
            );
            driver
                .run(&script)
                .map(|value| value.as_str().unwrap_or_default().to_owned())
        };
        // Refused by rights, not because it failed: what is allowed is refused only by the agent that is not there.
        let allowed = invoked("agent_watch")?;
        ensure!(!allowed.contains("not allowed"), "{allowed}");
        for command in [
            "plugin:app|version",
            "plugin:window|close",
            "plugin:event|listen",
            "plugin:webview|create_webview",
        ] {
            let said = invoked(command)?;
            ensure!(
                said.starts_with("refused") && said.contains("not allowed"),
                "{command}: {said}"
            );
        }
        // The page's own policy: no other address, no code made of text.
        for script in [
            "return await fetch('http://127.0.0.1:9/').then(() => 'did', (error) => 'refused ' + error);",
            "try { return String(new Function('return 1')()); } catch (error) { return 'refused ' + error; }",
        ] {
            let said = driver.run(script)?;
            let refused = said.as_str().is_some_and(|said| said.starts_with("refused"));
            ensure!(refused, "{script}: {said}");
        }
        let violated = driver.run(
            "return await new Promise((told) => {\
               document.addEventListener('securitypolicyviolation', (event) => told(event.effectiveDirective), { once: true });\
               const image = new Image(); image.src = 'http://127.0.0.1:9/x.png'; setTimeout(() => told('none'), 5000);\
             });",
        )?;
        ensure!(violated == "img-src", "{violated}");
        Ok(())
    });
}
