//! Images that must not run: each is refused in words that say what to mend, on its own account, and nothing of it is left.

use anyhow::{Context, ensure};
use sela_oci_images::Compression;
use sela_oci_images::hostile::{self, ESCAPED, HostileImage, bomb};
use sela_protocol::lease::EndCause;
use sela_protocol::tenant::JobState;
use sela_tests::{Plan, Settings, World, in_a_world, test_job, write_image};
use std::path::Path;

/// How a hostile image is told from an honest one in the message: one word that it must say.
const WORDS: [(&str, &str); 9] = [
    ("layer_altered", "digest"),
    ("other_architecture", "the image is for arm64, this node is"),
    ("other_system", "the image is for windows/"),
    ("parent_path", ".."),
    ("absolute_path", "absolute"),
    ("hard_link_absolute", "link"),
    ("hard_link_parent", "link"),
    ("entrypoint_missing", "/bin/not-there"),
    ("no_entrypoint", "entrypoint"),
];

/// The one that runs, because what it attempts does nothing: layers are unpacked apart and laid over each other.
const HARMLESS: &str = "symlink_in_lower_layer";

#[test]
fn every_hostile_image_is_refused_on_its_own_account_and_leaves_nothing() {
    in_a_world(&Plan::default(), |world| {
        for hostile in hostile::all()? {
            refuse(world, &hostile)
                .with_context(|| format!("the image that {} ({})", hostile.attempts, hostile.name))?;
        }
        // The card is as good as before.
        let job = world.submit(&["--steps", "1"])?;
        world.tenant.wait_until_done(job).map(drop)
    });
}

fn refuse(world: &World, hostile: &HostileImage) -> anyhow::Result<()> {
    let mut image = hostile.image.clone();
    if let (Some(first), false) = (image.layers.first_mut(), image.faults.is_empty()) {
        // A layer of its own: one that the cache has from the images before is not read again.
        *first = first.clone().file(&format!("of-{}", hostile.name), 0o644, hostile.name);
    }
    let image = write_image(&image, &world.folder().join("tenant").join(hostile.name))?;
    world.tenant.store(&image)?;
    let job = world.tenant.submit(&test_job(image.blob, &[]))?;
    let view = world.tenant.wait_for_end(job)?;
    match &view.state {
        JobState::Done if hostile.name == HARMLESS => {}
        JobState::Failed {
            cause: EndCause::JobFault { .. },
            message,
        } => {
            if let Some((_, word)) = WORDS.iter().find(|(name, _)| *name == hostile.name) {
                ensure!(
                    message.to_lowercase().contains(word),
                    "does not say \"{word}\": {message}"
                );
            }
        }
        JobState::Done
        | JobState::Failed { .. }
        | JobState::Queued { .. }
        | JobState::Leased { .. }
        | JobState::Cancelled
        | JobState::Unknown => anyhow::bail!("ended as {:?}", view.state),
    }
    ensure!(view.leases.len() == 1, "was tried {} times", view.leases.len());
    for place in ["/tmp", "/", "/etc"]
        .iter()
        .map(Path::new)
        .chain([world.folder(), &world.owner.data()])
    {
        ensure!(
            !place.join(ESCAPED).exists(),
            "wrote {ESCAPED} into {}",
            place.display()
        );
    }
    world.wait_until_nothing_is_left(&[view.leases[0].lease])
}

#[test]
fn an_image_over_the_disk_budget_is_refused_with_the_budget_and_leaves_nothing() {
    let budget = 8 << 20;
    let plan = Plan {
        settings: Settings {
            disk_budget: budget,
            ..Settings::default()
        },
        ..Plan::default()
    };
    in_a_world(&plan, |world| {
        let image = write_image(&bomb(64 << 20, Compression::Gzip)?, &world.folder().join("tenant/bomb"))?;
        world.tenant.store(&image)?;
        let job = world.tenant.submit(&test_job(image.blob, &[]))?;
        let view = world.tenant.wait(job, "the node to give the job back", |view| {
            view.leases.iter().any(|lease| lease.end.is_some())
        })?;
        let end = view.leases[0].end.clone().context("it has ended")?;
        let (EndCause::NodeFault { message } | EndCause::JobFault { message }) = &end else {
            anyhow::bail!("ended by {end:?}")
        };
        ensure!(message.contains("budget"), "does not name the budget: {message}");
        world
            .tenant
            .rest
            .post_text(&format!("/v1/jobs/{job}/cancel"), "")?
            .good()?;
        world.tenant.wait_for_end(job)?;
        let kept = size_of(&world.owner.data().join("images"));
        ensure!(kept < budget, "{kept} bytes of it stayed on the disk");
        Ok(())
    });
}

fn size_of(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => size_of(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}
