//! Holds memory of a simulated card until it is killed, idle or computing: "somebody's game on the card" for tests. A real
//! process with a real lock, and nothing else.
//!
//! `sela-sim-hold --device PATH --mib N [--spin] [--graphics]`

use sela_nvml_sim::Allocation;
use std::io::Write;
use std::path::PathBuf;

struct Orders {
    device: PathBuf,
    mib: u64,
    spin: bool,
    graphics: bool,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let orders = read_orders(std::env::args().skip(1))?;
    let allocation = Allocation::take(&orders.device, orders.mib)?;
    if orders.graphics {
        allocation.mark_graphics()?;
    }
    // Tests wait for this line before they look at the card.
    writeln!(std::io::stdout(), "holding {} MiB", orders.mib)?;
    let mut turns = 0_u64;
    loop {
        if orders.spin {
            turns = std::hint::black_box(turns.wrapping_add(1));
        } else {
            std::thread::park();
        }
    }
}

fn read_orders(mut words: impl Iterator<Item = String>) -> Result<Orders, String> {
    let usage = "usage: sela-sim-hold --device PATH --mib N [--spin] [--graphics]";
    let (mut device, mut mib, mut spin, mut graphics) = (None, None, false, false);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--device" => device = words.next().map(PathBuf::from),
            "--mib" => mib = words.next().and_then(|number| number.parse().ok()),
            "--spin" => spin = true,
            "--graphics" => graphics = true,
            _ => return Err(format!("unknown word \"{word}\"; {usage}")),
        }
    }
    Ok(Orders {
        device: device.ok_or(usage)?,
        mib: mib.ok_or(usage)?,
        spin,
        graphics,
    })
}
