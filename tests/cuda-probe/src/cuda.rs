//! The driver's library, loaded when the program runs, and how its calls are made. What is asked of it is in `main` and `memory`.

use libloading::{Library, Symbol};
use std::ffi::{c_int, c_void};

pub(crate) type Status = c_int;
pub(crate) type Device = c_int;
pub(crate) type Context = *mut c_void;
pub(crate) type DevicePointer = u64;

pub(crate) const OUT_OF_MEMORY: Status = 2;

const LIBRARY: &str = "libcuda.so.1";

/// The driver's calls that are needed, by the names that `cuda.h` gives the current versions of them.
pub(crate) struct Cuda(Library);

#[derive(Debug)]
pub(crate) enum Fault {
    NoDriver(String),
    Call { name: &'static str, status: Status },
}

impl Cuda {
    pub(crate) fn load() -> Result<Self, Fault> {
        // SAFETY: loading the driver's library runs its initialisers, which is what any CUDA program does.
        let library = unsafe { Library::new(LIBRARY) }.map_err(|error| Fault::NoDriver(error.to_string()))?;
        Ok(Self(library))
    }

    pub(crate) fn symbol<F>(&self, name: &'static str) -> Result<Symbol<'_, F>, Fault> {
        // SAFETY: each caller names the type that cuda.h declares for this function.
        unsafe { self.0.get(name.as_bytes()) }.map_err(|error| Fault::NoDriver(error.to_string()))
    }
}

/// Calls a function of the driver and turns its status into a `Result`.
macro_rules! call {
    ($cuda:expr, $name:literal, ($($type:ty),*), $($argument:expr),*) => {{
        let function = $cuda.symbol::<unsafe extern "C" fn($($type),*) -> $crate::cuda::Status>($name)?;
        // SAFETY: the arguments are those that cuda.h asks for, and every pointer outlives the call.
        match unsafe { function($($argument),*) } {
            0 => Ok(()),
            status => Err($crate::cuda::Fault::Call { name: $name, status }),
        }
    }};
}

pub(crate) use call;
