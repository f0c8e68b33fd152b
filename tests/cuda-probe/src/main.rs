//! A CUDA program that needs no CUDA toolkit: it loads the driver's library at run time and hands it a kernel as PTX. Run
//! as a job on a real card by `tests/gpu/run.sh`; prints one JSON object a line: which cards it sees, whether the card
//! computes right, and that it holds memory and keeps the card busy until it is ended. Exit codes: 0 right, 1 wrong, 5 no driver.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is what this program is for"
)]

use libloading::{Library, Symbol};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::process::ExitCode;

type Status = c_int;
type Device = c_int;
type Context = *mut c_void;
type Module = *mut c_void;
type Function = *mut c_void;
type DevicePointer = u64;

const LIBRARY: &str = "libcuda.so.1";
const NUMBERS: u32 = 1 << 20;
const ROUNDS: u32 = 4_096;

/// Adds 1 to each number, as often as asked. Written by hand against the PTX ISA, which every later card translates.
const KERNEL: &CStr = cr"
.version 6.0
.target sm_50
.address_size 64
.visible .entry count_up(.param .u64 numbers, .param .u32 length, .param .u32 rounds)
{
    .reg .pred %out, %done;
    .reg .b32 %length, %rounds, %block, %width, %thread, %place, %round;
    .reg .b64 %numbers, %offset, %address;
    .reg .f32 %value;
    ld.param.u64 %numbers, [numbers];
    ld.param.u32 %length, [length];
    ld.param.u32 %rounds, [rounds];
    mov.u32 %block, %ctaid.x;
    mov.u32 %width, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %place, %block, %width, %thread;
    setp.ge.u32 %out, %place, %length;
    @%out bra LEAVE;
    cvta.to.global.u64 %numbers, %numbers;
    mul.wide.u32 %offset, %place, 4;
    add.s64 %address, %numbers, %offset;
    ld.global.f32 %value, [%address];
    mov.u32 %round, 0;
AGAIN:
    setp.ge.u32 %done, %round, %rounds;
    @%done bra STORE;
    add.f32 %value, %value, 0f3F800000;
    add.u32 %round, %round, 1;
    bra AGAIN;
STORE:
    st.global.f32 [%address], %value;
LEAVE:
    ret;
}
";

/// The driver's calls that are needed, by the names that `cuda.h` gives the current versions of them.
struct Cuda(Library);

#[derive(Debug)]
enum Fault {
    NoDriver(String),
    Call { name: &'static str, status: Status },
}

impl Cuda {
    fn load() -> Result<Self, Fault> {
        // SAFETY: loading the driver's library runs its initialisers, which is what any CUDA program does.
        let library = unsafe { Library::new(LIBRARY) }.map_err(|error| Fault::NoDriver(error.to_string()))?;
        Ok(Self(library))
    }

    fn symbol<F>(&self, name: &'static str) -> Result<Symbol<'_, F>, Fault> {
        // SAFETY: each caller names the type that cuda.h declares for this function.
        unsafe { self.0.get(name.as_bytes()) }.map_err(|error| Fault::NoDriver(error.to_string()))
    }
}

/// Calls a function of the driver and turns its status into a `Result`.
macro_rules! call {
    ($cuda:expr, $name:literal, ($($type:ty),*), $($argument:expr),*) => {{
        let function = $cuda.symbol::<unsafe extern "C" fn($($type),*) -> Status>($name)?;
        // SAFETY: the arguments are those that cuda.h asks for, and every pointer outlives the call.
        match unsafe { function($($argument),*) } {
            0 => Ok(()),
            status => Err(Fault::Call { name: $name, status }),
        }
    }};
}

fn main() -> ExitCode {
    let mebibytes = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(512);
    let seconds = std::env::args().nth(2).and_then(|text| text.parse().ok()).unwrap_or(20);
    match probe(mebibytes, seconds) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Fault::NoDriver(why)) => {
            eprintln!("no CUDA driver in here: {why}");
            ExitCode::from(5)
        }
        Err(Fault::Call { name, status }) => {
            eprintln!("{name} answered {status}");
            ExitCode::FAILURE
        }
    }
}

fn probe(mebibytes: usize, seconds: u64) -> Result<bool, Fault> {
    let cuda = Cuda::load()?;
    call!(cuda, "cuInit", (c_uint), 0)?;
    let mut count: c_int = 0;
    call!(cuda, "cuDeviceGetCount", (*mut c_int), &raw mut count)?;
    let mut device: Device = 0;
    call!(cuda, "cuDeviceGet", (*mut Device, c_int), &raw mut device, 0)?;
    say(&serde_json::json!({ "cards": count, "name": name_of(&cuda, device)?, "uuid": uuid_of(&cuda, device)? }));

    let mut context: Context = std::ptr::null_mut();
    call!(
        cuda,
        "cuDevicePrimaryCtxRetain",
        (*mut Context, Device),
        &raw mut context,
        device
    )?;
    call!(cuda, "cuCtxSetCurrent", (Context), context)?;
    let mut held: DevicePointer = 0;
    call!(
        cuda,
        "cuMemAlloc_v2",
        (*mut DevicePointer, usize),
        &raw mut held,
        mebibytes << 20
    )?;
    say(&serde_json::json!({ "holds_mib": mebibytes }));

    let right = computes(&cuda, ROUNDS)?;
    say(&serde_json::json!({ "computed": NUMBERS, "right": right }));
    // Busy until the time is over: what yields are measured against. The rounds stay exact in a float.
    let started = std::time::SystemTime::now();
    while started.elapsed().is_ok_and(|elapsed| elapsed.as_secs() < seconds) {
        computes(&cuda, 1 << 20)?;
    }
    say(&serde_json::json!({ "done": true }));
    Ok(right && count == 1)
}

/// Runs the kernel over numbers that start at zero; whether every one of them came out as the number of rounds.
fn computes(cuda: &Cuda, rounds: u32) -> Result<bool, Fault> {
    let bytes = NUMBERS as usize * size_of::<f32>();
    let mut numbers: DevicePointer = 0;
    call!(
        cuda,
        "cuMemAlloc_v2",
        (*mut DevicePointer, usize),
        &raw mut numbers,
        bytes
    )?;
    call!(
        cuda,
        "cuMemsetD32_v2",
        (DevicePointer, c_uint, usize),
        numbers,
        0,
        NUMBERS as usize
    )?;
    let mut module: Module = std::ptr::null_mut();
    call!(
        cuda,
        "cuModuleLoadData",
        (*mut Module, *const c_void),
        &raw mut module,
        KERNEL.as_ptr().cast()
    )?;
    let mut function: Function = std::ptr::null_mut();
    let name = c"count_up".as_ptr();
    call!(
        cuda,
        "cuModuleGetFunction",
        (*mut Function, Module, *const c_char),
        &raw mut function,
        module,
        name
    )?;
    launch(cuda, function, numbers, rounds)?;
    let mut result = vec![0_f32; NUMBERS as usize];
    call!(
        cuda,
        "cuMemcpyDtoH_v2",
        (*mut c_void, DevicePointer, usize),
        result.as_mut_ptr().cast(),
        numbers,
        bytes
    )?;
    call!(cuda, "cuModuleUnload", (Module), module)?;
    call!(cuda, "cuMemFree_v2", (DevicePointer), numbers)?;
    #[expect(clippy::cast_precision_loss, reason = "at most 2^20, which a float holds exactly")]
    let expected = rounds as f32;
    Ok(result.iter().all(|value| (value - expected).abs() < f32::EPSILON))
}

fn launch(cuda: &Cuda, function: Function, mut numbers: DevicePointer, mut rounds: u32) -> Result<(), Fault> {
    const WIDTH: c_uint = 256;
    let mut length = NUMBERS;
    let mut arguments: [*mut c_void; 3] = [
        (&raw mut numbers).cast(),
        (&raw mut length).cast(),
        (&raw mut rounds).cast(),
    ];
    call!(
        cuda,
        "cuLaunchKernel",
        (
            Function,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            *mut c_void,
            *mut *mut c_void,
            *mut *mut c_void
        ),
        function,
        NUMBERS.div_ceil(WIDTH),
        1,
        1,
        WIDTH,
        1,
        1,
        0,
        std::ptr::null_mut(),
        arguments.as_mut_ptr(),
        std::ptr::null_mut()
    )?;
    call!(cuda, "cuCtxSynchronize", (),)
}

fn name_of(cuda: &Cuda, device: Device) -> Result<String, Fault> {
    let mut name = [0 as c_char; 128];
    call!(
        cuda,
        "cuDeviceGetName",
        (*mut c_char, c_int, Device),
        name.as_mut_ptr(),
        128,
        device
    )?;
    // SAFETY: the driver writes a text that ends with a zero within the length that it was told.
    Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}

/// In the form that NVML gives it: `GPU-xxxxxxxx-xxxx-…`.
fn uuid_of(cuda: &Cuda, device: Device) -> Result<String, Fault> {
    let mut bytes = [0_u8; 16];
    call!(cuda, "cuDeviceGetUuid", (*mut u8, Device), bytes.as_mut_ptr(), device)?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!(
        "GPU-{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    ))
}

fn say(value: &serde_json::Value) {
    println!("{value}");
}
