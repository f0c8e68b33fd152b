//! The networks that this machine itself is in. A home with IPv6 gives each of its machines an address of the internet, and a server
//! has one of its own: public as they are, they are the owner's, and no stranger's to reach from within.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What providers give to one home at most: its other networks are within, too.
const HOME_V6: u32 = 56;
/// An interface that claims more than this of IPv4 is no network but a tunnel: then its address alone counts.
const WIDEST_V4: u32 = 8;

/// All addresses that begin like one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    length: u32,
}

impl Prefix {
    /// The addresses that agree with `address` in its first `length` bits.
    pub const fn new(address: IpAddr, length: u32) -> Self {
        Self { address, length }
    }

    /// The network around a machine's own address: of an interface with this prefix length.
    fn around(address: IpAddr, length: u32) -> Self {
        match address {
            IpAddr::V4(_) if length < WIDEST_V4 => Self::new(address, 32),
            IpAddr::V4(_) => Self::new(address, length),
            IpAddr::V6(_) => Self::new(address, length.min(HOME_V6)),
        }
    }

    /// Whether an address is one of them.
    pub fn holds(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let mask = !u32::MAX.checked_shr(self.length).unwrap_or(0);
                (own.to_bits() ^ other.to_bits()) & mask == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let mask = !u128::MAX.checked_shr(self.length).unwrap_or(0);
                (own.to_bits() ^ other.to_bits()) & mask == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

/// The networks of all interfaces, as they are now.
///
/// # Errors
/// Where the system does not tell.
pub(super) fn networks() -> io::Result<Vec<Prefix>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs writes the head of a list, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: `next` is null or an element of the list, which lives until it is freed.
    while let Some(interface) = unsafe { next.as_ref() } {
        next = interface.ifa_next;
        // SAFETY: both are null or point to socket addresses of the list.
        let (address, mask) = unsafe { (address_of(interface.ifa_addr), address_of(interface.ifa_netmask)) };
        if let Some(address) = address {
            found.push(Prefix::around(address, mask.map_or(u32::MAX, ones)));
        }
    }
    // SAFETY: the list came from getifaddrs, and nothing of it is used after this.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

fn ones(mask: IpAddr) -> u32 {
    match mask {
        IpAddr::V4(mask) => mask.to_bits().leading_ones(),
        IpAddr::V6(mask) => mask.to_bits().leading_ones(),
    }
}

/// # Safety
/// Null, or a socket address as long as its family says.
unsafe fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as promised by the caller; read unaligned, so that nothing more is asked of the list.
    unsafe {
        match i32::from(address.as_ref()?.sa_family) {
            libc::AF_INET => {
                let address = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let address = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    #[test]
    fn a_network_holds_its_machines_and_an_ipv6_home_all_that_a_provider_gives_it() {
        for (own, length, other, expected) in [
            ("8.8.4.4", 24, "8.8.4.200", true),
            ("8.8.4.4", 24, "8.8.5.4", false),
            ("8.8.4.4", 32, "8.8.4.4", true),
            ("8.8.4.4", 0, "9.9.9.9", false),
            ("8.8.4.4", 0, "8.8.4.4", true),
            ("2600:1:2:3400::1", 64, "2600:1:2:34ff::9", true),
            ("2600:1:2:3400::1", 64, "2600:1:2:3500::9", false),
            ("2600:1:2:3400::1", 128, "2600:1:2:34ff::9", true),
            ("2600:1:2:3400::1", 32, "2600:1:9::", true),
            ("8.8.4.4", 24, "::ffff:8.8.4.4", false),
        ] {
            let prefix = Prefix::around(address(own), length);
            assert_eq!(prefix.holds(address(other)), expected, "{own}/{length} and {other}");
        }
    }

    #[test]
    fn this_machines_own_loopback_is_found() {
        let networks = networks().expect("the system tells");
        assert!(
            networks.iter().any(|prefix| prefix.holds(address("127.0.0.1"))),
            "{networks:?}"
        );
    }
}
