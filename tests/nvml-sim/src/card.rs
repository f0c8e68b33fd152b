//! A simulated card at work: what its sensors answer now, from the kernel's lock table, the holders' processor time and the
//! time since the last look, and what a fault makes of the answer. Nothing here is set by a test but limits and faults. The C
//! interface around it is `exports`.

use crate::faults::{CardFaults, Sensor};
use crate::lab::Lab;
use crate::node::{self, Holder};
use crate::plan::CardPlan;
use crate::processor;
use crate::state::{self, HolderRecord, Record};
use nvml_wrapper_sys::bindings as c;
use std::time::Duration;

/// What a call answers, or the NVML error that it fails with.
pub(crate) type Answer<T> = Result<T, c::nvmlReturn_t>;

/// A window shorter than this is not measured again: scheduling would make it noise.
const SHORTEST_WINDOW_NANOS: u64 = 20_000_000;

/// What worked in a window longer than this says little about now: the card is then looked at twice, `LOOK_AGAIN` apart.
const LONGEST_WINDOW_NANOS: u64 = 2_500_000_000;

/// Between the two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(25);

/// `/proc` tells when a process started in steps of 10 ms; used processor time is counted from there.
const START_STEP_NANOS: u64 = 10_000_000;

/// One call on one card.
pub(crate) struct Card<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) plan: &'a CardPlan,
    pub(crate) index: usize,
    pub(crate) boot_id: &'a str,
    pub(crate) faults: CardFaults,
    /// What this process last saw, kept where the folder cannot be written.
    pub(crate) remembered: &'a mut Option<Record>,
}

/// Memory of a card, bytes; `total = reserved + free + used`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

const MIB: u64 = 1 << 20;

impl Card<'_> {
    /// Fails where the card is lost.
    pub(crate) fn answers(&self) -> Answer<()> {
        if self.faults.lost {
            return Err(c::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST);
        }
        Ok(())
    }

    /// Core temperature, °C.
    pub(crate) fn temperature(&mut self) -> Answer<u32> {
        self.sensor(Sensor::Temperature)?;
        if let Some(celsius) = self.faults.temperature_reads {
            return Ok(celsius);
        }
        let record = self.look()?;
        Ok(record
            .stuck_celsius
            .unwrap_or_else(|| whole(self.plan.thermal.celsius(&record.thermal))))
    }

    /// Power drawn over the last window, milliwatts.
    pub(crate) fn power_mw(&mut self) -> Answer<u32> {
        self.sensor(Sensor::Power)?;
        if self.faults.power_reads_all_ones {
            return Ok(u32::MAX);
        }
        Ok(whole(self.look()?.watts * 1000.0))
    }

    /// Energy since this boot, millijoules; idle until the card was first looked at.
    pub(crate) fn energy_mj(&mut self) -> Answer<u64> {
        self.sensor(Sensor::Power)?;
        let joules = self.look()?.joules;
        Ok(u64::from(whole(joules)) * 1000)
    }

    /// Share of the last window in which the card worked, 0 to 100.
    pub(crate) fn utilisation(&mut self) -> Answer<u32> {
        self.sensor(Sensor::Utilisation)?;
        Ok(whole(self.look()?.busy * 100.0))
    }

    /// Process id and share, 0 to 100, of each holder over the last window, and when that ended (µs).
    pub(crate) fn process_utilisation(&mut self) -> Answer<(Vec<(u32, u32)>, u64)> {
        self.sensor(Sensor::Utilisation)?;
        let record = self.look()?;
        let shares = record
            .holders
            .iter()
            .map(|holder| (holder.pid, whole(holder.busy * 100.0)))
            .collect();
        Ok((shares, record.boot_nanos / 1000))
    }

    /// Memory as the kernel's lock table has it at this moment.
    pub(crate) fn memory(&mut self) -> Answer<Memory> {
        self.sensor(Sensor::Memory)?;
        let used: u64 = self.list_holders()?.iter().map(|holder| holder.mib).sum();
        let allocatable = self.plan.allocatable_mib();
        let used = used.min(allocatable);
        Ok(Memory {
            total: self.plan.vram_mib * MIB,
            reserved: self.plan.driver_reserved_mib * MIB,
            free: (allocatable - used) * MIB,
            used: used * MIB,
        })
    }

    /// Process id and bytes of each holder at this moment: of those that draw, or of those that only compute.
    pub(crate) fn processes(&mut self, graphics: bool) -> Answer<Vec<(u32, u64)>> {
        self.sensor(Sensor::Processes)?;
        let hidden = self.faults.process_memory_hidden;
        Ok(self
            .list_holders()?
            .into_iter()
            .filter(|holder| holder.graphics == graphics)
            .map(|holder| (holder.pid, if hidden { u64::MAX } else { holder.mib * MIB }))
            .collect())
    }

    /// Fan, share of its full speed: still below 50 °C, full from 83 °C, as GeForce cards have it.
    pub(crate) fn fan_percent(&mut self) -> Answer<u32> {
        self.sensor(Sensor::Fan)?;
        let record = self.look()?;
        let celsius = self.plan.thermal.celsius(&record.thermal);
        if celsius < 50.0 {
            return Ok(0);
        }
        Ok(whole((30.0 + (celsius - 50.0) / 33.0 * 70.0).min(100.0)))
    }

    /// Core clock, MHz. Dynamic power goes with clock times voltage squared, and voltage with the clock: a power limit
    /// therefore lowers the clock by its cube root.
    pub(crate) fn core_clock_mhz(&mut self) -> Answer<u32> {
        self.sensor(Sensor::Clock)?;
        let record = self.look()?;
        let clocks = &self.plan.clocks;
        if record.busy < 0.01 {
            return Ok(clocks.core_idle_mhz);
        }
        let idle = watts(self.plan.power.idle_mw);
        let asked = self.demand_watts(record.busy) - idle;
        let given = (record.watts - idle).max(0.0);
        let slowed = f64::from(clocks.core_boost_mhz) * (given / asked).min(1.0).cbrt();
        Ok(whole(slowed).max(clocks.core_idle_mhz))
    }

    /// Whether the limit holds the card back now.
    pub(crate) fn power_capped(&mut self) -> Answer<bool> {
        self.sensor(Sensor::Clock)?;
        let record = self.look()?;
        Ok(self.demand_watts(record.busy) > watts(self.limit_in_force()))
    }

    /// The limit that is set, milliwatts.
    pub(crate) fn limit_mw(&self) -> Answer<u32> {
        self.answers()?;
        self.limits_supported()?;
        Ok(self.limit_in_force())
    }

    /// Fails where the card has no settable limit.
    pub(crate) fn limits_supported(&self) -> Answer<()> {
        if self.faults.limit_unsupported {
            return Err(c::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
        }
        Ok(())
    }

    /// Sets the limit, milliwatts.
    pub(crate) fn set_limit_mw(&mut self, limit_mw: u32) -> Answer<()> {
        self.answers()?;
        self.limits_supported()?;
        let power = &self.plan.power;
        if self.faults.limit_refused {
            return Err(c::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION);
        }
        if limit_mw < power.limit_least_mw || limit_mw > power.limit_most_mw {
            return Err(c::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
        }
        if self.faults.limit_ignored {
            return Ok(());
        }
        // What was drawn until now was drawn under the old limit.
        self.look()?;
        state::write_limit(self.lab, self.plan, self.boot_id, limit_mw)
            .map_err(|_| c::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION)
    }

    fn limit_in_force(&self) -> u32 {
        state::read_limit(self.lab, self.plan, self.boot_id)
    }

    fn sensor(&self, sensor: Sensor) -> Answer<()> {
        self.answers()?;
        if self.faults.failing.contains(&sensor) {
            return Err(c::nvmlReturn_enum_NVML_ERROR_UNKNOWN);
        }
        Ok(())
    }

    fn list_holders(&self) -> Answer<Vec<Holder>> {
        node::holders(&self.lab.device_node(self.index)).map_err(|_| c::nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM)
    }

    /// What the card would draw without a limit.
    fn demand_watts(&self, busy: f64) -> f64 {
        let power = &self.plan.power;
        watts(power.idle_mw) + busy * (watts(power.full_mw) - watts(power.idle_mw))
    }

    /// Brings the card to now.
    fn look(&mut self) -> Answer<Record> {
        let now = processor::boot_nanos();
        let age = |record: &Record| now.saturating_sub(record.boot_nanos);
        let remembered = self.remembered.take();
        if let Some(fresh) = remembered.clone().filter(|record| age(record) < SHORTEST_WINDOW_NANOS) {
            *self.remembered = remembered;
            return Ok(fresh);
        }
        let written = state::read(self.lab, self.plan, self.boot_id);
        let last = [written, remembered]
            .into_iter()
            .flatten()
            .max_by_key(|record| record.boot_nanos)
            .unwrap_or_else(|| self.cold());
        let record = match age(&last) {
            fresh if fresh < SHORTEST_WINDOW_NANOS => last,
            recent if recent <= LONGEST_WINDOW_NANOS => self.measure(&last, now)?,
            _ => self.look_twice(&last, now)?,
        };
        // A folder that cannot be written leaves this process with what it remembers.
        let _ = state::write(self.lab, self.plan, &record);
        *self.remembered = Some(record.clone());
        Ok(record)
    }

    /// What was done over a long gap, and then what is done now.
    fn look_twice(&self, last: &Record, now: u64) -> Answer<Record> {
        let over_the_gap = self.measure(last, now)?;
        if over_the_gap.holders.is_empty() {
            return Ok(Record {
                busy: 0.0,
                ..over_the_gap
            });
        }
        std::thread::sleep(LOOK_AGAIN);
        self.measure(&over_the_gap, processor::boot_nanos())
    }

    /// A card that nobody looked at since boot: idle until now.
    fn cold(&self) -> Record {
        let idle = watts(self.plan.power.idle_mw);
        Record {
            boot_id: self.boot_id.to_owned(),
            boot_nanos: 0,
            thermal: self.plan.thermal.settled(idle),
            busy: 0.0,
            watts: idle,
            joules: 0.0,
            holders: Vec::new(),
            stuck_celsius: None,
        }
    }

    /// The card at `now`, from the processor time that its holders used since `last`.
    fn measure(&self, last: &Record, now: u64) -> Answer<Record> {
        let gap = now.saturating_sub(last.boot_nanos);
        let holders: Vec<HolderRecord> = self
            .list_holders()?
            .iter()
            .filter_map(|holder| measure_holder(holder.pid, last, gap))
            .collect();
        let busy = holders.iter().map(|holder| holder.busy).sum::<f64>().min(1.0);
        let drawn = self.demand_watts(busy).min(watts(self.limit_in_force()));
        let thermal = self.plan.thermal.step(&last.thermal, drawn, seconds(gap));
        let stuck_celsius = self.faults.temperature_stuck.then(|| {
            last.stuck_celsius
                .unwrap_or_else(|| whole(self.plan.thermal.celsius(&last.thermal)))
        });
        Ok(Record {
            boot_id: last.boot_id.clone(),
            boot_nanos: now,
            thermal,
            busy,
            watts: drawn,
            joules: last.joules + drawn * seconds(gap),
            holders,
            stuck_celsius,
        })
    }
}

/// A holder's share of the window of `gap` nanoseconds after `last`. One that `last` does not know counts from its start if it
/// started in the window; else from now, since nobody knows how much of its time lies before.
fn measure_holder(pid: u32, last: &Record, gap: u64) -> Option<HolderRecord> {
    let used_nanos = processor::used_nanos(pid)?;
    let started_nanos = processor::started_nanos(pid)?;
    let before = last
        .holders
        .iter()
        .find(|known| known.pid == pid && known.started_nanos == started_nanos)
        .map(|known| known.used_nanos);
    let started_since = started_nanos.saturating_add(START_STEP_NANOS) >= last.boot_nanos;
    let worked = match before {
        Some(before) => used_nanos.saturating_sub(before),
        None if started_since => used_nanos,
        None => 0,
    };
    let busy = if gap == 0 {
        0.0
    } else {
        (seconds(worked) / seconds(gap)).min(1.0)
    };
    Some(HolderRecord {
        pid,
        started_nanos,
        used_nanos,
        busy,
    })
}

fn watts(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / 1000.0
}

fn seconds(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64()
}

/// Rounded to the nearest whole number that NVML can say; never below 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to the range before"
)]
fn whole(value: f64) -> u32 {
    value.round().clamp(0.0, f64::from(u32::MAX - 1)) as u32
}
