//! What only a job and its tenant may read: seen by both, and found nowhere else while the job runs and after it, on the node's disk, at
//! the exchange, in a log or on a command line.

use anyhow::{Context, ensure};
use sela_tests::{Plan, in_a_world, test_job};
use std::path::{Path, PathBuf};

/// What the job gets as a secret and leaves as its result and its checkpoint: one text to look for.
const SECRET: &str = "confidential-2f6d8a51-and-nobody-else-reads-it";

/// A job that shows what it got only in `/out` and `/checkpoint`, in clear, several times over, and stays for a while.
const SCRIPT: &str = "for n in 1 2 3 4 5 6 7 8; do cat /run/secrets/TOKEN; echo; done > /checkpoint/part; cp /checkpoint/part /out/result; \
                      mv /checkpoint/part /checkpoint/state; echo saved; sleep 4";

/// The files in or below a folder that hold this, but for those in `tenant`. Files may go while this looks.
fn files_with(folder: &Path, needle: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && path.file_name().is_some_and(|name| name != "tenant") {
            found.extend(files_with(&path, needle));
        } else if kind.is_file() {
            let bytes = std::fs::read(&path).unwrap_or_default();
            if bytes.windows(needle.len()).any(|part| part == needle.as_bytes()) {
                found.push(path);
            }
        }
    }
    found
}

/// Programs whose command line or environment holds this: everybody on the machine can read the first.
fn programs_with(needle: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        for file in ["cmdline", "environ"] {
            let text = std::fs::read(entry.path().join(file)).unwrap_or_default();
            if String::from_utf8_lossy(&text).contains(needle) {
                found.push(format!("{}/{file}", entry.path().display()));
            }
        }
    }
    found
}

#[test]
fn secrets_and_results_are_seen_by_the_job_and_its_tenant_and_found_nowhere_else() {
    in_a_world(&Plan::default(), |world| {
        let tenant = world.folder().join("tenant");
        let image = sela_tests::image_of_a_script(SCRIPT, &tenant.join("secretive"))?;
        world.tenant.store(&image)?;
        let (spec, secret) = (tenant.join("job.json"), tenant.join("token"));
        std::fs::write(&spec, test_job(image.blob, &[]).to_string())?;
        std::fs::write(&secret, SECRET)?;
        let spec = spec.to_string_lossy().into_owned();
        let on_the_line = format!("TOKEN={SECRET}");
        world
            .as_tenant(&["job", "submit", &spec, "--secret", &on_the_line])?
            .refused(2, &["--secret-file NAME=FILE", "command line"])?;
        let from_file = format!("TOKEN={}", secret.display());
        let submitted = world.as_tenant(&["job", "submit", &spec, "--secret-file", &from_file])?;
        let job = submitted.good()?.trim().parse()?;
        // While it runs, and has left a checkpoint at the exchange.
        world.tenant.wait_until_it_says(job, "saved")?;
        world.tenant.wait_for_a_checkpoint(job)?;
        let found = files_with(world.folder(), SECRET);
        ensure!(found.is_empty(), "lies in the clear while the job runs: {found:?}");
        let found = programs_with(SECRET);
        ensure!(found.is_empty(), "can be read of programs: {found:?}");
        let view = world.tenant.wait_until_done(job)?;
        ensure!(!format!("{view:?}").contains(SECRET), "the job's view holds it");
        // The tenant's client opens what the job left; a checkpoint opens too, and as nothing but a checkpoint.
        let output = tenant.join("output");
        world
            .as_tenant(&["job", "output", &job.to_string(), &output.to_string_lossy()])?
            .good()?;
        let expected = format!("{SECRET}\n").repeat(8);
        ensure!(
            std::fs::read_to_string(output.join("result"))? == expected,
            "another result"
        );
        let checkpoint = view.checkpoint.context("a checkpoint")?;
        let state = world.tenant.checkpoint(job, checkpoint)?;
        ensure!(
            state.get("state").is_some_and(|state| *state == expected.as_bytes()),
            "another state"
        );
        // And after it: on the node, at the exchange, in the logs of both. The search does find what lies open.
        let found = files_with(world.folder(), SECRET);
        ensure!(found.is_empty(), "lies in the clear after the job: {found:?}");
        let open = world.folder().join("logs/control");
        std::fs::write(&open, format!("before {SECRET} after"))?;
        ensure!(
            files_with(world.folder(), SECRET) == [open.clone()],
            "the search finds nothing"
        );
        std::fs::remove_file(open)?;
        Ok(())
    });
}
