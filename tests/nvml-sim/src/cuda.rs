//! The driver as a CUDA program in one process sees it: contexts, and memory that is allocated, set and read. Nothing computes
//! here. The C interface is `cuda_exports`; what memory is, is `pool`'s and `node`'s.
//!
//! A context takes memory itself, and what lay there before stays as it is: a program that wipes has to see to that, too.

use crate::faults::{CudaFault, DriverFault};
use crate::lab::{FOLDER_VARIABLE, Lab};
use crate::pool::Pool;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// What a call answers, or the error of `cuda.h` that it fails with.
pub(crate) type Answer<T> = Result<T, i32>;

pub(crate) const INVALID_VALUE: i32 = 1;
pub(crate) const OUT_OF_MEMORY: i32 = 2;
pub(crate) const NOT_INITIALIZED: i32 = 3;
pub(crate) const NO_DEVICE: i32 = 100;
pub(crate) const INVALID_DEVICE: i32 = 101;
pub(crate) const INVALID_CONTEXT: i32 = 201;
const DRIVER_MISMATCH: i32 = 803;
pub(crate) const UNKNOWN: i32 = 999;

/// Memory that each context takes for itself, MiB. A real one takes some hundred.
pub const CONTEXT_MIB: u64 = 8;

const MIB: u64 = 1 << 20;
/// An address is a card's number + 1 above this bit, and the place in its memory below.
const CARD_BIT: u32 = 44;

/// What one CUDA context did to a card's memory, written down when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CudaUse {
    /// Allocations that succeeded.
    pub allocations: u64,
    /// The sum of them, MiB.
    pub allocated_mib: u64,
    /// Memory that was set to zero, MiB.
    pub zeroed_mib: u64,
}

struct Cuda {
    lab: Lab,
    /// Numbers in the lab of the cards that this process is shown, in its order.
    visible: Vec<usize>,
    pools: BTreeMap<usize, Pool>,
    contexts: BTreeMap<u64, Context>,
    /// The context that calls are about. One for the process: its callers have one thread.
    current: Option<u64>,
    made: u64,
}

struct Context {
    card: usize,
    own: u64,
    done: CudaUse,
}

static CUDA: Mutex<Option<Cuda>> = Mutex::new(None);

/// The lab's folder, held since the library was loaded: a program may give up the right to reach it after that, as it may give up
/// the right to open what a real driver's library has opened.
static FOLDER: OnceLock<Option<OwnedFd>> = OnceLock::new();

#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        FOLDER.get_or_init(|| {
            let folder = std::env::var_os(FOLDER_VARIABLE)?;
            rustix::fs::open(&folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()
        });
    }
    at_load
};

/// Initialises, once.
pub(crate) fn initialise() -> Answer<()> {
    let mut cuda = lock();
    if cuda.is_some() {
        return Ok(());
    }
    let held = FOLDER.get().and_then(Option::as_ref).ok_or(NO_DEVICE)?;
    let folder = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
    let lab = Lab::open(&folder).map_err(|_| NO_DEVICE)?;
    match lab.faults().map_err(|_| UNKNOWN)?.driver {
        Some(DriverFault::NotLoaded) => return Err(NO_DEVICE),
        Some(DriverFault::VersionMismatch) => return Err(DRIVER_MISMATCH),
        None => {}
    }
    let visible = visible(&lab);
    if visible.is_empty() {
        return Err(NO_DEVICE);
    }
    *cuda = Some(Cuda {
        lab,
        visible,
        pools: BTreeMap::new(),
        contexts: BTreeMap::new(),
        current: None,
        made: 0,
    });
    Ok(())
}

/// All cards, or those that `CUDA_VISIBLE_DEVICES` names by UUID.
fn visible(lab: &Lab) -> Vec<usize> {
    let number = |uuid: &str| lab.cards().iter().position(|card| card.uuid == uuid.trim());
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(named) => named.split(',').map_while(number).collect(),
        Err(_) => (0..lab.cards().len()).collect(),
    }
}

/// How many cards there are.
pub(crate) fn count() -> Answer<usize> {
    with(|cuda| Ok(cuda.visible.len()))
}

/// Name and UUID of a card.
pub(crate) fn card(ordinal: usize) -> Answer<(String, String)> {
    with(|cuda| {
        let card = &cuda.lab.cards()[cuda.number(ordinal)?];
        Ok((card.name.clone(), card.uuid.clone()))
    })
}

/// Makes a context on a card, current from here on.
pub(crate) fn make_context(ordinal: usize) -> Answer<u64> {
    let fault = with(|cuda| cuda.fault(cuda.number(ordinal)?))?;
    match fault {
        Some(CudaFault::NoContext) => return Err(UNKNOWN),
        Some(CudaFault::Hangs) => loop {
            std::thread::park();
        },
        Some(CudaFault::Crashes) => std::process::abort(),
        Some(CudaFault::Withholds | CudaFault::SetsNothing) | None => {}
    }
    with(|cuda| {
        let card = cuda.number(ordinal)?;
        let own = cuda.pool(card)?.take(CONTEXT_MIB).map_err(|_| UNKNOWN)?;
        let own = own.ok_or(OUT_OF_MEMORY)?;
        cuda.made += 1;
        let done = CudaUse::default();
        cuda.contexts.insert(cuda.made, Context { card, own, done });
        cuda.current = Some(cuda.made);
        Ok(cuda.made)
    })
}

/// Ends a context, and writes down what it did. Memory that was allocated in it must have been given back, as all callers do.
pub(crate) fn end_context(handle: u64) -> Answer<()> {
    with(|cuda| {
        let context = cuda.contexts.remove(&handle).ok_or(INVALID_CONTEXT)?;
        cuda.current = cuda.current.filter(|current| *current != handle);
        cuda.pool(context.card)?.give_back(context.own).map_err(|_| UNKNOWN)?;
        let file = cuda.lab.state_file(&cuda.lab.cards()[context.card], "cuda");
        let mut line = serde_json::to_vec(&context.done).map_err(|_| UNKNOWN)?;
        line.push(b'\n');
        append(&file, &line).map_err(|_| UNKNOWN)
    })
}

/// Makes a context current.
pub(crate) fn set_current(handle: u64) -> Answer<()> {
    with(|cuda| {
        cuda.current = Some(handle).filter(|handle| cuda.contexts.contains_key(handle));
        cuda.current.map(drop).ok_or(INVALID_CONTEXT)
    })
}

/// Bytes that are free on the current context's card, and all that can be allocated.
pub(crate) fn memory() -> Answer<(u64, u64)> {
    with(|cuda| {
        let (_, card) = cuda.current()?;
        let pool = cuda.pool(card)?;
        let (free, total) = (pool.free().map_err(|_| UNKNOWN)?, pool.total().map_err(|_| UNKNOWN)?);
        Ok((free * MIB, total * MIB))
    })
}

/// Allocates; the address.
pub(crate) fn allocate(bytes: u64) -> Answer<u64> {
    with(|cuda| {
        let (handle, card) = cuda.current()?;
        let mib = bytes.div_ceil(MIB);
        if mib == 0 {
            return Err(INVALID_VALUE);
        }
        let withheld = match cuda.fault(card)? {
            Some(CudaFault::Withholds) => cuda.pool(card)?.total().map_err(|_| UNKNOWN)? / 4,
            Some(CudaFault::NoContext | CudaFault::Hangs | CudaFault::Crashes | CudaFault::SetsNothing) | None => 0,
        };
        let pool = cuda.pool(card)?;
        if pool.free().map_err(|_| UNKNOWN)? < withheld + mib {
            return Err(OUT_OF_MEMORY);
        }
        let start = pool.take(mib).map_err(|_| UNKNOWN)?.ok_or(OUT_OF_MEMORY)?;
        let done = cuda.done(handle)?;
        done.allocations += 1;
        done.allocated_mib += mib;
        Ok(((card as u64 + 1) << CARD_BIT) + start * MIB)
    })
}

/// Gives memory back.
pub(crate) fn give_back(address: u64) -> Answer<()> {
    with(|cuda| {
        let (card, start) = place(address)?;
        let had = cuda.pool(card)?.give_back(start).map_err(|_| UNKNOWN)?;
        had.then_some(()).ok_or(INVALID_VALUE)
    })
}

/// Sets bytes. A MiB that is not set as a whole stays as it is: one byte says what lies in all of it.
pub(crate) fn set(address: u64, byte: u8, bytes: u64) -> Answer<()> {
    with(|cuda| {
        let (handle, _) = cuda.current()?;
        let (card, start) = place(address)?;
        let mib = bytes / MIB;
        if !cuda.pool(card)?.holds(start, bytes.div_ceil(MIB)) {
            return Err(INVALID_VALUE);
        }
        if cuda.fault(card)? == Some(CudaFault::SetsNothing) {
            return Ok(());
        }
        cuda.pool(card)?.write(start, mib, byte).map_err(|_| UNKNOWN)?;
        if byte == 0 {
            cuda.done(handle)?.zeroed_mib += mib;
        }
        Ok(())
    })
}

/// Reads bytes.
pub(crate) fn read(address: u64, bytes: u64) -> Answer<Vec<u8>> {
    with(|cuda| {
        let (card, start) = place(address)?;
        let within = address % MIB;
        let mib = (within + bytes).div_ceil(MIB);
        if !cuda.pool(card)?.holds(start, mib) {
            return Err(INVALID_VALUE);
        }
        let content = cuda.pool(card)?.read(start, mib).map_err(|_| UNKNOWN)?;
        let of = |place: u64| {
            content
                .get(usize::try_from((within + place) / MIB).unwrap_or(0))
                .copied()
        };
        Ok((0..bytes).map_while(of).collect())
    })
}

/// Whether there is a context to wait for.
pub(crate) fn synchronise() -> Answer<()> {
    with(|cuda| cuda.current().map(drop))
}

impl Cuda {
    fn number(&self, ordinal: usize) -> Answer<usize> {
        self.visible.get(ordinal).copied().ok_or(INVALID_DEVICE)
    }

    fn fault(&self, card: usize) -> Answer<Option<CudaFault>> {
        let faults = self.lab.faults().map_err(|_| UNKNOWN)?;
        Ok(faults.card.get(&self.lab.cards()[card].uuid).and_then(|card| card.cuda))
    }

    fn pool(&mut self, card: usize) -> Answer<&mut Pool> {
        if !self.pools.contains_key(&card) {
            let pool = Pool::open(&self.lab.device_node(card)).map_err(|_| UNKNOWN)?;
            self.pools.insert(card, pool);
        }
        self.pools.get_mut(&card).ok_or(UNKNOWN)
    }

    fn current(&self) -> Answer<(u64, usize)> {
        let handle = self.current.ok_or(INVALID_CONTEXT)?;
        let context = self.contexts.get(&handle).ok_or(INVALID_CONTEXT)?;
        Ok((handle, context.card))
    }

    fn done(&mut self, handle: u64) -> Answer<&mut CudaUse> {
        let context = self.contexts.get_mut(&handle).ok_or(INVALID_CONTEXT)?;
        Ok(&mut context.done)
    }
}

/// Card and MiB of an address.
fn place(address: u64) -> Answer<(usize, u64)> {
    let card = (address >> CARD_BIT).checked_sub(1).ok_or(INVALID_VALUE)?;
    let card = usize::try_from(card).map_err(|_| INVALID_VALUE)?;
    Ok((card, address % (1 << CARD_BIT) / MIB))
}

fn append(file: &Path, line: &[u8]) -> std::io::Result<()> {
    // A lab that an earlier version laid out has no such file yet.
    let file = std::fs::File::options().append(true).create(true).open(file);
    file?.write_all(line)
}

fn with<T>(ask: impl FnOnce(&mut Cuda) -> Answer<T>) -> Answer<T> {
    lock().as_mut().ok_or(NOT_INITIALIZED).and_then(ask)
}

fn lock() -> MutexGuard<'static, Option<Cuda>> {
    // A call that panicked left nothing half-done that the next one could trip over.
    CUDA.lock().unwrap_or_else(PoisonError::into_inner)
}
