//! A stand-in for the desktop's portal, which tells programs whether the desktop is dark or light. The real one wants a whole
//! desktop behind it; that it takes the same call is its documented interface (`org.freedesktop.portal.Settings`).

use crate::Bus;
use crate::bus::Caller;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use zbus::wire::{OwnedVariant, Variant};

const NAME: &str = "org.freedesktop.portal.Desktop";
const PATH: &str = "/org/freedesktop/portal/desktop";
const SETTINGS: &str = "org.freedesktop.portal.Settings";
const NAMESPACE: &str = "org.freedesktop.appearance";
const KEY: &str = "color-scheme";

/// What a desktop prefers, by the portal's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Scheme {
    /// Dark.
    Dark = 1,
    /// Light.
    Light = 2,
}

struct Settings {
    scheme: Arc<AtomicU32>,
}

#[zbus::interface(name = "org.freedesktop.portal.Settings")]
impl Settings {
    fn read(&self, namespace: String, key: String) -> zbus::fdo::Result<OwnedVariant> {
        if namespace != NAMESPACE || key != KEY {
            return Err(zbus::fdo::Error::Failed(format!("{namespace} has no {key}")));
        }
        // Wrapped once more, as the real one does.
        let inner = Variant::U32(self.scheme.load(Ordering::SeqCst));
        Variant::Variant(Box::new(inner))
            .try_into_owned()
            .map_err(|error| zbus::fdo::Error::Failed(error.to_string()))
    }
}

/// The stand-in.
#[derive(Debug)]
pub struct Portal {
    caller: Caller,
    scheme: Arc<AtomicU32>,
}

impl Portal {
    /// Takes the portal's name on this bus.
    ///
    /// # Errors
    /// Where somebody has it.
    pub fn start(bus: &Bus, scheme: Scheme) -> anyhow::Result<Self> {
        let scheme = Arc::new(AtomicU32::new(scheme as u32));
        let settings = Settings { scheme: scheme.clone() };
        let caller = bus.connect(|builder| builder.serve_at(PATH, settings).name(NAME))?;
        Ok(Self { caller, scheme })
    }

    /// Changes what the desktop prefers, and says so.
    ///
    /// # Errors
    /// Where the bus does not take it.
    pub fn change(&self, scheme: Scheme) -> anyhow::Result<()> {
        self.scheme.store(scheme as u32, Ordering::SeqCst);
        let value = Variant::U32(scheme as u32);
        self.caller
            .emit(PATH, (SETTINGS, "SettingChanged"), &(NAMESPACE, KEY, value))
    }
}
