//! One rule: which hosts at which port. Written `example.org`, `example.org:8443`, `*.example.org`, `93.184.216.34`,
//! `[2606:4700::1111]:443`, and by owners `*` for every host of the internet.

use super::DEFAULT_PORT;
use super::host::{Host, HostError, HostName};
use crate::address::is_public;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// Hosts, at one port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostRule {
    hosts: Hosts,
    port: u16,
}

/// Which hosts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hosts {
    /// Every host of the internet: `*`. An owner's word only.
    Any,
    /// One name.
    Name(HostName),
    /// Every name below one, at any depth: `*.example.org`.
    Below(HostName),
    /// One address of the internet.
    Address(IpAddr),
}

/// Why a text is no rule, with the nearest one that is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A form that is not read, and what was probably meant.
    #[error("\"{written}\" is no host: write \"{meant}\"")]
    OtherForm {
        /// As it was written.
        written: String,
        /// As it would be read.
        meant: String,
    },
    /// No port.
    #[error("\"{0}\": the port is a number from 1 to 65535, as in \"example.org:8443\"")]
    Port(String),
    /// A star in the midst of something.
    #[error(
        "\"{0}\": a star stands for whole parts at the left and is followed by two parts at least, as in \"*.example.org\""
    )]
    Star(String),
    /// An address that is not of the internet.
    #[error("{0} is not on the public internet: jobs never reach an owner's network")]
    NotPublic(IpAddr),
    /// Neither name nor address.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl HostRule {
    /// Which hosts.
    pub const fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// At which port.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Whether this host may be reached at this port.
    pub fn allows(&self, host: &Host, port: u16) -> bool {
        self.port == port
            && match (&self.hosts, host) {
                (Hosts::Any, _) => true,
                (Hosts::Name(allowed), Host::Name(name)) => allowed == name,
                (Hosts::Below(suffix), Host::Name(name)) => name.is_below(suffix),
                (Hosts::Address(allowed), Host::Address(address)) => allowed == address,
                (Hosts::Name(_) | Hosts::Below(_), Host::Address(_)) | (Hosts::Address(_), Host::Name(_)) => false,
            }
    }

    /// Whether everything that `other` allows is allowed by this, too.
    pub fn covers(&self, other: &Self) -> bool {
        self.port == other.port
            && match (&self.hosts, &other.hosts) {
                (Hosts::Any, _) => true,
                (Hosts::Below(suffix), Hosts::Name(name)) => name.is_below(suffix),
                (Hosts::Below(suffix), Hosts::Below(name)) => name == suffix || name.is_below(suffix),
                (allowed, asked) => allowed == asked,
            }
    }
}

impl FromStr for HostRule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        if let Ok(address) = text.parse::<Ipv6Addr>()
            && !is_public(address.into())
        {
            return Err(RuleError::NotPublic(address.into()));
        }
        if let Some(meant) = other_form(text) {
            let written = text.to_owned();
            return Err(RuleError::OtherForm { written, meant });
        }
        let (host, port) = split_port(text)?;
        let hosts = if host == "*" {
            Hosts::Any
        } else if let Some(suffix) = host.strip_prefix("*.") {
            match suffix.parse() {
                Ok(Host::Name(name)) => Hosts::Below(name),
                Ok(Host::Address(_)) | Err(HostError::OneLabel(_) | HostError::Malformed(_) | HostError::Empty) => {
                    return Err(RuleError::Star(text.to_owned()));
                }
                Err(error) => return Err(error.into()),
            }
        } else if host.contains('*') {
            return Err(star_elsewhere(text, host));
        } else {
            match host.parse()? {
                Host::Name(name) => Hosts::Name(name),
                Host::Address(address) if is_public(address) => Hosts::Address(address),
                Host::Address(address) => return Err(RuleError::NotPublic(address)),
            }
        };
        Ok(Self { hosts, port })
    }
}

/// What people write in place of a host: an address of the web, blanks around it, an IPv6 address without brackets.
fn other_form(text: &str) -> Option<String> {
    let trimmed = text.trim();
    if trimmed.parse::<Ipv6Addr>().is_ok() {
        return Some(format!("[{trimmed}]"));
    }
    let (scheme, rest) = trimmed.split_once("://").unwrap_or(("", trimmed));
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    let host = host.trim_end_matches(':');
    let named = [("https", "443"), ("http", "80")];
    let port = |name: &str| named.iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
    let meant = match (host.rsplit_once(':'), port(scheme)) {
        (Some((host, word)), _) if port(word).is_some() => {
            format!("{host}:{}", port(word).map_or("443", |(_, number)| number))
        }
        (None, Some((_, "80"))) => format!("{host}:80"),
        _ => host.to_owned(),
    };
    (meant != text && meant.parse::<HostRule>().is_ok()).then_some(meant)
}

fn split_port(text: &str) -> Result<(&str, u16), RuleError> {
    let after_brackets = text.rfind(']').map_or(0, |end| end + 1);
    let Some(colon) = text[after_brackets..].rfind(':') else {
        return Ok((text, DEFAULT_PORT));
    };
    let (host, port) = text.split_at(after_brackets + colon);
    let digits = &port[1..];
    let number = digits
        .bytes()
        .all(|digit| digit.is_ascii_digit())
        .then(|| digits.parse().ok().filter(|port| *port != 0))
        .flatten();
    number
        .map(|port| (host, port))
        .ok_or_else(|| RuleError::Port(text.to_owned()))
}

/// "cdn*.example.org" was probably meant as "*.example.org".
fn star_elsewhere(text: &str, host: &str) -> RuleError {
    let after = host.rsplit_once('*').map_or("", |(_, after)| after);
    let meant = after.split_once('.').map(|(_, suffix)| format!("*.{suffix}"));
    match meant.filter(|meant| meant.parse::<HostRule>().is_ok()) {
        Some(meant) => RuleError::OtherForm {
            written: text.to_owned(),
            meant,
        },
        None => RuleError::Star(text.to_owned()),
    }
}

/// As it would be written; the port only where it is not the usual one.
impl fmt::Display for HostRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hosts {
            Hosts::Any => formatter.write_str("*")?,
            Hosts::Name(name) => name.fmt(formatter)?,
            Hosts::Below(name) => write!(formatter, "*.{name}")?,
            Hosts::Address(IpAddr::V4(address)) => address.fmt(formatter)?,
            Hosts::Address(IpAddr::V6(address)) => write!(formatter, "[{address}]")?,
        }
        if self.port == DEFAULT_PORT {
            Ok(())
        } else {
            write!(formatter, ":{}", self.port)
        }
    }
}

impl Serialize for HostRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HostRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(text: &str) -> HostRule {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn what_people_write_is_read_and_written_back_the_shortest_way() {
        for (text, written) in [
            ("example.org", "example.org"),
            ("Example.ORG.", "example.org"),
            ("example.org:443", "example.org"),
            ("example.org:8443", "example.org:8443"),
            ("*.example.org", "*.example.org"),
            ("*.example.org:80", "*.example.org:80"),
            ("xn--mnchen-3ya.de", "xn--mnchen-3ya.de"),
            ("93.184.216.34", "93.184.216.34"),
            ("[2606:4700::1111]", "[2606:4700::1111]"),
            ("[2606:4700::1111]:853", "[2606:4700::1111]:853"),
            ("*", "*"),
            ("*:80", "*:80"),
        ] {
            assert_eq!(rule(text).to_string(), written);
        }
    }

    #[test]
    fn what_is_no_rule_is_refused_with_the_nearest_one() {
        for (text, says) in [
            ("", "a host is missing"),
            ("https://example.org/models?a=b", "write \"example.org\""),
            ("http://example.org", "write \"example.org:80\""),
            ("https://user:word@example.org:8443/", "write \"example.org:8443\""),
            ("example.org/models", "write \"example.org\""),
            ("example.org:https", "write \"example.org:443\""),
            ("example.org:", "write \"example.org\""),
            (" example.org", "write \"example.org\""),
            ("2606:4700::1111", "write \"[2606:4700::1111]\""),
            ("cdn*.example.org", "write \"*.example.org\""),
            ("a.*.example.org", "write \"*.example.org\""),
            ("*.*.example.org", "as in \"*.example.org\""),
            ("*.org", "followed by two parts"),
            ("*.", "followed by two parts"),
            ("example.*", "a star stands for whole parts"),
            ("*.93.184.216.34", "a star stands for whole parts"),
            ("example.org:0", "from 1 to 65535"),
            ("example.org:65536", "from 1 to 65535"),
            ("example.org:+80", "from 1 to 65535"),
            ("router", "\"router.example.org\""),
            ("localhost", "no name of the internet"),
            ("printer.local", "no name of the internet"),
            ("*.internal", "no name of the internet"),
            ("1.0.0.127.in-addr.arpa", "no name of the internet"),
            ("127.1", "neither a name nor an address"),
            ("2130706433", "neither a name nor an address"),
            ("0x7f.0.0.1", "neither a name nor an address"),
            ("example.0x7f", "neither a name nor an address"),
            ("010.0.0.1", "neither a name nor an address"),
            ("[::1", "neither a name nor an address"),
            ("[fe80::1%eth0]", "neither a name nor an address"),
            ("127.0.0.1", "not on the public internet"),
            ("192.168.1.1:8080", "not on the public internet"),
            ("169.254.169.254:80", "not on the public internet"),
            ("[::ffff:10.0.0.1]", "not on the public internet"),
            ("[fd00::1]", "not on the public internet"),
            ("fe80::1", "not on the public internet"),
            ("münchen.de", "xn--"),
            ("exa mple.org", "no host name"),
            ("example..org", "no host name"),
            ("-a.example.org", "no host name"),
            ("example.org\n", "write \"example.org\""),
            ("exa\0mple.org", "no host name"),
        ] {
            let error = text.parse::<HostRule>().expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error} should say {says}");
        }
    }

    #[test]
    fn a_rule_allows_its_hosts_at_its_port_only() {
        for (text, host, port, expected) in [
            ("example.org", "example.org", 443, true),
            ("example.org", "EXAMPLE.org.", 443, true),
            ("example.org", "example.org", 80, false),
            ("example.org", "www.example.org", 443, false),
            ("example.org", "notexample.org", 443, false),
            ("*.example.org", "www.example.org", 443, true),
            ("*.example.org", "a.b.example.org", 443, true),
            ("*.example.org", "example.org", 443, false),
            ("*.example.org", "notexample.org", 443, false),
            ("93.184.216.34", "93.184.216.34", 443, true),
            ("93.184.216.34", "93.184.216.35", 443, false),
            ("93.184.216.34", "[::ffff:93.184.216.34]", 443, false),
            ("*", "anything.example.org", 443, true),
            ("*", "anything.example.org", 25, false),
        ] {
            let host: Host = host.parse().expect(host);
            assert_eq!(rule(text).allows(&host, port), expected, "{text} and {host}:{port}");
        }
    }

    #[test]
    fn an_owners_rule_covers_what_it_allows() {
        for (allowed, asked, expected) in [
            ("*", "example.org", true),
            ("*", "*.example.org", true),
            ("*", "93.184.216.34", true),
            ("*", "example.org:80", false),
            ("*.example.org", "www.example.org", true),
            ("*.example.org", "*.example.org", true),
            ("*.example.org", "*.www.example.org", true),
            ("*.example.org", "example.org", false),
            ("*.www.example.org", "*.example.org", false),
            ("example.org", "*.example.org", false),
            ("example.org", "example.org", true),
            ("example.org:80", "example.org", false),
        ] {
            assert_eq!(rule(allowed).covers(&rule(asked)), expected, "{allowed} and {asked}");
        }
    }

    fn written_rule() -> impl Strategy<Value = String> {
        let label = "[a-z0-9_]([a-z0-9-]{0,8}[a-z0-9])?";
        let name = (proptest::collection::vec(label, 1..4), "[a-z]{2,6}");
        let name = name.prop_map(|(labels, last)| format!("{}.{last}", labels.join(".")));
        (
            prop_oneof![Just(""), Just("*.")],
            name,
            proptest::option::of(1..=u16::MAX),
        )
            .prop_map(|(star, name, port)| {
                port.map_or_else(|| format!("{star}{name}"), |port| format!("{star}{name}:{port}"))
            })
    }

    proptest! {
        #[test]
        fn any_text_is_a_rule_or_an_error_and_a_rule_reads_back(text in prop_oneof![".{0,40}", "[a-z0-9.:*/@\\[\\]-]{0,40}", written_rule()]) {
            match text.parse::<HostRule>() {
                Ok(rule) => prop_assert_eq!(rule.to_string().parse::<HostRule>().expect("reads back"), rule),
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }

        #[test]
        fn what_an_error_proposes_is_a_rule(text in prop_oneof![" ?https?://[a-z.]{1,20}(:[0-9]{1,6})?/?", "[a-z*.]{1,12}\\.[a-z]{2,5}"]) {
            if let Err(RuleError::OtherForm { meant, .. }) = text.parse::<HostRule>() {
                prop_assert!(meant.parse::<HostRule>().is_ok(), "{} for {}", meant, text);
            }
        }

        /// Covering means allowing: no host is allowed by a covered rule and not by the one that covers it.
        #[test]
        fn a_covering_rule_allows_whatever_the_covered_one_does(allowed in written_rule(), asked in written_rule(), below in "[a-z]{1,3}") {
            let (Ok(allowed), Ok(asked)) = (allowed.parse::<HostRule>(), asked.parse::<HostRule>()) else { return Ok(()) };
            let wider: HostRule = "*".parse().expect("any");
            for (allowed, asked) in [(&allowed, &asked), (&wider, &asked), (&asked, &asked)] {
                let hosts = match asked.hosts() {
                    Hosts::Name(name) => vec![Host::Name(name.clone())],
                    Hosts::Below(name) => vec![format!("{below}.{name}").parse().expect("a name below")],
                    Hosts::Any | Hosts::Address(_) => Vec::new(),
                };
                for host in hosts.iter().filter(|_| allowed.covers(asked)) {
                    prop_assert!(allowed.allows(host, asked.port()), "{} should allow {}", allowed, host);
                }
            }
        }
    }
}
