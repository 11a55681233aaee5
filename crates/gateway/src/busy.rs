//! What whoever comes when there is no room is told: the same on every way in, with when to ask again.

use axum::http::{HeaderValue, header};
use axum::response::Response;
use ringfence_core::{Failure, Kind};

use crate::failure;
use crate::rpc::RpcError;

/// Requests are short as a rule: a second later there is room again.
pub(crate) const RETRY_AFTER_MS: u64 = 1000;

/// The same in the whole seconds of HTTP.
const RETRY_AFTER_S: HeaderValue = HeaderValue::from_static("1");

/// The answer over MCP.
pub(crate) fn error(message: &str) -> RpcError {
    failure::render(Failure::new(Kind::Busy, message).hint(format!("try again after {RETRY_AFTER_MS} ms")))
}

/// The header that says over HTTP when to ask again.
pub(crate) fn with_retry_after(mut response: Response) -> Response {
    response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_S);
    response
}
