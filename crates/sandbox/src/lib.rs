//! Runs one job in isolation, and its keeper. What a job is worth, who wants the card and whether anybody is at home is
//! unknown here. `image` turns a digest into unpacked layers, `native` puts a program into them behind namespaces, limits and
//! a seccomp list, `docker` has a container engine do the same,
//! `keeper` is the process that guards one job, `sweep` removes what a crash left behind, `checkup` tries the walls on an owner's machine.

#![cfg(target_os = "linux")]

pub mod card;
pub mod cdi;
pub mod cgroup;
pub mod checkup;
pub mod docker;
mod error;
mod first_process;
pub mod ids;
pub mod image;
pub mod keeper;
mod native;
pub mod network;
pub mod probe;
pub mod rootless;
mod scratch;
pub mod sweep;
mod wipe;
