//! The watchers against real peers: X servers, Wayland compositors, mocks of D-Bus services on real buses, the simulated driver
//! with real holders, pads made of pipes. Each waits for an event with a long time-out; none makes a point about time.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "a test starts its peers itself and looks for one kind of input among all; what is skipped is said"
)]

mod cards;
mod login;
mod peers;
mod services;
mod things;
mod wayland;
mod x11;
