//! The sign in the tray: which states it shows, and the pictures of them. Which state there is, is the controller's.

use clap::ValueEnum;

/// What the sign shows: hollow, filled, a bar across, a notch above.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Sign {
    /// A card waits for a job.
    Sharing,
    /// A job runs.
    Earning,
    /// Nothing is shared now, and that is as it should be.
    Paused,
    /// Nothing is shared, and only the owner can change that.
    Attention,
}

/// A panel's background, against which the sign is drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Panel {
    /// Dark: most are.
    #[default]
    Dark,
    /// Light.
    Light,
}

/// A picture of the sign, as PNG, in each size that it was drawn for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pictures {
    /// 16 pixels.
    pub(crate) small: &'static [u8],
    /// 22 pixels, the size of most panels.
    pub(crate) usual: &'static [u8],
    /// 24 pixels.
    pub(crate) large: &'static [u8],
    /// 32 pixels.
    pub(crate) largest: &'static [u8],
}

/// The pictures of a sign on a panel.
pub(crate) const fn pictures(sign: Sign, panel: Panel) -> Pictures {
    macro_rules! drawn {
        ($name:literal) => {
            Pictures {
                small: include_bytes!(concat!("../../icons/generated/tray/", $name, "-16.png")),
                usual: include_bytes!(concat!("../../icons/generated/tray/", $name, "-22.png")),
                large: include_bytes!(concat!("../../icons/generated/tray/", $name, "-24.png")),
                largest: include_bytes!(concat!("../../icons/generated/tray/", $name, "-32.png")),
            }
        };
    }
    match (sign, panel) {
        (Sign::Sharing, Panel::Dark) => drawn!("sharing-dark"),
        (Sign::Earning, Panel::Dark) => drawn!("earning-dark"),
        (Sign::Paused, Panel::Dark) => drawn!("paused-dark"),
        (Sign::Attention, Panel::Dark) => drawn!("attention-dark"),
        (Sign::Sharing, Panel::Light) => drawn!("sharing-light"),
        (Sign::Earning, Panel::Light) => drawn!("earning-light"),
        (Sign::Paused, Panel::Light) => drawn!("paused-light"),
        (Sign::Attention, Panel::Light) => drawn!("attention-light"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sign_has_a_picture_of_its_own_on_every_panel_in_every_size() {
        let signs = [Sign::Sharing, Sign::Earning, Sign::Paused, Sign::Attention];
        let drawn: Vec<_> = [Panel::Dark, Panel::Light]
            .into_iter()
            .flat_map(|panel| signs.map(|sign| pictures(sign, panel)))
            .flat_map(|of| [of.small, of.usual, of.large, of.largest])
            .collect();
        for (index, one) in drawn.iter().enumerate() {
            assert!(drawn.iter().skip(index + 1).all(|other| other != one));
        }
    }
}
