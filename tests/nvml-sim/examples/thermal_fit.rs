//! Fits the thermal model to recorded cards and prints the lags and their errors, as `docs/measurements/thermal-model.md`
//! quotes them. `SELA_SHARED_DATA` names the folder that holds `telemetry/`.

#![expect(clippy::print_stdout, reason = "printing the measurement is its purpose")]

use sela_nvml_sim::{fit, plan, thermal::Lag, traces};
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(
        std::env::var_os("SELA_SHARED_DATA")
            .ok_or("set SELA_SHARED_DATA to the folder that holds telemetry/rtx3090_step.csv")?,
    )
    .join("telemetry");
    let read = |name: &str| std::fs::read_to_string(folder.join(name));
    let step = traces::read_benchmark_csv(&read("rtx3090_step.csv")?)?;
    let square = traces::read_benchmark_csv(&read("rtx3090_square.csv")?)?;
    let days = traces::read_node_report(&read("salad_node_a.txt")?)?;
    println!("rtx3090_step.csv: {} samples over {:.1} s", step.len(), length(&step));
    println!(
        "rtx3090_square.csv: {} samples over {:.1} s",
        square.len(),
        length(&square)
    );
    println!(
        "salad_node_a.txt: {} samples over {:.1} h",
        days.len(),
        length(&days) / 3600.0
    );

    let (fast, slow) =
        fit::fit(&step, &days, plan::ASSUMED_ROOM_CELSIUS).ok_or("the recordings do not determine the lags")?;
    println!("fitted now (room assumed {} °C):", plan::ASSUMED_ROOM_CELSIUS);
    print_lag("die", fast.lags[0]);
    print_lag("spreader", fast.lags[1]);
    print_lag("heatsink", slow.lag);
    println!("  fast RMSE on rtx3090_step.csv: {:.3} °C", fast.rmse_celsius);
    println!(
        "  slow RMSE on salad_node_a.txt: {:.3} °C (heatsink {:.1} K warm at the first sample)",
        slow.rmse_celsius, slow.initial_rise_kelvin
    );

    println!("constants that the driver uses:");
    for (name, lag) in ["die", "spreader", "heatsink"].iter().zip(plan::RTX_3090_LAGS) {
        print_lag(name, lag);
    }
    let excerpt = traces::read_benchmark_csv(include_str!("../tests/traces/rtx3090_step_excerpt.csv"))?;
    for (name, samples) in [
        ("rtx3090_step_excerpt.csv", &excerpt),
        ("rtx3090_step.csv", &step),
        ("rtx3090_square.csv (not fitted to)", &square),
    ] {
        let (rmse, base) = fit::error_with(samples, plan::RTX_3090_LAGS).ok_or("empty recording")?;
        println!("  RMSE on {name}: {rmse:.3} °C (base {base:.1} °C)");
    }
    Ok(())
}

fn length(samples: &[fit::Sample]) -> f64 {
    match (samples.first(), samples.last()) {
        (Some(first), Some(last)) => last.seconds - first.seconds,
        _ => 0.0,
    }
}

fn print_lag(name: &str, lag: Lag) {
    println!("  {name}: {:.5} K/W, {:.3} s", lag.kelvin_per_watt, lag.seconds);
}
