//! Who uses cards whose drivers tell it in `/proc/PID/fdinfo` (amdgpu, i915, xe): memory on the card, and the share of it from two
//! looks. The format is the kernel's `Documentation/gpu/drm-usage-stats.rst`. Asked by nobody as long as `sela-gpu` lists no
//! such card.

use sela_protocol::units::{BootMs, Bytes, Percent};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// What one process uses of one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardUser {
    /// Its id.
    pub pid: u32,
    /// The card's PCI address ("0000:03:00.0").
    pub card: String,
    /// Memory that it holds on the card.
    pub vram: Bytes,
    /// Its share of the busiest engine since the look before; `None` at the first look.
    pub share: Option<Percent>,
}

/// The users of all such cards, look by look.
#[derive(Debug)]
pub struct CardUsers {
    proc: PathBuf,
    before: BTreeMap<(u32, String), Used>,
    looked: Option<BootMs>,
}

/// What a process has used of a card so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Used {
    vram: u64,
    /// Nanoseconds by engine.
    engines: BTreeMap<String, u64>,
}

/// One open file of a card.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Client {
    card: String,
    id: u64,
    used: Used,
}

impl CardUsers {
    /// Of a `/proc`.
    pub fn of(proc: &Path) -> Self {
        Self {
            proc: proc.to_owned(),
            before: BTreeMap::new(),
            looked: None,
        }
    }

    /// Looks at all processes whose files this user may see.
    ///
    /// # Errors
    /// Where the folder cannot be read.
    pub fn look(&mut self, now: BootMs) -> std::io::Result<Vec<CardUser>> {
        let mut used = BTreeMap::new();
        for entry in std::fs::read_dir(&self.proc)? {
            let path = entry?.path();
            let Some(pid) = path.file_name().and_then(|name| name.to_str()?.parse().ok()) else {
                continue;
            };
            for client in clients(&path) {
                let of_card: &mut Used = used.entry((pid, client.card)).or_default();
                of_card.vram = of_card.vram.saturating_add(client.used.vram);
                for (engine, nanos) in client.used.engines {
                    let of_engine = of_card.engines.entry(engine).or_default();
                    *of_engine = of_engine.saturating_add(nanos);
                }
            }
        }
        let span = self.looked.map(|looked| now.since(looked).0);
        let users = used.iter().map(|((pid, card), now_used)| CardUser {
            pid: *pid,
            card: card.clone(),
            vram: Bytes(now_used.vram),
            share: span
                .filter(|span| *span > 0)
                .map(|span| share(self.before.get(&(*pid, card.clone())), now_used, span)),
        });
        let users = users.collect();
        self.before = used;
        self.looked = Some(now);
        Ok(users)
    }
}

/// The share of the busiest engine over so many milliseconds. One that was not there before has used all of it since.
fn share(before: Option<&Used>, now: &Used, span_ms: u64) -> Percent {
    let busiest = now.engines.iter().map(|(engine, nanos)| {
        let earlier = before
            .and_then(|before| before.engines.get(engine))
            .copied()
            .unwrap_or(0);
        nanos.saturating_sub(earlier)
    });
    let nanos = busiest.max().unwrap_or(0);
    // Nanoseconds of a millisecond's hundredth.
    let percent = nanos / span_ms.saturating_mul(10_000).max(1);
    Percent(u8::try_from(percent.min(100)).unwrap_or(100))
}

/// The cards that a process has open; a client that is open twice (after `dup`, or in another form) once.
fn clients(process: &Path) -> Vec<Client> {
    let mut seen = HashSet::new();
    std::fs::read_dir(process.join("fdinfo"))
        .into_iter()
        .flatten()
        .filter_map(|file| {
            let file = file.ok()?.path();
            let name = file.file_name()?;
            // Most files are no card's: the link says so without reading.
            let target = std::fs::read_link(process.join("fd").join(name)).ok()?;
            target.starts_with("/dev/dri").then_some(())?;
            client(&std::fs::read_to_string(file).ok()?)
        })
        .filter(|client| seen.insert((client.card.clone(), client.id)))
        .collect()
}

/// One file's text; `None` where it is no card's, or has no card of its own.
fn client(text: &str) -> Option<Client> {
    let mut client = Client::default();
    let (mut resident, mut total) = (None, None);
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        match name {
            "drm-pdev" => value.clone_into(&mut client.card),
            "drm-client-id" => client.id = value.parse().ok()?,
            // The newer word first; older kernels have but the last.
            "drm-resident-vram" => resident = size(value),
            "drm-total-vram" | "drm-memory-vram" => total = total.max(size(value)),
            _ => {
                let nanos = value.strip_suffix(" ns").and_then(|nanos| nanos.parse().ok());
                if let (Some(engine), Some(nanos)) = (name.strip_prefix("drm-engine-"), nanos) {
                    client.used.engines.insert(engine.to_owned(), nanos);
                }
            }
        }
    }
    client.used.vram = resident.or(total).unwrap_or(0);
    (!client.card.is_empty()).then_some(client)
}

/// A size as the kernel writes it: bytes, or with a unit.
fn size(text: &str) -> Option<u64> {
    let mut words = text.split_ascii_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    let unit = match words.next() {
        None => 1,
        Some("KiB") => 1 << 10,
        Some("MiB") => 1 << 20,
        Some(_) => return None,
    };
    number.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Proc(tempfile::TempDir);

    impl Proc {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a folder"))
        }

        fn open(&self, pid: u32, file: u32, target: &str, text: &str) {
            let process = self.0.path().join(pid.to_string());
            for folder in ["fd", "fdinfo"] {
                std::fs::create_dir_all(process.join(folder)).expect("made");
            }
            let link = process.join("fd").join(file.to_string());
            // A second look at the same file: only its text is new.
            let _ = std::os::unix::fs::symlink(target, link);
            std::fs::write(process.join("fdinfo").join(file.to_string()), text).expect("written");
        }
    }

    fn amdgpu(client: u32, kib: u64, gfx: u64) -> String {
        format!(
            "pos:\t0\nflags:\t02100002\nmnt_id:\t26\nino:\t1\ndrm-driver:\tamdgpu\ndrm-client-id:\t{client}\n\
             drm-pdev:\t0000:03:00.0\npasid:\t32771\ndrm-memory-vram:\t{kib} KiB\ndrm-memory-gtt: \t9 KiB\n\
             drm-engine-gfx:\t{gfx} ns\ndrm-engine-compute:\t1 ns\n"
        )
    }

    const NODE: &str = "/dev/dri/renderD128";

    #[test]
    fn memory_is_summed_and_the_share_comes_from_two_looks() {
        let system = Proc::new();
        system.open(10, 3, NODE, &amdgpu(1, 1_024, 1_000_000_000));
        // The same client again, and another one of the same process.
        system.open(10, 4, NODE, &amdgpu(1, 1_024, 1_000_000_000));
        system.open(10, 5, NODE, &amdgpu(2, 2_048, 0));
        system.open(11, 3, "/dev/null", &amdgpu(3, 9, 9));
        let mut users = CardUsers::of(system.0.path());
        let user = |share| CardUser {
            pid: 10,
            card: "0000:03:00.0".into(),
            vram: Bytes(3 << 20),
            share,
        };
        assert_eq!(users.look(BootMs(1_000)).expect("read"), [user(None)]);
        system.open(10, 3, NODE, &amdgpu(1, 1_024, 1_500_000_000));
        system.open(10, 4, NODE, &amdgpu(1, 1_024, 1_500_000_000));
        assert_eq!(users.look(BootMs(2_000)).expect("read"), [user(Some(Percent(50)))]);
        assert_eq!(users.look(BootMs(3_000)).expect("read"), [user(Some(Percent(0)))]);
    }

    #[test]
    fn a_process_that_comes_between_two_looks_has_a_share_and_a_counter_that_runs_back_has_none() {
        let system = Proc::new();
        std::fs::create_dir(system.0.path().join("1")).expect("made");
        let mut users = CardUsers::of(system.0.path());
        assert!(users.look(BootMs(1_000)).expect("read").is_empty());
        system.open(12, 3, NODE, &amdgpu(7, 4, 9_000_000_000));
        assert_eq!(users.look(BootMs(2_000)).expect("read")[0].share, Some(Percent(100)));
        system.open(12, 3, NODE, &amdgpu(7, 4, 5));
        assert_eq!(users.look(BootMs(3_000)).expect("read")[0].share, Some(Percent(0)));
    }

    #[test]
    fn what_is_no_cards_file_is_none_and_numbers_that_make_no_sense_are_nothing() {
        assert_eq!(client(""), None);
        assert_eq!(client("pos: 0\ndrm-driver: amdgpu\n"), None);
        let odd =
            client("drm-pdev: 0000:03:00.0\ndrm-memory-vram: many KiB\ndrm-engine-gfx: 3 ms\n").expect("a card's");
        assert_eq!(odd.used, Used::default());
        assert_eq!(size("18446744073709551615 KiB"), None);
        let newer = "drm-pdev: a\ndrm-total-vram: 8 MiB\ndrm-resident-vram: 2 MiB\ndrm-memory-vram: 8192 KiB\n";
        assert_eq!(client(newer).expect("a card's").used.vram, 2 << 20);
    }
}
