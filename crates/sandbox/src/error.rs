//! Turns what the system refused into a fault that names what was being done. The kinds of fault are part of the wire.

use crate::keeper::wire::{Fault, FaultCode};
use std::fmt::Display;

impl Fault {
    /// A fault with its message.
    pub(crate) fn new(code: FaultCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// Adds what was being done to an error of the system's.
pub(crate) trait OrFault<T> {
    /// `what` reads "mount the image".
    fn or_fault(self, code: FaultCode, what: impl Display) -> Result<T, Fault>;
}

impl<T, E: Display> OrFault<T> for Result<T, E> {
    fn or_fault(self, code: FaultCode, what: impl Display) -> Result<T, Fault> {
        self.map_err(|error| Fault::new(code, format!("could not {what}: {error}")))
    }
}
