//! Checks Host and Origin headers against the names of the server, as a protection against DNS rebinding.
//!
//! A web page can make its own name resolve to this server, but it cannot choose the Host and Origin that the browser sends.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::uri::{Authority, Uri};
use axum::http::{HeaderMap, HeaderValue, header};

/// The names of the server.
#[derive(Clone)]
pub(super) struct HostCheck {
    address: IpAddr,
    names: Arc<[String]>,
}

impl HostCheck {
    pub(super) fn new(address: IpAddr, names: Vec<String>) -> Self {
        Self { address: address.to_canonical(), names: names.into() }
    }

    pub(super) fn allow_host(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let mut hosts = headers.get_all(header::HOST).iter();
        let authority = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().ok().and_then(|host| host.parse().ok()),
            (None, _) => uri.authority().cloned(),
            _ => None,
        };
        // An IP address needs no lookup, so it cannot be rebound.
        authority.is_some_and(|authority| {
            self.is_own_name(&authority) || (self.address.is_unspecified() && ip(authority.host()).is_some())
        })
    }

    pub(super) fn allow_origin(&self, origin: &HeaderValue) -> bool {
        let uri = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
        uri.is_some_and(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https"))
                && uri.authority().is_some_and(|authority| self.is_own_name(authority))
        })
    }

    /// Whether the host is a name of the server. The port is ignored, since it does not separate names of one host.
    fn is_own_name(&self, authority: &Authority) -> bool {
        if authority.as_str().contains('@') {
            return false;
        }
        let host = authority.host();
        ip(host).is_some_and(|ip| ip.is_loopback() || ip == self.address)
            || host.eq_ignore_ascii_case("localhost")
            || self.names.iter().any(|name| name.eq_ignore_ascii_case(host))
    }
}

fn ip(host: &str) -> Option<IpAddr> {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_server_are_allowed_as_host() {
        let check = HostCheck::new("10.0.0.5".parse().unwrap(), vec!["sandbox.example".into()]);
        for (host, is_allowed) in [
            ("localhost:8000", true),
            ("LOCALHOST", true),
            ("127.0.0.1:1", true),
            ("[::1]:8000", true),
            ("10.0.0.5:8000", true),
            ("Sandbox.example:443", true),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("10.0.0.6", false),
            ("user@localhost", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            assert_eq!(check.allow_host(&Uri::from_static("/"), &headers), is_allowed, "{host}");
        }
    }

    #[test]
    fn only_names_of_server_are_allowed_as_origin() {
        let check = HostCheck::new("127.0.0.1".parse().unwrap(), vec!["sandbox.example".into()]);
        for (origin, is_allowed) in [
            ("http://localhost:3000", true),
            ("https://sandbox.example", true),
            ("https://evil.example", false),
            ("http://localhost.evil.example", false),
            ("file://localhost", false),
            ("null", false),
        ] {
            assert_eq!(check.allow_origin(&origin.parse().unwrap()), is_allowed, "{origin}");
        }
    }

    #[test]
    fn server_on_all_addresses_allows_any_ip_as_host_but_not_as_origin() {
        let check = HostCheck::new("0.0.0.0".parse().unwrap(), Vec::new());
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("10.0.0.6:8000"));
        assert!(check.allow_host(&Uri::from_static("/"), &headers));
        assert!(!check.allow_origin(&HeaderValue::from_static("http://10.0.0.6:8000")));
    }

    #[test]
    fn duplicate_host_is_rejected() {
        let mut headers = HeaderMap::new();
        headers.append(header::HOST, HeaderValue::from_static("localhost"));
        headers.append(header::HOST, HeaderValue::from_static("evil.example"));
        let check = HostCheck::new("127.0.0.1".parse().unwrap(), Vec::new());
        assert!(!check.allow_host(&Uri::from_static("/"), &headers));
    }
}
