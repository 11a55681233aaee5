//! Hosts and ports as rules and guests write them.
//!
//! A parsed host has exactly one spelling. Forms that a C library or a server could read differently (octal,
//! hexadecimal or short IPv4, zone ids, IPv4 inside IPv6, percent signs) are refused, so that the proxy connects to the
//! host that it checked. Nothing is resolved here.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::address_class::embedded_v4;

/// Reason why a text is not a host, or not a host with a port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    #[error("the host is empty")]
    Empty,
    #[error("the host is longer than 253 characters")]
    TooLong,
    #[error("a label of the host is empty or longer than 63 characters")]
    Label,
    #[error("the host contains the character '{}'", .0.escape_default())]
    Character(char),
    #[error("the host is a number, but not an IPv4 address in the form 192.0.2.1")]
    Numeric,
    #[error("an IPv6 address must be in brackets, such as [2001:db8::1]")]
    Ipv6,
    #[error("an IPv6 address cannot have a zone id")]
    Zone,
    #[error("the IPv6 address embeds the IPv4 address {0}: write the IPv4 address")]
    Embedded(Ipv4Addr),
    #[error("the port is not a number from 1 to 65535")]
    Port,
    #[error("the port is missing")]
    NoPort,
}

/// A DNS name in lower case, without a trailing dot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DnsName(String);

impl DnsName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether this name is a subdomain of `parent`, at any depth.
    pub(super) fn is_subdomain_of(&self, parent: &Self) -> bool {
        self.0.strip_suffix(&parent.0).is_some_and(|rest| rest.ends_with('.'))
    }
}

impl FromStr for DnsName {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.is_empty() {
            return Err(HostError::Empty);
        }
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if let Some(invalid) = name.chars().find(|&c| !is_allowed(c)) {
            return Err(HostError::Character(invalid));
        }
        if name.len() > 253 {
            return Err(HostError::TooLong);
        }
        if name.split('.').any(|label| label.is_empty() || label.len() > 63) {
            return Err(HostError::Label);
        }
        let name = name.to_ascii_lowercase();
        // inet_aton(3) reads such names as addresses, and so do URL parsers.
        let last = name.rsplit('.').next().unwrap_or_default();
        let is_hexadecimal =
            last.strip_prefix("0x").is_some_and(|digits| digits.chars().all(|c| c.is_ascii_hexdigit()));
        if is_hexadecimal || last.chars().all(|c| c.is_ascii_digit()) {
            return Err(HostError::Numeric);
        }
        Ok(Self(name))
    }
}

/// A DNS name or an IP address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    Name(DnsName),
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

/// A host and a port: the destination of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct HostPort {
    pub(crate) host: Host,
    pub(crate) port: u16,
}

impl HostPort {
    /// Parses `HOST[:PORT]`. Without `default_port` the port is required.
    pub(crate) fn parse(text: &str, default_port: Option<u16>) -> Result<Self, HostError> {
        let (host, port) = split_port(text)?;
        let port = match port {
            Some(port) => parse_port(port).ok_or(HostError::Port)?,
            None => default_port.ok_or(HostError::NoPort)?,
        };
        Ok(Self { host: host.parse()?, port })
    }

    /// Returns the text of a rule that allows this destination: without a port, a rule allows the ports of the web.
    pub(crate) fn rule_text(&self) -> String {
        if matches!(self.port, 80 | 443) { self.host.to_string() } else { self.to_string() }
    }

    /// Returns the host, followed by the port unless it is `default_port`.
    pub(crate) fn authority(&self, default_port: u16) -> String {
        if self.port == default_port { self.host.to_string() } else { self.to_string() }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Splits a text at the colon before its port, if it has one.
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

/// Parses a port from 1 to 65535 that consists of digits only.
pub(super) fn parse_port(text: &str) -> Option<u16> {
    // `u16::from_str` accepts a sign and leading zeros.
    let is_plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_one_spelling() {
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
    fn ambiguous_spellings_are_refused() {
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
    fn ports_are_plain_numbers_from_1_to_65535() {
        let parse = |text| HostPort::parse(text, None).map(|target| target.to_string());
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
