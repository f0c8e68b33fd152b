//! The simulated driver through CUDA's C interface, as a program that loads it by its name does: memory is allocated, set and read,
//! what was left there is found, and the driver counts what was done. What a sandbox does with it is tested there.

mod bench;

use bench::Bench;
use libloading::{Library, Symbol};
use sela_nvml_sim::{Allocation, CONTEXT_MIB, CardFaults, CardPlan, CudaFault, CudaUse};
use std::ffi::{c_int, c_uint, c_void};

const MIB: usize = 1 << 20;
const OUT_OF_MEMORY: c_int = 2;

struct Cuda(Library);

type Context = *mut c_void;

impl Cuda {
    fn load() -> Self {
        let library = sela_nvml_sim::find_library().expect("cargo builds the library with this test");
        // SAFETY: the library's initialiser opens one folder.
        Self(unsafe { Library::new(library) }.expect("it loads"))
    }

    fn get<F>(&self, name: &str) -> Symbol<'_, F> {
        // SAFETY: each caller names the type that cuda.h declares.
        unsafe { self.0.get(name.as_bytes()) }.expect(name)
    }

    fn init(&self) -> c_int {
        self.get::<extern "C" fn(c_uint) -> c_int>("cuInit")(0)
    }

    fn context(&self) -> Result<Context, c_int> {
        let mut made: Context = std::ptr::null_mut();
        let create = self.get::<unsafe extern "C" fn(*mut Context, c_uint, c_int) -> c_int>("cuCtxCreate_v2");
        // SAFETY: the place outlives the call.
        match unsafe { create(&raw mut made, 0, 0) } {
            0 => Ok(made),
            status => Err(status),
        }
    }

    fn end(&self, context: Context) {
        assert_eq!(
            self.get::<extern "C" fn(Context) -> c_int>("cuCtxDestroy_v2")(context),
            0
        );
    }

    fn free(&self) -> usize {
        let (mut free, mut total) = (0, 0);
        let ask = self.get::<unsafe extern "C" fn(*mut usize, *mut usize) -> c_int>("cuMemGetInfo_v2");
        // SAFETY: both places outlive the call.
        assert_eq!(unsafe { ask(&raw mut free, &raw mut total) }, 0);
        free / MIB
    }

    fn take(&self, mib: usize) -> Result<u64, c_int> {
        let mut at = 0;
        let take = self.get::<unsafe extern "C" fn(*mut u64, usize) -> c_int>("cuMemAlloc_v2");
        // SAFETY: the place outlives the call.
        match unsafe { take(&raw mut at, mib * MIB) } {
            0 => Ok(at),
            status => Err(status),
        }
    }

    fn give_back(&self, at: u64) -> c_int {
        self.get::<extern "C" fn(u64) -> c_int>("cuMemFree_v2")(at)
    }

    fn set(&self, at: u64, word: c_uint, mib: usize) -> c_int {
        self.get::<extern "C" fn(u64, c_uint, usize) -> c_int>("cuMemsetD32_v2")(at, word, mib * MIB / 4)
    }

    fn byte(&self, at: u64) -> u8 {
        let mut byte = 0xff;
        let read = self.get::<unsafe extern "C" fn(*mut u8, u64, usize) -> c_int>("cuMemcpyDtoH_v2");
        // SAFETY: the place outlives the call.
        assert_eq!(unsafe { read(&raw mut byte, at, 1) }, 0);
        byte
    }
}

/// A card of 64 MiB.
fn small() -> CardPlan {
    CardPlan {
        vram_mib: 64,
        driver_reserved_mib: 0,
        ..CardPlan::rtx_3090()
    }
}

#[test]
fn memory_is_taken_piece_by_piece_and_seen_by_nvml_as_held() {
    let bench = Bench::new(&[small()]);
    let nvml = bench.nvml();
    let cuda = Cuda::load();
    assert_eq!(cuda.init(), 0);
    let context = cuda.context().expect("a context");
    let own = usize::try_from(CONTEXT_MIB).expect("small");
    assert_eq!(cuda.free(), 64 - own);
    let pieces: Vec<u64> = [16, 32].map(|mib| cuda.take(mib).expect("memory")).to_vec();
    assert_eq!(cuda.take(16), Err(OUT_OF_MEMORY));
    assert_eq!(bench::listed(&nvml), [(std::process::id(), 48 + CONTEXT_MIB)]);
    for piece in &pieces {
        assert_eq!(cuda.give_back(*piece), 0);
    }
    assert_ne!(cuda.give_back(pieces[0]), 0, "it was given back");
    cuda.end(context);
    assert_eq!(bench::listed(&nvml), []);
}

#[test]
fn what_was_left_is_found_until_it_is_set_and_the_driver_counts_it() {
    let bench = Bench::new(&[small()]);
    let node = bench.lab.device_node(0);
    Allocation::take(&node, 64).expect("memory").fill(b'T').expect("left");
    let cuda = Cuda::load();
    assert_eq!(cuda.init(), 0);
    let context = cuda.context().expect("a context");
    let at = cuda.take(8).expect("memory");
    assert_eq!(cuda.byte(at), b'T', "nobody has wiped it");
    assert_eq!(cuda.set(at, 0, 8), 0);
    assert_eq!((cuda.byte(at), cuda.byte(at + 8 * MIB as u64 - 1)), (0, 0));
    assert_ne!(cuda.set(at, 0, 9), 0, "that reaches beyond what was allocated");
    assert_eq!(cuda.give_back(at), 0);
    cuda.end(context);
    let used = CudaUse {
        allocations: 1,
        allocated_mib: 8,
        zeroed_mib: 8,
    };
    assert_eq!(bench.lab.cuda_use(&bench.lab.cards()[0]).expect("counted"), [used]);
}

#[test]
fn faults_of_the_driver_show_as_a_program_would_meet_them() {
    let bench = Bench::new(&[small()]);
    let fault = |cuda| {
        bench.fault(CardFaults {
            cuda: Some(cuda),
            ..CardFaults::default()
        });
    };
    let cuda = Cuda::load();
    assert_eq!(cuda.init(), 0);
    fault(CudaFault::NoContext);
    assert_eq!(cuda.context(), Err(999));
    fault(CudaFault::Withholds);
    let context = cuda.context().expect("a context");
    assert_eq!((cuda.free(), cuda.take(48)), (56, Err(OUT_OF_MEMORY)));
    let at = cuda.take(40).expect("what is not withheld");
    fault(CudaFault::SetsNothing);
    assert_eq!(cuda.set(at, 0x0101_0101, 40), 0);
    assert_eq!(cuda.byte(at), 0);
    cuda.end(context);
}
