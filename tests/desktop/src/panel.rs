//! A panel's part of the tray: the watcher that trays announce themselves to, and their menus, read and clicked as a panel does
//! (`org.kde.StatusNotifierItem` and `com.canonical.dbusmenu`).

use crate::Bus;
use crate::bus::Caller;
use anyhow::{Context, ensure};
use sela_tests::wait_for;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use zbus::message::Header;
use zbus::wire::{OwnedObjectPath, OwnedVariant, Structure};

const WATCHER: &str = "org.kde.StatusNotifierWatcher";
const ITEM: &str = "org.kde.StatusNotifierItem";
const MENU: &str = "com.canonical.dbusmenu";

type Announced = Arc<Mutex<Vec<(String, String)>>>;

struct Watcher {
    announced: Announced,
}

#[zbus::interface(name = "org.kde.StatusNotifierWatcher")]
impl Watcher {
    fn register_status_notifier_item(&self, service: String, #[zbus(header)] header: Header<'_>) {
        let sender = header.sender().map(ToString::to_string).unwrap_or_default();
        // A tray gives its path on its own connection, or the name of a connection that has the usual path.
        let item = if service.starts_with('/') {
            (sender, service)
        } else {
            (service, "/StatusNotifierItem".to_owned())
        };
        let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        if !announced.contains(&item) {
            announced.push(item);
        }
    }

    fn register_status_notifier_host(&self, _service: String) {}

    #[zbus(property)]
    fn registered_status_notifier_items(&self) -> Vec<String> {
        let announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        announced.iter().map(|(name, path)| format!("{name}{path}")).collect()
    }

    #[zbus(property)]
    fn is_status_notifier_host_registered(&self) -> bool {
        true
    }

    #[zbus(property)]
    fn protocol_version(&self) -> i32 {
        0
    }
}

/// The panel.
#[derive(Debug)]
pub struct Panel {
    caller: Caller,
    announced: Announced,
}

/// A picture as panels get it: width, height, and alpha, red, green and blue of each pixel.
pub type Picture = (i32, i32, Vec<u8>);

/// One line of a menu.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    id: i32,
    /// What it says; empty for a line between.
    pub label: String,
    /// Whether it can be chosen.
    pub enabled: bool,
    /// Whether it is checked, where it can be.
    pub checked: Option<bool>,
}

/// A menu as it stands, top to bottom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Menu(pub Vec<Item>);

impl Menu {
    /// The line that says this.
    ///
    /// # Errors
    /// Where none does: with what the menu says.
    pub fn item(&self, label: &str) -> anyhow::Result<&Item> {
        let found = self.0.iter().find(|item| item.label == label);
        found.with_context(|| format!("no line says \"{label}\": {self:#?}"))
    }

    /// The line of state: the first.
    pub fn state(&self) -> &str {
        self.0.first().map_or("", |item| &item.label)
    }
}

impl Panel {
    /// Starts the panel, which must be there before trays are.
    ///
    /// # Errors
    /// Where the bus has one already.
    pub fn start(bus: &Bus) -> anyhow::Result<Self> {
        let announced = Announced::default();
        let watcher = Watcher {
            announced: announced.clone(),
        };
        let caller = bus.connect(|builder| builder.serve_at("/StatusNotifierWatcher", watcher).name(WATCHER))?;
        Ok(Self { caller, announced })
    }

    /// Leaves the part to another panel, one with pixels.
    ///
    /// # Errors
    /// Where the bus does not answer.
    pub fn leave(&mut self, bus: &Bus) -> anyhow::Result<()> {
        // The name goes with the connection that has it.
        self.caller = bus.connect(|builder| builder)?;
        Ok(())
    }

    /// How many trays have announced themselves, ever.
    pub fn announced(&self) -> usize {
        self.announced.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn tray(&self) -> anyhow::Result<(String, String)> {
        let announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        announced.last().cloned().context("no tray is there")
    }

    fn property(&self, name: &str) -> anyhow::Result<OwnedVariant> {
        let (tray, path) = self.tray()?;
        self.caller
            .call(&tray, &path, ("org.freedesktop.DBus.Properties", "Get"), &(ITEM, name))
    }

    /// The icon that the tray shows: each picture's width and height, and its pixels.
    ///
    /// # Errors
    /// Where there is no tray.
    pub fn icon(&self) -> anyhow::Result<Vec<Picture>> {
        Ok(Vec::<Picture>::try_from(self.property("IconPixmap")?)?)
    }

    /// Clicks the icon itself, as a left click does.
    ///
    /// # Errors
    /// Where there is no tray.
    pub fn click_icon(&self) -> anyhow::Result<()> {
        let (tray, path) = self.tray()?;
        self.caller.call(&tray, &path, (ITEM, "Activate"), &(0_i32, 0_i32))
    }

    fn menu_path(&self) -> anyhow::Result<(String, String)> {
        let menu = OwnedObjectPath::try_from(self.property("Menu")?)?;
        Ok((self.tray()?.0, menu.to_string()))
    }

    /// The menu of the newest tray.
    ///
    /// # Errors
    /// Where there is no tray.
    pub fn menu(&self) -> anyhow::Result<Menu> {
        type Layout = (u32, (i32, HashMap<String, OwnedVariant>, Vec<OwnedVariant>));
        let (tray, path) = self.menu_path()?;
        let wanted: Vec<String> = Vec::new();
        let (_, (_, _, lines)): Layout =
            self.caller
                .call(&tray, &path, (MENU, "GetLayout"), &(0_i32, -1_i32, wanted))?;
        lines
            .into_iter()
            .map(read_item)
            .collect::<anyhow::Result<_>>()
            .map(Menu)
    }

    /// Chooses a line as a click does.
    ///
    /// # Errors
    /// Where there is no such line, or it cannot be chosen.
    pub fn click(&self, label: &str) -> anyhow::Result<()> {
        let menu = self.menu()?;
        let item = menu.item(label)?;
        ensure!(item.enabled, "\"{label}\" cannot be chosen: {menu:#?}");
        let (tray, path) = self.menu_path()?;
        let nothing = OwnedVariant::from(0_i32);
        self.caller
            .call(&tray, &path, (MENU, "Event"), &(item.id, "clicked", nothing, 0_u32))
    }

    /// Waits until the menu is as `is` wants it.
    ///
    /// # Errors
    /// Where that takes too long: with how it was last.
    pub fn wait(&self, what: &str, is: impl Fn(&Menu) -> bool) -> anyhow::Result<Menu> {
        let mut last = None;
        wait_for(what, || {
            // Not there yet is as good as not so yet.
            let Ok(menu) = self.menu() else {
                return Ok(None);
            };
            if is(&menu) {
                return Ok(Some(menu));
            }
            last = Some(menu);
            Ok(None)
        })
        .with_context(|| format!("the tray showed last: {last:#?}"))
    }

    /// Waits until the line of state says this.
    ///
    /// # Errors
    /// Where that takes too long.
    pub fn wait_for_state(&self, sentence: &str) -> anyhow::Result<Menu> {
        self.wait(&format!("\"{sentence}\""), |menu| menu.state() == sentence)
    }
}

fn read_item(line: OwnedVariant) -> anyhow::Result<Item> {
    let line = Structure::try_from(line)?;
    let (id, properties, _): (i32, HashMap<String, OwnedVariant>, Vec<OwnedVariant>) = line.try_into()?;
    let text = |name: &str| {
        properties
            .get(name)
            .and_then(|value| String::try_from(value.clone()).ok())
    };
    let number = |name: &str| properties.get(name).and_then(|value| i32::try_from(value).ok());
    let truth = |name: &str| properties.get(name).and_then(|value| bool::try_from(value).ok());
    Ok(Item {
        id,
        // An underline marks a key; a doubled one is one.
        label: text("label").unwrap_or_default().replace("__", "_"),
        enabled: truth("enabled").unwrap_or(true),
        checked: text("toggle-type").map(|_| number("toggle-state") == Some(1)),
    })
}
