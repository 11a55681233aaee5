//! What of a URL names something: a session, a process, a file.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use axum::http::Uri;
use ringfence_runtime::session::{Failure, Kind, SessionId};

use crate::arguments;

/// As strict as with tools; what is no id at all is as unknown as any other.
pub(super) fn session(text: String) -> Result<SessionId, Failure> {
    arguments::session_id(text).map_err(|_| Failure::not_found(&SessionId::from_caller("(malformed)")))
}

/// The same, from a URL whose other parts may be no UTF-8, which axum's own extractor refuses.
pub(super) fn session_of(uri: &Uri) -> Result<SessionId, Failure> {
    session(uri.path().split('/').nth(3).unwrap_or_default().to_owned())
}

pub(super) fn pid(text: &str) -> Result<u32, Failure> {
    text.parse().map_err(|_| {
        Failure::new(Kind::NotFound, "a process is named by its number").suggest("list the session's processes")
    })
}

/// The path of a file, from the URL itself: names need not be UTF-8, so they are decoded as bytes.
pub(super) fn file(uri: &Uri) -> Result<OsString, Failure> {
    let encoded = uri.path().split_once("/files").map_or("", |(_, path)| path).trim_start_matches('/');
    decode(encoded.as_bytes()).map(OsString::from_vec).ok_or_else(|| {
        Failure::new(Kind::Validation, "the path is not percent-encoded as in RFC 3986").with("field", "path")
    })
}

fn decode(encoded: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(encoded.len());
    let mut rest = encoded.iter();
    while let Some(byte) = rest.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(*rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => *byte,
        });
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_decoded_as_bytes() {
        let path = |uri: &str| file(&uri.parse().unwrap()).ok().map(OsString::into_vec);
        for (uri, expected) in [
            ("/v1/sessions/s/files/a/b%20c", Some(b"a/b c".to_vec())),
            ("/v1/sessions/s/files/a%ff%2F..", Some(b"a\xff/..".to_vec())),
            ("/v1/sessions/s/files/files/x", Some(b"files/x".to_vec())),
            ("/v1/sessions/s/files", Some(b"".to_vec())),
            ("/v1/sessions/s/files/%4", None),
            ("/v1/sessions/s/files/%+1", None),
        ] {
            assert_eq!(path(uri), expected, "{uri}");
        }
    }
}
