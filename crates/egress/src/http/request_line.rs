//! The request line of an HTTP/1 request.

use super::body::BodyFraming;
use super::head::{Head, HeadError, parse_token};

const MAX_METHOD_BYTES: usize = 32;

/// A parsed request line, with the framing of the request body.
#[derive(Debug)]
pub(crate) struct RequestLine<'a> {
    pub(crate) method: &'a str,
    pub(crate) uri: &'a str,
    pub(crate) version: &'a [u8],
    pub(crate) body: BodyFraming,
}

impl<'a> RequestLine<'a> {
    pub(crate) fn parse(head: &'a Head) -> Result<Self, HeadError> {
        let mut parts = head.start_line.split(|&b| b == b' ');
        let (Some(method), Some(uri), Some(version), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(HeadError::Malformed("invalid request line"));
        };
        let method = parse_token(method)
            .filter(|method| method.len() <= MAX_METHOD_BYTES)
            .ok_or(HeadError::Malformed("invalid method"))?;
        let uri = std::str::from_utf8(uri)
            .ok()
            .filter(|uri| uri.bytes().all(|b| b.is_ascii_graphic()))
            .ok_or(HeadError::Malformed("invalid request target"))?;
        if !matches!(version, b"HTTP/1.0" | b"HTTP/1.1") {
            return Err(HeadError::Malformed("the version is neither HTTP/1.0 nor HTTP/1.1"));
        }
        let body = BodyFraming::from_head(head)?.unwrap_or(BodyFraming::Length(0));
        if version == b"HTTP/1.0" && body == BodyFraming::Chunked {
            return Err(HeadError::Malformed("HTTP/1.0 has no chunked encoding"));
        }
        Ok(Self { method, uri, version, body })
    }
}

/// Splits an absolute `http` URI into its authority and the rest.
pub(crate) fn split_absolute_uri(uri: &str) -> Result<(&str, &str), HeadError> {
    let (scheme, rest) = uri.split_once("://").ok_or(HeadError::NotForProxy)?;
    if scheme.eq_ignore_ascii_case("https") {
        return Err(HeadError::UseConnect);
    }
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(HeadError::NotForProxy);
    }
    if uri.contains('#') {
        return Err(HeadError::Malformed("the request target has a fragment"));
    }
    Ok(rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len())))
}
