//! Binary `sela`: the provider agent (`sela agent run`), the guard of one job (`sela job-keeper`, started by the agent
//! only) and the command line for owners and tenants. What there is to decide is decided in `sela-core`.

#![expect(dead_code, unused_imports, reason = "being built")]
mod jobs;
mod keys;
mod market;
mod paths;
mod run;
mod settings;
mod store;

fn main() {}
