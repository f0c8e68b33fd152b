//! A stand-in for the user's systemd on the bus: it writes down which units it was asked to start. systemd itself cannot run
//! inside a test; that the real one takes the same call is its documented interface (`org.freedesktop.systemd1`, StartUnit).

use crate::Bus;
use crate::bus::Caller;
use std::sync::{Arc, Mutex, PoisonError};
use zbus::wire::OwnedObjectPath;

type Asked = Arc<Mutex<Vec<(String, String)>>>;

struct Manager {
    asked: Asked,
}

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl Manager {
    fn start_unit(&self, unit: String, mode: String) -> zbus::fdo::Result<OwnedObjectPath> {
        self.asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((unit, mode));
        OwnedObjectPath::try_from("/org/freedesktop/systemd1/job/1")
            .map_err(|error| zbus::fdo::Error::Failed(error.to_string()))
    }
}

/// The stand-in.
#[derive(Debug)]
pub struct Supervisor {
    _caller: Caller,
    asked: Asked,
}

impl Supervisor {
    /// Takes systemd's name on this bus.
    ///
    /// # Errors
    /// Where somebody has it.
    pub fn start(bus: &Bus) -> anyhow::Result<Self> {
        let asked = Asked::default();
        let manager = Manager { asked: asked.clone() };
        let caller = bus.connect(|builder| {
            builder
                .serve_at("/org/freedesktop/systemd1", manager)
                .name("org.freedesktop.systemd1")
        })?;
        Ok(Self { _caller: caller, asked })
    }

    /// The units that were asked for and the modes, oldest first.
    pub fn asked(&self) -> Vec<(String, String)> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
