//! The black-box harness: lays out a lab, starts the real `sela` and `sela-exchange`, talks to them through their real
//! interfaces only (command line, REST, WebSocket, files that people write) and looks from outside at what they do and leave:
//! processes, cgroups, mounts, locks, money. No decision of the product is repeated here but what the design promises.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what a test measured or skipped is read where it ran"
)]

mod books;
mod clock;
mod display;
mod exchange;
mod gate;
mod images;
mod owner;
mod part;
mod programs;
mod registry;
mod rest;
pub mod soak;
mod stranger;
mod tenant;
mod traces;
mod waiting;
mod work;
mod world;

pub use books::check_the_books;
pub use clock::boot_us;
pub use display::Display;
pub use exchange::{Exchange, FUNDS};
pub use gate::{Gate, Held};
pub use images::{
    TestImage, expected_result, image_of_a_program, image_of_a_script, image_of_the_test_job, write_image,
};
pub use owner::{Owner, Settings};
pub use part::Part;
pub use programs::{Ran, program, run};
pub use registry::Registry;
pub use rest::{Reply, Rest};
pub use stranger::{Caller, Node, key_from};
pub use tenant::{PRICE, Tenant, test_job};
pub use traces::{Traces, cgroup_of, job_pids, keeper_of, number_in};
pub use waiting::{PATIENCE, wait_for};
pub use world::{Plan, World, in_a_world};
