//! The tray's icon as panels read it: `org.kde.StatusNotifierItem`, in the form that KDE, GNOME's extension, Xfce and the bars of
//! the wlroots world agree on.

use super::tray::{MENU_PATH, Shared};
use crate::controller::Choice;
use crate::sign::{Sign, pictures};
use zbus::object_server::SignalEmitter;
use zbus::wire::ObjectPath;

const ID: &str = "sela";
const TITLE: &str = "Sela";

/// Width, height, and for each pixel alpha, red, green, blue.
type Pixmap = (i32, i32, Vec<u8>);
/// An icon's name, its pictures, a title and a text.
type ToolTip = (String, Vec<Pixmap>, String, String);

pub(super) struct StatusItem {
    shared: Shared,
}

impl StatusItem {
    pub(super) const fn new(shared: Shared) -> Self {
        Self { shared }
    }

    /// What panels may do about the sign: one that needs its owner is not to be hidden.
    pub(super) const fn status_of(sign: Sign) -> &'static str {
        match sign {
            Sign::Sharing | Sign::Earning | Sign::Paused => "Active",
            Sign::Attention => "NeedsAttention",
        }
    }

    fn pixmaps(&self) -> Vec<Pixmap> {
        let drawn = self.shared.look(|showing| pictures(showing.view.sign, showing.panel));
        let drawn = [drawn.small, drawn.usual, drawn.large, drawn.largest];
        drawn.into_iter().filter_map(pixmap).collect()
    }
}

/// The pixels of a PNG of red, green, blue and alpha; none of another.
fn pixmap(png: &[u8]) -> Option<Pixmap> {
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().ok()?;
    let mut pixels = vec![0; reader.output_buffer_size()?];
    let frame = reader.next_frame(&mut pixels).ok()?;
    if (frame.color_type, frame.bit_depth) != (png::ColorType::Rgba, png::BitDepth::Eight) {
        return None;
    }
    pixels.truncate(frame.buffer_size());
    for pixel in pixels.chunks_exact_mut(4) {
        pixel.rotate_right(1);
    }
    Some((
        i32::try_from(frame.width).ok()?,
        i32::try_from(frame.height).ok()?,
        pixels,
    ))
}

#[zbus::interface(name = "org.kde.StatusNotifierItem")]
impl StatusItem {
    #[zbus(property(emits_changed_signal = "const"))]
    fn category(&self) -> &'static str {
        "ApplicationStatus"
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn id(&self) -> &'static str {
        ID
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn title(&self) -> &'static str {
        TITLE
    }

    #[zbus(property(emits_changed_signal = "false"))]
    fn status(&self) -> &'static str {
        Self::status_of(self.shared.look(|showing| showing.view.sign))
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn window_id(&self) -> i32 {
        0
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn icon_theme_path(&self) -> &'static str {
        ""
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn icon_name(&self) -> &'static str {
        ""
    }

    #[zbus(property(emits_changed_signal = "false"))]
    fn icon_pixmap(&self) -> Vec<Pixmap> {
        self.pixmaps()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn overlay_icon_name(&self) -> &'static str {
        ""
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn overlay_icon_pixmap(&self) -> Vec<Pixmap> {
        Vec::new()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn attention_icon_name(&self) -> &'static str {
        ""
    }

    /// The sign with its notch: the same as the icon whenever it is shown.
    #[zbus(property(emits_changed_signal = "false"))]
    fn attention_icon_pixmap(&self) -> Vec<Pixmap> {
        self.pixmaps()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn attention_movie_name(&self) -> &'static str {
        ""
    }

    #[zbus(property(emits_changed_signal = "false"))]
    fn tool_tip(&self) -> ToolTip {
        let state = self.shared.look(|showing| showing.view.state.clone());
        (String::new(), Vec::new(), TITLE.to_owned(), state)
    }

    /// A left click is told apart from one that wants the menu.
    #[zbus(property(emits_changed_signal = "const"))]
    fn item_is_menu(&self) -> bool {
        false
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn menu(&self) -> ObjectPath<'static> {
        ObjectPath::from_static_str_unchecked(MENU_PATH)
    }

    /// The left click.
    fn activate(&self, _x: i32, _y: i32) {
        self.shared.chose(Choice::Open);
    }

    /// Panels show the menu themselves.
    fn context_menu(&self, _x: i32, _y: i32) {}

    fn secondary_activate(&self, _x: i32, _y: i32) {}

    fn scroll(&self, _delta: i32, _orientation: String) {}

    #[zbus(signal)]
    async fn new_icon(emitter: &SignalEmitter<'_>) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn new_tool_tip(emitter: &SignalEmitter<'_>) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn new_status(emitter: &SignalEmitter<'_>, status: &str) -> zbus::Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sign::Panel;

    #[test]
    fn every_picture_reads_in_every_size() {
        for sign in [Sign::Sharing, Sign::Earning, Sign::Paused, Sign::Attention] {
            for panel in [Panel::Dark, Panel::Light] {
                let drawn = pictures(sign, panel);
                for (png, size) in [
                    (drawn.small, 16),
                    (drawn.usual, 22),
                    (drawn.large, 24),
                    (drawn.largest, 32),
                ] {
                    let (width, height, pixels) = pixmap(png).expect("reads");
                    assert_eq!((width, height), (size, size));
                    assert_eq!(pixels.len(), usize::try_from(width * height * 4).expect("fits"));
                    // The corner is clear, and something is drawn.
                    assert_eq!(pixels[0], 0);
                    assert!(pixels.chunks(4).any(|pixel| pixel[0] == 255));
                }
            }
        }
    }
}
