//! A job's way to the hosts that it asked for. Its network namespace stays empty; the one thing in it is a listening socket on
//! loopback that was born there, before the program, and is served from outside (`door`). Whoever serves it (`gateway`) is a
//! CONNECT proxy: it reads one request (`request`), checks the host against what the tenant asked for and the owner allows, resolves
//! the name itself and connects to an address that it has checked (`reach`), counts and slows what passes (`budget`, `tunnel`), and says
//! what it refuses (`refusal`). TLS is never opened. How a job is walled in, and what an owner allows, is decided elsewhere.

mod bucket;
mod budget;
pub(crate) mod door;
mod gateway;
mod own;
mod reach;
mod refusal;
pub mod request;
mod tunnel;

pub use budget::OwnersLine;
pub use door::Door;
pub use gateway::Gateway;
pub use own::Prefix;
pub use reach::{Internet, Uplink};

use std::net::{Ipv4Addr, SocketAddrV4};

/// Where a job finds the proxy, inside.
pub const PROXY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7352);

/// The variables by which ordinary programs find it. What speaks to the job's own loopback goes there directly.
pub fn environment() -> Vec<(String, String)> {
    let proxy = format!("http://{PROXY}");
    let local = "localhost,127.0.0.1,::1".to_owned();
    [
        ("HTTPS_PROXY", &proxy),
        ("HTTP_PROXY", &proxy),
        ("ALL_PROXY", &proxy),
        ("NO_PROXY", &local),
    ]
    .into_iter()
    .flat_map(|(name, value)| {
        [
            (name.to_owned(), value.clone()),
            (name.to_ascii_lowercase(), value.clone()),
        ]
    })
    .collect()
}
