//! The watchers against real peers: X servers, Wayland compositors, mocks of D-Bus services on real buses, the simulated driver
//! with real holders, pads made of pipes. Each waits for an event with a long time-out; none makes a point about time.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "a test starts its peers itself and looks for one kind of input among all; what is skipped is said"
)]

mod buses;
mod cards;
mod login;
mod pads_and_programs;
mod peers;
mod wayland;
mod x11;

/// Each of these mostly waits for a silence to last: side by side they take as long as the longest.
#[tokio::test]
async fn hands_are_seen_and_a_source_that_hangs_lies_or_dies_is_a_reason_and_never_idleness() {
    tokio::join!(
        x11::a_moving_pointer_is_seen_and_an_x_server_that_hangs_or_dies_is_a_reason(),
        wayland::a_key_typed_under_wayland_is_seen_and_a_compositor_that_hangs_or_dies_is_a_reason(),
        wayland::under_gnome_activity_is_seen_on_the_session_bus_and_a_compositor_that_hangs_or_dies_is_a_reason(),
        login::a_logind_that_hangs_lies_or_dies_is_a_reason_and_never_idleness(),
    );
}
