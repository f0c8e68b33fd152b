//! Pictures for the documents: the real window and the tray's menu in a real panel. No test: it runs only when asked for,
//! `SELA_PICTURES=docs/images cargo nextest run -p sela-desktop-tests --run-ignored only`, with openbox and xfce4-panel installed.

use crate::{in_a_world_with_a_desk, running_job};
use anyhow::Context;
use sela_desktop_tests::{Desk, Driver};
use sela_tests::{Part, Plan, run};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// A panel at the foot of the screen with nothing but trays, 24 pixels high.
const PANEL: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<channel name="xfce4-panel" version="1.0">
  <property name="configver" type="int" value="2"/>
  <property name="panels" type="array">
    <value type="int" value="1"/>
    <property name="dark-mode" type="bool" value="true"/>
    <property name="panel-1" type="empty">
      <property name="position" type="string" value="p=8;x=640;y=788"/>
      <property name="length" type="uint" value="100"/>
      <property name="size" type="uint" value="24"/>
      <property name="icon-size" type="uint" value="22"/>
      <property name="position-locked" type="bool" value="true"/>
      <property name="plugin-ids" type="array"><value type="int" value="1"/></property>
    </property>
  </property>
  <property name="plugins" type="empty">
    <property name="plugin-1" type="string" value="systray">
      <property name="square-icons" type="bool" value="true"/>
    </property>
  </property>
</channel>
"#;

fn folder() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os("SELA_PICTURES").context("say where to put them in SELA_PICTURES")?;
    // Tests run in their package's folder; the person who asks sits in the root.
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = root.join(named);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Long enough for a panel to have drawn what it was told. Nothing is concluded from it.
fn let_it_draw() {
    std::thread::sleep(Duration::from_secs(2));
}

fn start(desk: &Desk, name: &'static str, program: &str) -> anyhow::Result<Part> {
    let mut part = Part::new(name, desk.folder().join("logs/panel.log"));
    let mut command = Command::new(program);
    desk.surround(&mut command);
    command.env("XDG_CURRENT_DESKTOP", "XFCE");
    part.start(&mut command)?;
    Ok(part)
}

fn click(desk: &Desk, x: &str, y: &str) -> anyhow::Result<()> {
    let mut command = Command::new("xdotool");
    desk.surround(&mut command);
    run(command.args(["mousemove", x, y, "click", "3"]))?.good().map(drop)
}

#[test]
#[ignore = "makes pictures for the documents"]
fn the_menu_of_the_tray() {
    in_a_world_with_a_desk(&Plan::default(), |world, desk| {
        let pictures = folder()?;
        running_job(world)?;
        let settings = desk.home().join(".config/xfce4/xfconf/xfce-perchannel-xml");
        std::fs::create_dir_all(&settings)?;
        std::fs::write(settings.join("xfce4-panel.xml"), PANEL)?;
        desk.panel.leave(&desk.bus)?;
        let _settings = start(desk, "settings", "/usr/lib/x86_64-linux-gnu/xfce4/xfconf/xfconfd")?;
        let _windows = start(desk, "window manager", "openbox")?;
        let_it_draw();
        let _panel = start(desk, "panel", "xfce4-panel")?;
        let_it_draw();
        for language in ["en", "id"] {
            let mut command = desk.command(&["--hidden", "--language", language])?;
            desk.shell.start(&mut command)?;
            let_it_draw();
            click(desk, "14", "788")?;
            let_it_draw();
            let file = pictures.join(format!("tray-menu-{language}.png"));
            desk.screen.picture(&file, "340x250+0+550")?;
            desk.shell.kill()?;
            let_it_draw();
        }
        Ok(())
    });
}

#[test]
#[ignore = "makes pictures for the documents"]
fn the_window_as_it_earns() {
    in_a_world_with_a_desk(&Plan::default(), |world, desk| {
        let pictures = folder()?;
        running_job(world)?;
        let driver = Driver::start(desk, &[])?;
        driver.wait_for_text("h1", "Earning on your card.")?;
        let_it_draw();
        driver.picture(&pictures.join("desktop-window.png"))
    });
}
