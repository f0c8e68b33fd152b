//! The tray: an icon by state and a menu, drawn as the controller says. What was chosen goes back to the controller; nothing is
//! decided here.

use crate::arguments::Panel;
use crate::controller::{Choice, Sign, TrayView};
use crate::words::{Key, Words};
use std::path::Path;
use tauri::image::Image;
use tauri::menu::{CheckMenuItem, IsMenuItem, Menu, MenuEvent, MenuItem, PredefinedMenuItem};
use tauri::tray::{MouseButton, MouseButtonState, TrayIcon, TrayIconBuilder, TrayIconEvent};
use tauri::{AppHandle, Wry};

const ID: &str = "sela";

/// The tray as it stands.
pub(crate) struct Tray {
    icon: TrayIcon,
    items: Items,
    panel: Panel,
    shown: Option<Sign>,
}

struct Items {
    state: MenuItem<Wry>,
    share: CheckMenuItem<Wry>,
    pause_hour: MenuItem<Wry>,
    pause_tomorrow: MenuItem<Wry>,
    earned: MenuItem<Wry>,
    at_login: CheckMenuItem<Wry>,
}

/// The choices by the ids of their items.
const CHOICES: &[(&str, Choice)] = &[
    ("share", Choice::Share),
    ("pause_hour", Choice::PauseHour),
    ("pause_tomorrow", Choice::PauseTomorrow),
    ("open", Choice::Open),
    ("at_login", Choice::StartAtLogin),
    ("quit", Choice::Quit),
];

fn choice_of(id: &str) -> Option<Choice> {
    CHOICES
        .iter()
        .find(|(known, _)| *known == id)
        .map(|(_, choice)| *choice)
}

impl Tray {
    /// Makes the tray. `icons` is a folder of this user's for the icon that is shown: panels read it as a file. On the main
    /// thread only.
    ///
    /// # Errors
    /// Where the system gives none.
    pub(crate) fn new(
        app: &AppHandle,
        words: &Words,
        icons: &Path,
        panel: Panel,
        chose: impl Fn(Choice) + Clone + Send + Sync + 'static,
    ) -> tauri::Result<Self> {
        let plain =
            |id: &str, key: Key, enabled| MenuItem::with_id(app, id, words.say(key, &[]), enabled, None::<&str>);
        let check =
            |id: &str, key: Key| CheckMenuItem::with_id(app, id, words.say(key, &[]), false, false, None::<&str>);
        let items = Items {
            state: plain("state", Key::Asking, false)?,
            share: check("share", Key::TrayShare)?,
            pause_hour: plain("pause_hour", Key::TrayPauseHour, false)?,
            pause_tomorrow: plain("pause_tomorrow", Key::TrayPauseTomorrow, false)?,
            earned: MenuItem::with_id(app, "earned", "", false, None::<&str>)?,
            at_login: check("at_login", Key::TrayStartAtLogin)?,
        };
        let open = plain("open", Key::TrayOpen, true)?;
        let quit = plain("quit", Key::TrayQuit, true)?;
        let line = || PredefinedMenuItem::separator(app);
        let (first, second, third) = (line()?, line()?, line()?);
        let order: [&dyn IsMenuItem<Wry>; 11] = [
            &items.state,
            &items.earned,
            &first,
            &items.share,
            &items.pause_hour,
            &items.pause_tomorrow,
            &second,
            &open,
            &items.at_login,
            &third,
            &quit,
        ];
        let menu = Menu::with_items(app, &order)?;
        let by_menu = chose.clone();
        let icon = TrayIconBuilder::with_id(ID)
            .temp_dir_path(icons)
            .icon(picture(Sign::Paused, panel)?)
            .menu(&menu)
            // Where a click can tell left from right, left opens the window.
            .show_menu_on_left_click(cfg!(target_os = "linux"))
            .on_menu_event(move |_, MenuEvent { id }| {
                if let Some(choice) = choice_of(id.as_ref()) {
                    by_menu(choice);
                }
            })
            .on_tray_icon_event(move |_, event| {
                if is_left_click(&event) {
                    chose(Choice::Open);
                }
            })
            .build(app)?;
        Ok(Self {
            icon,
            items,
            panel,
            shown: Some(Sign::Paused),
        })
    }

    /// Shows the state. On the main thread only.
    ///
    /// # Errors
    /// Where the system takes it no longer.
    pub(crate) fn show(&mut self, view: &TrayView) -> tauri::Result<()> {
        if self.shown != Some(view.sign) {
            self.icon.set_icon(Some(picture(view.sign, self.panel)?))?;
            self.shown = Some(view.sign);
        }
        self.icon.set_tooltip(Some(&view.state))?;
        let items = &self.items;
        items.state.set_text(&view.state)?;
        items.earned.set_text(&view.earned)?;
        items.share.set_checked(view.sharing)?;
        items.share.set_enabled(view.can_share)?;
        items.pause_hour.set_enabled(view.can_pause)?;
        items.pause_tomorrow.set_enabled(view.can_pause)?;
        items.at_login.set_checked(view.at_login.unwrap_or(false))?;
        items.at_login.set_enabled(view.at_login.is_some())
    }
}

fn is_left_click(event: &TrayIconEvent) -> bool {
    matches!(
        event,
        TrayIconEvent::Click {
            button: MouseButton::Left,
            button_state: MouseButtonState::Up,
            ..
        }
    )
}

/// Drawn for panels of 22 pixels, the size of most; a panel of another size scales it.
fn picture(sign: Sign, panel: Panel) -> tauri::Result<Image<'static>> {
    macro_rules! drawn {
        ($name:literal) => {
            include_bytes!(concat!("../../icons/generated/tray/", $name, "-22.png"))
        };
    }
    Image::from_bytes(match (sign, panel) {
        (Sign::Sharing, Panel::Dark) => drawn!("sharing-dark"),
        (Sign::Earning, Panel::Dark) => drawn!("earning-dark"),
        (Sign::Paused, Panel::Dark) => drawn!("paused-dark"),
        (Sign::Attention, Panel::Dark) => drawn!("attention-dark"),
        (Sign::Sharing, Panel::Light) => drawn!("sharing-light"),
        (Sign::Earning, Panel::Light) => drawn!("earning-light"),
        (Sign::Paused, Panel::Light) => drawn!("paused-light"),
        (Sign::Attention, Panel::Light) => drawn!("attention-light"),
    })
}

/// Whether this system can show a tray. The library that draws it on Linux is loaded at run time, and the crate that does so
/// panics where it is missing: so it is looked for first.
#[cfg(target_os = "linux")]
pub(crate) fn is_possible() -> bool {
    ["libayatana-appindicator3.so.1", "libappindicator3.so.1"]
        .iter()
        .any(|name| {
            // SAFETY: loading runs the library's own initialisers; both are system libraries made to be loaded like this, and
            // the tray loads the same one again.
            unsafe { libloading::Library::new(*name) }.is_ok_and(|library| {
                // Kept open: what GTK registered must not be unloaded under it.
                std::mem::forget(library);
                true
            })
        })
}

/// Whether this system can show a tray.
#[cfg(not(target_os = "linux"))]
pub(crate) const fn is_possible() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sign_has_a_picture_of_its_own_on_every_panel() {
        let signs = [Sign::Sharing, Sign::Earning, Sign::Paused, Sign::Attention];
        let pictures: Vec<_> = [Panel::Dark, Panel::Light]
            .into_iter()
            .flat_map(|panel| signs.map(|sign| picture(sign, panel).expect("reads").rgba().to_vec()))
            .collect();
        for (index, one) in pictures.iter().enumerate() {
            assert!(pictures.iter().skip(index + 1).all(|other| other != one));
        }
    }

    #[test]
    fn every_choice_is_found_by_its_item() {
        for (id, choice) in CHOICES {
            assert_eq!(choice_of(id), Some(*choice));
        }
        assert_eq!(choice_of("state"), None);
    }
}
