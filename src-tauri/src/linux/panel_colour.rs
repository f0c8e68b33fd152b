//! Whether the panel is dark or light, as far as a desktop tells. Only KDE's panel follows the colour scheme that the desktop's
//! portal tells of (`org.freedesktop.portal.Settings`); GNOME's and Xfce's are dark under either, and of others nothing is known.

use crate::sign::Panel;
use futures_util::StreamExt as _;
use zbus::Connection;
use zbus::wire::{OwnedVariant, Variant};

const NAMESPACE: &str = "org.freedesktop.appearance";
const KEY: &str = "color-scheme";
/// What the portal says of a desktop that is light.
const PREFERS_LIGHT: u32 = 2;

#[zbus::proxy(
    interface = "org.freedesktop.portal.Settings",
    default_service = "org.freedesktop.portal.Desktop",
    default_path = "/org/freedesktop/portal/desktop"
)]
trait Settings {
    /// Every version of the portal has it; it wraps the value once more.
    fn read(&self, namespace: &str, key: &str) -> zbus::Result<OwnedVariant>;

    #[zbus(signal)]
    fn setting_changed(&self, namespace: String, key: String, value: OwnedVariant);
}

/// Whether this desktop's panel follows its colour scheme; `desktops` is the value of `XDG_CURRENT_DESKTOP`.
pub(super) fn follows_the_scheme(desktops: &str) -> bool {
    desktops.split(':').any(|name| name == "KDE")
}

/// Tells what the panel is, now and whenever it changes. Runs until the bus is gone.
pub(super) async fn watch(bus: &Connection, mut is: impl FnMut(Panel)) -> zbus::Result<()> {
    let settings = SettingsProxy::new(bus).await?;
    let mut changes = settings.receive_setting_changed().await?;
    // A desktop without the portal, or without this setting, is as if it told nothing.
    if let Ok(value) = settings.read(NAMESPACE, KEY).await {
        is(panel_of(&value));
    }
    while let Some(change) = changes.next().await {
        let change = change.args()?;
        if change.namespace == NAMESPACE && change.key == KEY {
            is(panel_of(&change.value));
        }
    }
    Ok(())
}

fn panel_of(value: &Variant<'_>) -> Panel {
    if let Variant::Variant(inner) = value {
        return panel_of(inner);
    }
    if *value == Variant::U32(PREFERS_LIGHT) {
        Panel::Light
    } else {
        Panel::Dark
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_panel_that_follows_the_scheme_is_asked_after() {
        for (desktops, follows) in [("KDE", true), ("ubuntu:GNOME", false), ("XFCE", false), ("", false)] {
            assert_eq!(follows_the_scheme(desktops), follows, "{desktops}");
        }
    }

    #[test]
    fn a_scheme_reads_however_often_it_is_wrapped() {
        let wrapped = |value: Variant<'static>| Variant::Variant(Box::new(value));
        for (value, panel) in [
            (Variant::U32(2), Panel::Light),
            (wrapped(Variant::U32(2)), Panel::Light),
            (wrapped(wrapped(Variant::U32(1))), Panel::Dark),
            (Variant::U32(0), Panel::Dark),
            (Variant::from("light"), Panel::Dark),
        ] {
            assert_eq!(panel_of(&value), panel, "{value:?}");
        }
    }
}
