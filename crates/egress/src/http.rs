//! Parsing and writing of HTTP/1 messages, for the proxy and for the package mirror.
//!
//! Parsing is stricter than the standard requires: a message that two parsers could read differently is refused,
//! because such differences allow request smuggling. The proxy writes new heads and chunks from the parsed values, so
//! that the recipient gets exactly what was checked.

mod body;
mod detect;
mod head;
mod request_line;

pub(crate) use body::{BodyError, BodyFraming};
pub(crate) use detect::{HttpDetection, detect_http};
pub(crate) use head::{Head, HeadError};
pub(crate) use request_line::{RequestLine, split_absolute_uri};

/// Maximum size of a request head.
pub(crate) const MAX_REQUEST_HEAD_BYTES: usize = 16 * 1024;
/// Maximum size of a response head.
pub(crate) const MAX_RESPONSE_HEAD_BYTES: usize = 32 * 1024;
/// Maximum number of interim (1xx) responses before the final one.
pub(crate) const MAX_INTERIM_RESPONSES: usize = 8;
