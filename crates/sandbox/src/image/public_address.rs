//! Which addresses a stranger's image reference may make this machine talk to: those of the internet, and not those of the
//! owner's home. A registry chooses where its redirects and its token server point, so every host is asked about here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// A host that must not be talked to; found again in the chain of causes that an HTTP client reports.
#[derive(Debug, thiserror::Error)]
#[error("\"{0}\" is not on the public internet")]
pub(crate) struct NotPublicHost(pub(crate) String);

/// Resolves names and keeps the public addresses only, so that no name can point into the owner's network either.
#[derive(Debug)]
pub(crate) struct PublicResolver;

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let public: Vec<SocketAddr> = found.filter(|address| is_public(address.ip())).collect();
            if public.is_empty() {
                return Err(NotPublicHost(name.as_str().to_owned()).into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

/// Whether an address is reachable from everywhere (IANA special-purpose address registries).
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => embedded_v4(address).map_or_else(|| is_public_v6(address), is_public_v4),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let shared = a == 100 && (64..128).contains(&b);
    let protocol_assignments = (a, b, c) == (192, 0, 0);
    let benchmarks = a == 198 && (b == 18 || b == 19);
    !(a == 0
        || a >= 224
        || shared
        || protocol_assignments
        || benchmarks
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation())
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    // Of the whole space only 2000::/3 is given out; documentation and benchmarks are taken out of it again.
    let [first, second, ..] = address.segments();
    first & 0xe000 == 0x2000 && !(first == 0x2001 && (second == 0xdb8 || second == 2)) && first != 0x3fff
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

    #[test]
    fn only_addresses_of_the_internet_are_public() {
        for (text, expected) in [
            ("93.184.216.34", true),
            ("1.1.1.1", true),
            ("2606:4700::1111", true),
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
            ("::1", false),
            ("::", false),
            ("fe80::1", false),
            ("fd00::1", false),
            ("ff02::1", false),
            ("2001:db8::1", false),
            ("::ffff:192.168.1.1", false),
            ("64:ff9b::c0a8:101", false),
            ("2002:c0a8:101::1", false),
        ] {
            let address: IpAddr = text.parse().expect(text);
            assert_eq!(is_public(address), expected, "{text}");
        }
    }
}
