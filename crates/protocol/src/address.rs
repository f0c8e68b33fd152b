//! Which addresses are those of the internet, and not those of somebody's home. Asked wherever a stranger chooses whom this
//! machine talks to: registries of images, and the hosts that a job may reach. Pure; nothing is resolved here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address is reachable from everywhere (IANA special-purpose address registries). An IPv6 address that stands for
/// an IPv4 address (mapped, NAT64, 6to4) is as public as the address that it stands for.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => embedded_v4(address).map_or_else(|| is_public_v6(address), is_public_v4),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let shared = a == 100 && (64..128).contains(&b);
    let protocol_assignments = (a, b, c) == (192, 0, 0);
    let relays_of_6to4 = (a, b, c) == (192, 88, 99);
    let benchmarks = a == 198 && (b == 18 || b == 19);
    !(a == 0
        || a >= 224
        || shared
        || protocol_assignments
        || relays_of_6to4
        || benchmarks
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation())
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    // Of the whole space only 2000::/3 is given out; documentation, and 2001::/23 with its tunnels (Teredo hides an IPv4 address)
    // and benchmarks, are taken out of it again.
    let [first, second, ..] = address.segments();
    let documentation = (first == 0x2001 && second == 0xdb8) || first == 0x3fff;
    let protocol_assignments = first == 0x2001 && second < 0x200;
    first & 0xe000 == 0x2000 && !documentation && !protocol_assignments
}

/// The IPv4 address that a translated or tunnelled IPv6 address stands for.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let from = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(from(high, low)),
        [0x2002, high, low, ..] => Some(from(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_addresses_of_the_internet_are_public() {
        for (text, expected) in [
            ("93.184.216.34", true),
            ("1.1.1.1", true),
            ("2606:4700::1111", true),
            ("2001:4860:4860::8888", true),
            ("::ffff:1.1.1.1", true),
            ("64:ff9b::101:101", true),
            ("127.0.0.1", false),
            ("10.1.2.3", false),
            ("172.16.0.1", false),
            ("192.168.1.1", false),
            ("169.254.169.254", false),
            ("100.64.0.1", false),
            ("0.0.0.0", false),
            ("255.255.255.255", false),
            ("224.0.0.1", false),
            ("198.18.0.1", false),
            ("192.88.99.1", false),
            ("::1", false),
            ("::", false),
            ("::10.0.0.1", false),
            ("fe80::1", false),
            ("fd00::1", false),
            ("ff02::1", false),
            ("2001::1", false),
            ("2001:db8::1", false),
            ("64:ff9b:1::1", false),
            ("::ffff:192.168.1.1", false),
            ("64:ff9b::c0a8:101", false),
            ("2002:c0a8:101::1", false),
        ] {
            let address: IpAddr = text.parse().expect(text);
            assert_eq!(is_public(address), expected, "{text}");
        }
    }

    /// Ranges of IPv4 that are nobody's of the internet: first address and length of the prefix.
    const NOT_PUBLIC_V4: [([u8; 4], u32); 17] = [
        ([0, 0, 0, 0], 8),
        ([10, 0, 0, 0], 8),
        ([100, 64, 0, 0], 10),
        ([127, 0, 0, 0], 8),
        ([169, 254, 0, 0], 16),
        ([172, 16, 0, 0], 12),
        ([192, 0, 0, 0], 24),
        ([192, 0, 2, 0], 24),
        ([192, 88, 99, 0], 24),
        ([192, 168, 0, 0], 16),
        ([198, 18, 0, 0], 15),
        ([198, 51, 100, 0], 24),
        ([203, 0, 113, 0], 24),
        ([224, 0, 0, 0], 4),
        ([233, 252, 0, 0], 24),
        ([240, 0, 0, 0], 4),
        ([255, 255, 255, 255], 32),
    ];

    /// The same for IPv6: first two segments and length of the prefix.
    const NOT_PUBLIC_V6: [([u16; 2], u32); 9] = [
        ([0, 0], 96),
        ([0x64, 0], 24),
        ([0x100, 0], 64),
        ([0x2001, 0], 23),
        ([0x2001, 0xdb8], 32),
        ([0x3fff, 0], 20),
        ([0x5f00, 0], 16),
        ([0xfc00, 0], 7),
        ([0xfe80, 0], 9),
    ];

    fn in_v4((first, length): ([u8; 4], u32), host: u32) -> Ipv4Addr {
        let mask = u32::MAX.checked_shr(length).unwrap_or(0);
        Ipv4Addr::from_bits(Ipv4Addr::from(first).to_bits() | (host & mask))
    }

    /// All ways to write an IPv4 address as an IPv6 address that somebody on the way turns back into it.
    fn disguises(address: Ipv4Addr, rest: u64) -> [Ipv6Addr; 3] {
        let bits = u128::from(address.to_bits());
        [
            address.to_ipv6_mapped(),
            Ipv6Addr::from_bits((0x0064_ff9b_u128 << 96) | bits),
            Ipv6Addr::from_bits((0x2002_u128 << 112) | (bits << 80) | u128::from(rest)),
        ]
    }

    proptest! {
        #[test]
        fn no_address_of_a_special_range_is_public_in_any_disguise(range in prop::sample::select(&NOT_PUBLIC_V4[..]), host: u32, rest: u64) {
            let address = in_v4(range, host);
            prop_assert!(!is_public(address.into()), "{address}");
            for disguise in disguises(address, rest) {
                prop_assert!(!is_public(disguise.into()), "{disguise} is {address}");
            }
        }

        #[test]
        fn no_special_address_of_ipv6_is_public(([high, low], length) in prop::sample::select(&NOT_PUBLIC_V6[..]), host: u128) {
            let first = (u128::from(high) << 112) | (u128::from(low) << 96);
            let address = Ipv6Addr::from_bits(first | (host & u128::MAX.checked_shr(length).unwrap_or(0)));
            // NAT64 lies within 64::/24 and is as public as what it stands for.
            prop_assume!(address.segments()[..6] != [0x64, 0xff9b, 0, 0, 0, 0]);
            prop_assume!(address.segments()[..6] != [0, 0, 0, 0, 0, 0xffff]);
            prop_assert!(!is_public(address.into()), "{address}");
        }

        /// The standard library's own knowledge of special ranges, where it has any, agrees.
        #[test]
        fn what_the_standard_library_calls_special_is_not_public(bits: u32) {
            let address = Ipv4Addr::from_bits(bits);
            let special = address.is_private() || address.is_loopback() || address.is_link_local()
                || address.is_broadcast() || address.is_documentation() || address.is_multicast() || address.is_unspecified();
            prop_assert!(!(special && is_public(address.into())), "{address}");
        }

        #[test]
        fn a_disguise_is_as_public_as_what_it_stands_for(bits: u32, rest: u64) {
            let address = Ipv4Addr::from_bits(bits);
            for disguise in disguises(address, rest) {
                prop_assert_eq!(is_public(disguise.into()), is_public(address.into()));
            }
        }
    }
}
