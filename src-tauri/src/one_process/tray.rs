//! The tray as Tauri makes it: an icon by state and a menu, drawn as the controller says. What was chosen goes back to the
//! controller; nothing is decided here.

use crate::controller::{Choice, TrayView};
use crate::menu::{Labels, Row, choice_of};
use crate::sign::{Panel, Sign, pictures};
use crate::words::Words;
use tauri::image::Image;
use tauri::menu::{CheckMenuItem, IsMenuItem, Menu, MenuEvent, MenuItem, PredefinedMenuItem};
use tauri::tray::{MouseButton, MouseButtonState, TrayIcon, TrayIconBuilder, TrayIconEvent};
use tauri::{AppHandle, Wry};

const ID: &str = "sela";

/// The tray as it stands.
pub(super) struct Tray {
    icon: TrayIcon,
    labels: Labels,
    rows: Vec<Drawn>,
    panel: Panel,
    shown: Sign,
}

/// A row of the menu as the system has it.
enum Drawn {
    Line(PredefinedMenuItem<Wry>),
    Plain(MenuItem<Wry>),
    Check(CheckMenuItem<Wry>),
}

impl Drawn {
    fn new(app: &AppHandle, row: &Row) -> tauri::Result<Self> {
        let Row::Item(item) = row else {
            return PredefinedMenuItem::separator(app).map(Self::Line);
        };
        match item.checked {
            None => MenuItem::with_id(app, item.id, &item.label, item.enabled, None::<&str>).map(Self::Plain),
            Some(checked) => {
                CheckMenuItem::with_id(app, item.id, &item.label, item.enabled, checked, None::<&str>).map(Self::Check)
            }
        }
    }

    fn as_item(&self) -> &dyn IsMenuItem<Wry> {
        match self {
            Self::Line(line) => line,
            Self::Plain(item) => item,
            Self::Check(item) => item,
        }
    }

    fn show(&self, row: &Row) -> tauri::Result<()> {
        let Row::Item(shown) = row else {
            return Ok(());
        };
        match self {
            Self::Line(_) => Ok(()),
            Self::Plain(item) => {
                item.set_text(&shown.label)?;
                item.set_enabled(shown.enabled)
            }
            Self::Check(item) => {
                item.set_text(&shown.label)?;
                item.set_checked(shown.checked == Some(true))?;
                item.set_enabled(shown.enabled)
            }
        }
    }
}

impl Tray {
    /// Makes the tray. On the main thread only.
    ///
    /// # Errors
    /// Where the system gives none.
    pub(super) fn new(
        app: &AppHandle,
        words: &Words,
        panel: Panel,
        chose: impl Fn(Choice) + Clone + Send + Sync + 'static,
    ) -> tauri::Result<Self> {
        let (labels, view) = (Labels::of(words), TrayView::at_start(words));
        let rows = labels.rows(&view);
        let rows: Vec<_> = rows.iter().map(|row| Drawn::new(app, row)).collect::<Result<_, _>>()?;
        let items: Vec<_> = rows.iter().map(Drawn::as_item).collect();
        let menu = Menu::with_items(app, &items)?;
        let by_menu = chose.clone();
        let icon = TrayIconBuilder::with_id(ID)
            .icon(picture(view.sign, panel)?)
            .menu(&menu)
            // Left opens the window.
            .show_menu_on_left_click(false)
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
            labels,
            rows,
            panel,
            shown: view.sign,
        })
    }

    /// Shows the state. On the main thread only.
    ///
    /// # Errors
    /// Where the system takes it no longer.
    pub(super) fn show(&mut self, view: &TrayView) -> tauri::Result<()> {
        if self.shown != view.sign {
            self.icon.set_icon(Some(picture(view.sign, self.panel)?))?;
            self.shown = view.sign;
        }
        self.icon.set_tooltip(Some(&view.state))?;
        let rows = self.labels.rows(view);
        self.rows.iter().zip(&rows).try_for_each(|(drawn, row)| drawn.show(row))
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

/// A panel of another size scales it.
fn picture(sign: Sign, panel: Panel) -> tauri::Result<Image<'static>> {
    Image::from_bytes(pictures(sign, panel).usual)
}
