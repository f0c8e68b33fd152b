//! A host: a name of the internet, or an address. Nothing is resolved here.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Names below these lead into the owner's own network, or nowhere (RFC 6761, 6762, 8375, 9476 and what routers make up).
const NOT_OF_THE_INTERNET: [&str; 11] = [
    "alt",
    "arpa",
    "corp",
    "home",
    "internal",
    "invalid",
    "lan",
    "local",
    "localdomain",
    "localhost",
    "onion",
];

/// Longest name, and longest part of one (RFC 1035).
const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// A name of the internet: ASCII in small letters, two labels at least, no dot at its end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(String);

/// Whom to connect to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// Whoever has this name.
    Name(HostName),
    /// Whoever has this address, public or not.
    Address(IpAddr),
}

/// Why a text is no host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// There is nothing.
    #[error("a host is missing: write \"example.org\"")]
    Empty,
    /// A name of other letters than ASCII.
    #[error("\"{0}\" has letters that host names do not have: write its ASCII form, which starts with xn--")]
    NotAscii(String),
    /// A character that no name has, or a part that is empty, too long, or begins or ends with a hyphen.
    #[error(
        "\"{0}\" is no host name: parts of letters, digits and hyphens with dots between them, as in \"example.org\""
    )]
    Malformed(String),
    /// A name without a dot.
    #[error("\"{0}\" is a name of a local network: write a name of the internet, as in \"{0}.example.org\"")]
    OneLabel(String),
    /// A name that only a home or an office knows.
    #[error("\"{0}\" is no name of the internet: jobs never reach a local network")]
    NotOfTheInternet(String),
    /// An address in a form that programs read differently.
    #[error("\"{0}\" is neither a name nor an address: write an address as in \"93.184.216.34\"")]
    OddAddress(String),
}

impl HostName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is a name below `suffix`, at any depth; not the suffix itself.
    pub fn is_below(&self, suffix: &Self) -> bool {
        self.0
            .strip_suffix(suffix.as_str())
            .is_some_and(|rest| rest.ends_with('.') && rest.len() > 1)
    }
}

impl FromStr for HostName {
    type Err = HostError;

    /// Capitals become small letters, and one dot at the end is taken off.
    fn from_str(text: &str) -> Result<Self, HostError> {
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if name.is_empty() {
            return Err(HostError::Empty);
        }
        if !name.is_ascii() {
            return Err(HostError::NotAscii(text.to_owned()));
        }
        if name.len() > LONGEST_NAME || !name.split('.').all(is_label) {
            return Err(HostError::Malformed(text.to_owned()));
        }
        let Some((_, last)) = name.rsplit_once('.') else {
            if NOT_OF_THE_INTERNET.contains(&name.as_str()) {
                return Err(HostError::NotOfTheInternet(name));
            }
            return if is_number(&name) {
                Err(HostError::OddAddress(name))
            } else {
                Err(HostError::OneLabel(name))
            };
        };
        if is_number(last) {
            return Err(HostError::OddAddress(name));
        }
        if NOT_OF_THE_INTERNET.contains(&last) {
            return Err(HostError::NotOfTheInternet(name));
        }
        Ok(Self(name))
    }
}

fn is_label(label: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    (1..=LONGEST_LABEL).contains(&label.len())
        && label.bytes().all(known)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// A last part that makes other programs read the whole as an address: 127.1, 0x7f.0.0.1.
fn is_number(label: &str) -> bool {
    let hexadecimal = label
        .strip_prefix("0x")
        .is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
    hexadecimal || label.bytes().all(|digit| digit.is_ascii_digit())
}

impl FromStr for Host {
    type Err = HostError;

    /// A name, an IPv4 address in four decimal parts, or an IPv6 address in brackets.
    fn from_str(text: &str) -> Result<Self, HostError> {
        if let Some(inner) = text.strip_prefix('[') {
            let address = inner.strip_suffix(']').and_then(|inner| inner.parse::<Ipv6Addr>().ok());
            return address
                .map(|address| Self::Address(address.into()))
                .ok_or_else(|| HostError::OddAddress(text.to_owned()));
        }
        match text.parse::<Ipv4Addr>() {
            Ok(address) => Ok(Self::Address(address.into())),
            Err(_) => text.parse().map(Self::Name),
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(formatter),
            Self::Address(IpAddr::V4(address)) => address.fmt(formatter),
            Self::Address(IpAddr::V6(address)) => write!(formatter, "[{address}]"),
        }
    }
}
