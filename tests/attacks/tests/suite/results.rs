//! What a job leaves in /out and /checkpoint, collected by the keeper, and by a naive collector that does what everybody would.

use crate::archives::{contents, holds};
use crate::control::Plain;
use crate::ground::Ground;
use crate::job::Outcome as Went;
use crate::outside::Pair;
use sela_attacks::verdict::{Held, Outcome};
use sela_protocol::sealed::Purpose;
use sela_protocol::units::Millis;
use sela_sandbox::keeper::wire::{Collected, Report};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

async fn run(ground: &Ground, script: &str) -> Went {
    ground.start(&ground.script(script)).finish().await
}

fn refused_for_size(went: &Went) -> Outcome {
    match went.ended().1 {
        Collected::Refused { why } => Err(Held::nothing(why.clone())),
        Collected::Archived { archive } => Ok(format!("an archive of {}", archive.size)),
        Collected::Nothing => panic!("it left nothing: {went:?}"),
    }
}

/// What a collector gets that looks at no size: it stops here only because this is a test.
fn naive_size(file: &Path, limit: u64) -> Outcome {
    let mut taken = std::io::Read::take(File::open(file)?, limit + 1);
    let count = std::io::copy(&mut taken, &mut std::io::sink())?;
    if count > limit {
        Ok(format!("{count} bytes and more to come"))
    } else {
        Err(Held::contained(format!("{count} bytes")))
    }
}

const LIMIT: u64 = 4 << 20;

pub(crate) async fn sparse(ground: &Ground) -> Pair {
    let behind = refused_for_size(
        &run(
            ground,
            "truncate -s 1099511627776 /out/sparse && echo small > /out/small",
        )
        .await,
    );
    let file = ground.fresh("sparse").join("sparse");
    File::create(&file).unwrap().set_len(1 << 40).unwrap();
    Pair::new(naive_size(&file, LIMIT), behind)
}

pub(crate) async fn huge(ground: &Ground) -> Pair {
    let behind = refused_for_size(&run(ground, "dd if=/dev/zero of=/out/big bs=1M count=8").await);
    let file = ground.fresh("huge").join("big");
    fs::write(&file, vec![0; 8 << 20]).unwrap();
    Pair::new(naive_size(&file, LIMIT), behind)
}

pub(crate) async fn deep(ground: &Ground) -> Pair {
    const DEEP: usize = 100;
    let script = "i=0; while [ $i -lt 100 ]; do mkdir d && cd d || break; i=$((i+1)); done; echo x > leaf";
    let went = run(ground, &format!("cd /out; {script}")).await;
    let archive = went.archive().unwrap();
    let deepest = |names: &mut dyn Iterator<Item = &String>| names.map(|name| name.matches("d").count()).max();
    let found = contents(archive, Purpose::Output);
    let depth = deepest(&mut found.keys()).unwrap();
    let behind = if depth < DEEP && archive.skipped > 0 {
        Err(Held::contained(format!("{depth} folders, the rest was left out")))
    } else {
        Ok(format!("{depth} folders"))
    };
    let folder = ground.fresh("deep");
    Plain::shell(&format!("cd {}; {script}", folder.display())).finish();
    let mut depth = 0;
    let mut place = folder;
    while place.join("d").is_dir() {
        place.push("d");
        depth += 1;
    }
    let without = if depth == DEEP {
        Ok(format!("{depth} folders"))
    } else {
        Err(Held::contained(format!("{depth} folders")))
    };
    Pair::new(without, behind)
}

pub(crate) async fn pipes(ground: &Ground) -> Pair {
    let went = run(ground, "mkfifo /out/pipe; echo good > /out/result").await;
    let archive = went.archive().unwrap();
    let names: Vec<String> = contents(archive, Purpose::Output).into_keys().collect();
    let behind = if names == ["result"] && archive.skipped == 1 {
        Err(Held::nothing("left out, and nobody was held"))
    } else {
        Ok(format!("{names:?}"))
    };
    let pipe = ground.fresh("pipes").join("pipe");
    Plain::shell(&format!("mkfifo {}", pipe.display())).finish();
    let (opened, hears) = mpsc::channel();
    let naive = pipe.clone();
    let reader = std::thread::spawn(move || opened.send(fs::read(naive).is_ok()));
    let without = match hears.recv_timeout(Duration::from_millis(300)) {
        Ok(_) => Err(Held::nothing("it did not hold")),
        Err(_) => Ok("whoever opens it is held".to_owned()),
    };
    // Lets the reader go.
    drop(File::options().write(true).open(&pipe).unwrap());
    drop(reader.join());
    Pair::new(without, behind)
}

pub(crate) async fn link(ground: &Ground) -> Pair {
    let (secret, folder) = (ground.secret_file.display(), ground.owner_folder.display());
    let went = run(
        ground,
        &format!("ln -s {secret} /out/link; ln -s {folder} /out/folder; ln -s / /out/root; echo mine > /out/result"),
    )
    .await;
    let archive = went.archive().unwrap();
    let found = contents(archive, Purpose::Output);
    let behind = if found.values().any(|bytes| holds(bytes, &ground.secret())) {
        Ok("the secret is among the results".to_owned())
    } else {
        Err(Held::nothing(format!(
            "{:?}, {} left out",
            found.keys(),
            archive.skipped
        )))
    };
    let naive = ground.fresh("link").join("link");
    symlink(&ground.secret_file, &naive).unwrap();
    Pair::new(secret_read(ground, &naive), behind)
}

/// A collector that reads what it finds at a path.
fn secret_read(ground: &Ground, path: &Path) -> Outcome {
    if holds(&fs::read(path)?, &ground.secret()) {
        Ok("it read the secret".to_owned())
    } else {
        Err(Held::nothing("it read something else"))
    }
}

pub(crate) async fn swap(ground: &Ground) -> Pair {
    let secret = ground.secret_file.to_str().unwrap();
    let mut plan = ground.plan(&["/bin/sela-probe", "do", "swap", "/checkpoint", secret]);
    plan.checkpoint_every_ms = Some(Millis(20));
    plan.limits.wall_ms = Millis(1_500);
    let mut job = ground.start(&plan);
    let (mut taken, mut missed, mut stolen) = (0, 0, false);
    loop {
        let report = job
            .until(|report| {
                matches!(
                    report,
                    Report::CheckpointReady { .. } | Report::CheckpointMissed { .. } | Report::Ended { .. }
                )
            })
            .await;
        let archive = match report {
            Report::CheckpointReady { archive } => archive,
            Report::Ended { checkpoint, .. } => match checkpoint {
                Collected::Archived { archive } => archive,
                Collected::Nothing | Collected::Refused { .. } => break,
            },
            _ => {
                missed += 1;
                continue;
            }
        };
        taken += 1;
        let found = contents(&archive, Purpose::Checkpoint);
        stolen |= found.values().any(|bytes| holds(bytes, &ground.secret()));
        fs::remove_file(&archive.path).unwrap();
        if job.seen.iter().any(|report| matches!(report, Report::Ended { .. })) {
            break;
        }
    }
    drop(job.finish().await);
    let behind = if stolen {
        Ok("a checkpoint holds the owner's secret".to_owned())
    } else {
        Err(Held::nothing(format!(
            "{taken} checkpoints without it, {missed} given up"
        )))
    };
    let folder = ground.fresh("swap");
    let mut plain = Plain::probe(&["do", "swap", folder.to_str().unwrap(), secret]);
    plain.line();
    let mut without = Err(Held::nothing("it never met the link"));
    for _ in 0..100_000 {
        without = secret_read(ground, &folder.join("result"));
        if without.is_ok() {
            break;
        }
    }
    Pair::new(without, behind)
}

pub(crate) async fn on_disk(ground: &Ground) -> Pair {
    let went = run(ground, &format!("echo {} > /out/result", ground.word)).await;
    let bytes = fs::read(&went.archive().unwrap().path).unwrap();
    let behind = if holds(&bytes, &ground.word) {
        Ok("they lie there as they are".to_owned())
    } else {
        Err(Held::nothing(format!("{} bytes, sealed", bytes.len())))
    };
    let plain = ground.fresh("on-disk").join("result");
    fs::write(&plain, &ground.word).unwrap();
    let without = if holds(&fs::read(plain).unwrap(), &ground.word) {
        Ok("a plain file is read".to_owned())
    } else {
        Err(Held::nothing("it is not"))
    };
    Pair::new(without, behind)
}
