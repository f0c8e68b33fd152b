//! A CUDA program that needs no CUDA toolkit: it loads the driver's library at run time and hands it a kernel as PTX. Run
//! as a job on a real card by `tests/gpu/run.sh`; prints one JSON object a line. Exit codes: 0 right, 1 wrong, 2 no such word, 5 no driver.
//!
//! `MIB SECONDS`: which cards it sees, whether the card computes right, then memory held and the card kept busy.
//! `queue KERNELS`: so many long kernels are queued at once, then waited for. `fill BYTE`, `look BYTE`, `again BYTE`: see `memory`.
//! `nodes`: the nodes of cards in /dev, and which of those that are not there can be opened all the same.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is what this program is for"
)]

mod cuda;
mod memory;

use cuda::{Context, Cuda, Device, DevicePointer, Fault, call};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::process::ExitCode;

type Module = *mut c_void;
type Function = *mut c_void;

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

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match carry_out(&words) {
        Some(Ok(true)) => ExitCode::SUCCESS,
        Some(Ok(false)) => ExitCode::FAILURE,
        Some(Err(Fault::NoDriver(why))) => {
            eprintln!("no CUDA driver in here: {why}");
            ExitCode::from(5)
        }
        Some(Err(Fault::Call { name, status })) => {
            eprintln!("{name} answered {status}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!("words: [MIB [SECONDS]] | queue KERNELS | fill BYTE | look BYTE | again BYTE | nodes");
            ExitCode::from(2)
        }
    }
}

/// `None` where the words mean nothing.
fn carry_out(words: &[&str]) -> Option<Result<bool, Fault>> {
    let number = |text: &str| text.parse().ok();
    Some(match words {
        [] => probe(512, 20),
        ["nodes"] => Ok(nodes()),
        ["queue", kernels] => queue(kernels.parse().ok()?),
        ["fill", byte] => memory::fill(byte.parse().ok()?),
        ["look", byte] => memory::look(byte.parse().ok()?),
        ["again", byte] => memory::again(byte.parse().ok()?),
        [mebibytes] => probe(number(mebibytes)?, 20),
        [mebibytes, seconds] => probe(number(mebibytes)?, seconds.parse().ok()?),
        _ => return None,
    })
}

/// Nodes of cards that are here, and those of other cards and of displays that can be opened though they are not listed.
fn nodes() -> bool {
    let names = |folder: &str, of: fn(&str) -> bool| -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let named = entries.map(|entry| entry.path().display().to_string());
        let mut found: Vec<String> = named.filter(|path| of(path)).collect();
        found.sort();
        found
    };
    let mut listed = names("/dev", |path| path.starts_with("/dev/nvidia"));
    listed.extend(names("/dev/dri", |_| true));
    listed.extend(names("/dev/nvidia-caps", |_| true));
    let others = (0..16).map(|number| format!("/dev/nvidia{number}"));
    let others = others.chain(["/dev/nvidia-modeset", "/dev/dxg", "/dev/kfd"].map(str::to_owned));
    let opened: Vec<String> = others
        .filter(|path| !listed.contains(path) && std::fs::File::open(path).is_ok())
        .collect();
    let right = opened.is_empty();
    say(&serde_json::json!({ "nodes": listed, "opened_besides": opened }));
    right
}

/// Has the card work for a while with the processor idle: what goes on when only the processor is stopped.
fn queue(kernels: u32) -> Result<bool, Fault> {
    let cuda = Cuda::load()?;
    let device = memory::begin(&cuda)?;
    let _context = memory::context(&cuda, device)?;
    let mut numbers: DevicePointer = 0;
    let bytes = NUMBERS as usize * size_of::<f32>();
    call!(
        cuda,
        "cuMemAlloc_v2",
        (*mut DevicePointer, usize),
        &raw mut numbers,
        bytes
    )?;
    let function = kernel(&cuda)?.1;
    for _ in 0..kernels {
        begin_launch(&cuda, function, numbers, 1 << 22)?;
    }
    say(&serde_json::json!({ "queued": kernels }));
    call!(cuda, "cuCtxSynchronize", (),)?;
    say(&serde_json::json!({ "queue_done": true }));
    Ok(true)
}

fn probe(mebibytes: usize, seconds: u64) -> Result<bool, Fault> {
    let cuda = Cuda::load()?;
    let device = memory::begin(&cuda)?;
    let mut count: c_int = 0;
    call!(cuda, "cuDeviceGetCount", (*mut c_int), &raw mut count)?;
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
    let (module, function) = kernel(cuda)?;
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

/// The kernel, translated for this card, and the module that it is in.
fn kernel(cuda: &Cuda) -> Result<(Module, Function), Fault> {
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
    Ok((module, function))
}

fn launch(cuda: &Cuda, function: Function, numbers: DevicePointer, rounds: u32) -> Result<(), Fault> {
    begin_launch(cuda, function, numbers, rounds)?;
    call!(cuda, "cuCtxSynchronize", (),)
}

/// Queues the kernel and returns.
fn begin_launch(cuda: &Cuda, function: Function, mut numbers: DevicePointer, mut rounds: u32) -> Result<(), Fault> {
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
    )
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
