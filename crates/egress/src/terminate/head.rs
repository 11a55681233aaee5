//! Fields of requests and responses: which are passed on, and which host a request names.

use http::header::{CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, TE, UPGRADE};
use http::request::Parts;
use http::{Method, Version};

use crate::rules::HostPort;
use crate::secrets::Replacements;

/// Fields for one connection only (RFC 9110, section 7.6.1), and the announcement of other servers for the same host.
const NOT_FORWARDED: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "proxy-authenticate",
    "trailer",
    "transfer-encoding",
    "http2-settings",
    "alt-svc",
];

/// Removes the fields that must not be passed on. Those of an upgrade stay if `is_upgrade`.
pub(super) fn remove_connection_fields(headers: &mut HeaderMap, is_upgrade: bool) {
    let options: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|option| HeaderName::try_from(option.trim()).ok())
        .collect();
    let accepts_trailers = headers.get(TE).is_some_and(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
    for name in options {
        if !(is_upgrade && name == UPGRADE) {
            headers.remove(name);
        }
    }
    for name in NOT_FORWARDED {
        headers.remove(name);
    }
    headers.remove(TE);
    // Only the proxy itself may send these.
    let own: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("x-ringfence-")).cloned().collect();
    for name in own {
        headers.remove(name);
    }
    if is_upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    } else {
        headers.remove(UPGRADE);
    }
    if accepts_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Returns whether the sender closes the connection after this message.
pub(super) fn closes_connection(headers: &HeaderMap, version: Version) -> bool {
    let has_option = |wanted: &str| {
        let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|option| option.trim().eq_ignore_ascii_case(wanted))
    };
    has_option("close") || version == Version::HTTP_10 && !has_option("keep-alive")
}

/// Returns whether a request asks for a WebSocket.
pub(super) fn requests_websocket(parts: &Parts) -> bool {
    let mut protocols = parts.headers.get_all(UPGRADE).iter();
    let is_websocket = protocols.next().is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"));
    is_websocket && protocols.next().is_none() && parts.version == Version::HTTP_11 && parts.method == Method::GET
}

/// Returns the hosts that a request names: in its URL, and in its Host fields. `None` if one of them is invalid.
pub(super) fn named_hosts(parts: &Parts, default_port: u16) -> Option<Vec<HostPort>> {
    let in_url = parts.uri.authority().map(|authority| authority.as_str().as_bytes());
    let in_fields = parts.headers.get_all(HOST).iter().map(HeaderValue::as_bytes);
    let texts: Vec<&[u8]> = in_url.into_iter().chain(in_fields).collect();
    let parse = |text: &[u8]| HostPort::parse(std::str::from_utf8(text).ok()?, Some(default_port)).ok();
    let hosts: Option<Vec<HostPort>> = texts.into_iter().map(parse).collect();
    hosts.filter(|_| parts.headers.get_all(HOST).iter().count() <= 1)
}

/// Replaces texts in the values of fields; returns the index of a secret whose text was found.
pub(super) fn replace_in_fields(texts: &Replacements, headers: &mut HeaderMap) -> Option<usize> {
    let mut found = None;
    for value in headers.values_mut() {
        let mut bytes = value.as_bytes().to_vec();
        if let Some(secret) = texts.replace(&mut bytes) {
            found = Some(secret);
            *value = HeaderValue::from_bytes(&bytes).unwrap_or(HeaderValue::from_static("hidden"));
        }
    }
    found
}
