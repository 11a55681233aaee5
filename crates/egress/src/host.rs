//! Hosts and ports as a rule or a guest may write them.
//!
//! Every host has one spelling here. Whatever a C library or a server might read differently than
//! this module does (octal, hexadecimal or short IPv4, zone ids, IPv4 inside IPv6, percent signs)
//! is refused, so that what was checked is what is connected to. Nothing is resolved.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::address::embedded_v4;

/// Why a text is not a host, or not a host with a port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    #[error("the host is empty")]
    Empty,
    #[error("the host is longer than 253 characters")]
    TooLong,
    #[error("the host has a label that is empty or longer than 63 characters")]
    Label,
    #[error("the host contains {}", .0.escape_default())]
    Character(char),
    #[error("the host is a number, but not an IPv4 address in the form 192.0.2.1")]
    Numeric,
    #[error("an IPv6 address is written in brackets, as in [2001:db8::1]")]
    Ipv6,
    #[error("an IPv6 address cannot have a zone id")]
    Zone,
    #[error("the IPv6 address carries {0}: write the IPv4 address itself")]
    Embedded(Ipv4Addr),
    #[error("the port is not a number from 1 to 65535")]
    Port,
    #[error("the port is missing")]
    NoPort,
}

/// A DNS name: lower case, without a trailing dot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Name(String);

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is a subdomain of `parent`, at any depth.
    pub(super) fn is_below(&self, parent: &Self) -> bool {
        self.0.strip_suffix(&parent.0).is_some_and(|rest| rest.ends_with('.'))
    }
}

impl FromStr for Name {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.is_empty() {
            return Err(HostError::Empty);
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if let Some(odd) = name.chars().find(|&c| !allowed(c)) {
            return Err(HostError::Character(odd));
        }
        if name.len() > 253 {
            return Err(HostError::TooLong);
        }
        if name.split('.').any(|l| l.is_empty() || l.len() > 63) {
            return Err(HostError::Label);
        }
        let name = name.to_ascii_lowercase();
        // inet_aton reads such names as addresses, and a URL parser must
        let last = name.rsplit('.').next().unwrap_or_default();
        let hexadecimal = last.strip_prefix("0x").is_some_and(|digits| digits.chars().all(|c| c.is_ascii_hexdigit()));
        if hexadecimal || last.chars().all(|c| c.is_ascii_digit()) {
            return Err(HostError::Numeric);
        }
        Ok(Self(name))
    }
}

/// A name or an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    Name(Name),
    Address(IpAddr),
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or(HostError::Ipv6)?;
            if inner.contains('%') {
                return Err(HostError::Zone);
            }
            let address: Ipv6Addr = inner.parse().map_err(|_| HostError::Ipv6)?;
            if let Some(v4) = embedded_v4(address) {
                return Err(HostError::Embedded(v4));
            }
            return Ok(Self::Address(address.into()));
        }
        if text.contains(':') {
            return Err(HostError::Ipv6);
        }
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Ok(Self::Address(address.into()));
        }
        text.parse().map(Self::Name)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name.as_str()),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    pub host: Host,
    pub port: u16,
}

impl Target {
    /// Reads `HOST[:PORT]`; without a default the port must be there.
    pub fn parse(text: &str, default_port: Option<u16>) -> Result<Self, HostError> {
        let (host, port) = split_port(text)?;
        let port = match port {
            Some(port) => parse_port(port).ok_or(HostError::Port)?,
            None => default_port.ok_or(HostError::NoPort)?,
        };
        Ok(Self { host: host.parse()?, port })
    }

    /// The host, with the port unless it is the default one.
    pub(super) fn authority(&self, default_port: u16) -> String {
        if self.port == default_port { self.host.to_string() } else { self.to_string() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Divides a text at the colon before its port, if there is one.
pub(super) fn split_port(text: &str) -> Result<(&str, Option<&str>), HostError> {
    if !text.starts_with('[') {
        return match text.split_once(':') {
            Some((_, port)) if port.contains(':') => Err(HostError::Ipv6),
            Some((host, port)) => Ok((host, Some(port))),
            None => Ok((text, None)),
        };
    }
    let end = text.find(']').ok_or(HostError::Ipv6)? + 1;
    match &text[end..] {
        "" => Ok((text, None)),
        rest => {
            let port = rest.strip_prefix(':').ok_or(HostError::Ipv6)?;
            Ok((&text[..end], Some(port)))
        }
    }
}

/// Reads a port from 1 to 65535, written in digits alone.
pub(super) fn parse_port(text: &str) -> Option<u16> {
    // `u16::from_str` takes a sign and leading zeros
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling() {
        for (text, expected) in [
            ("API.Example.COM", "api.example.com"),
            ("example.com.", "example.com"),
            ("_dmarc.example.com", "_dmarc.example.com"),
            ("127.0.0.1", "127.0.0.1"),
            ("[2001:DB8:0::1]", "[2001:db8::1]"),
            ("0x7f.example.com", "0x7f.example.com"),
        ] {
            assert_eq!(text.parse::<Host>().unwrap().to_string(), expected);
        }
    }

    #[test]
    fn odd_spellings_are_refused() {
        use HostError as E;
        let long = format!("{}com", "a.".repeat(126));
        for (text, expected) in [
            ("", E::Empty),
            (".", E::Empty),
            ("a..b", E::Label),
            ("example.com..", E::Label),
            (".example.com", E::Label),
            (long.as_str(), E::TooLong),
            ("ex\0ample.com", E::Character('\0')),
            ("evil.com\0.example.com", E::Character('\0')),
            ("a b", E::Character(' ')),
            ("user@example.com", E::Character('@')),
            ("%6c%6fcalhost", E::Character('%')),
            ("bücher.example", E::Character('ü')),
            ("127。0。0。1", E::Character('。')),
            ("127.0.0.1.", E::Numeric),
            ("127.1", E::Numeric),
            ("0x7f.1", E::Numeric),
            ("0x7f000001", E::Numeric),
            ("0X7F.0.0.0x1", E::Numeric),
            ("2130706433", E::Numeric),
            ("017700000001", E::Numeric),
            ("0177.0.0.1", E::Numeric),
            ("2852039166", E::Numeric),
            ("0xa9fea9fe", E::Numeric),
            ("169.254.43518", E::Numeric),
            ("169.254.169.254.", E::Numeric),
            ("0251.0376.0251.0376", E::Numeric),
            ("256.0.0.1", E::Numeric),
            ("1.2.3.4.5", E::Numeric),
            ("::1", E::Ipv6),
            ("[::1", E::Ipv6),
            ("[fe80::1%eth0]", E::Zone),
            ("[127.0.0.1]", E::Ipv6),
            ("[::ffff:127.0.0.1]", E::Embedded(Ipv4Addr::LOCALHOST)),
            ("[::ffff:a9fe:a9fe]", E::Embedded(Ipv4Addr::new(169, 254, 169, 254))),
            ("[64:ff9b::a9fe:a9fe]", E::Embedded(Ipv4Addr::new(169, 254, 169, 254))),
        ] {
            assert_eq!(text.parse::<Host>(), Err(expected), "{text:?}");
        }
    }

    #[test]
    fn ports() {
        let parse = |text| Target::parse(text, None).map(|t| t.to_string());
        assert_eq!(parse("a:1").unwrap(), "a:1");
        assert_eq!(parse("[::1]:65535").unwrap(), "[::1]:65535");
        assert_eq!(parse("a"), Err(HostError::NoPort));
        for text in ["a:", "a:0", "a:65536", "a:+80", "a:080", "a:8 0", "[::1]:"] {
            assert_eq!(parse(text), Err(HostError::Port), "{text}");
        }
        assert_eq!(parse("a:1:2"), Err(HostError::Ipv6));
        assert_eq!(parse("[::1]80"), Err(HostError::Ipv6));
    }
}
