//! Path parameters: sessions, numbers of processes and outputs, paths of files.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::str::FromStr;

use axum::extract::FromRequestParts;
use axum::http::Uri;
use axum::http::request::Parts;
use ringfence_core::{Failure, Kind, SessionId};

use super::RestError;
use crate::tools::arguments;

/// The session in `/v1/sessions/{id}…`. Parsed here, because rejections of axum's extractor are not JSON.
pub(super) struct SessionPath(pub(super) SessionId);

/// The session and the number of a process or output in `/v1/sessions/{id}/…/{number}…`.
pub(super) struct NumberPath<N>(pub(super) SessionId, pub(super) N);

impl<S: Sync> FromRequestParts<S> for SessionPath {
    type Rejection = RestError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, RestError> {
        Ok(Self(session(&parts.uri)?))
    }
}

impl<S: Sync, N: FromStr> FromRequestParts<S> for NumberPath<N> {
    type Rejection = RestError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, RestError> {
        let number = parts.uri.path().split('/').nth(5).and_then(|number| number.parse().ok());
        let not_found = || {
            Failure::new(Kind::NotFound, "the path has no valid process or output number")
                .hint("list the processes of the session")
        };
        Ok(Self(session(&parts.uri)?, number.ok_or_else(not_found)?))
    }
}

/// Parses the session id. An invalid one gets the same error as an unknown one.
fn session(uri: &Uri) -> Result<SessionId, Failure> {
    let text = uri.path().split('/').nth(3).unwrap_or_default();
    arguments::session_id(text.to_owned())
}

/// Returns the path of a file. It is decoded as bytes, because names need not be UTF-8.
pub(super) fn file(uri: &Uri) -> Result<OsString, Failure> {
    let encoded = uri.path().split_once("/files").map_or("", |(_, path)| path).trim_start_matches('/');
    decode(encoded.as_bytes()).map(OsString::from_vec).ok_or_else(|| {
        Failure::new(Kind::Validation, "the path is not percent-encoded as in RFC 3986").with("field", "path")
    })
}

fn decode(encoded: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(encoded.len());
    let mut input = encoded.iter();
    while let Some(byte) = input.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(*input.next()?).to_digit(16);
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
    fn file_path_is_decoded_as_bytes() {
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
