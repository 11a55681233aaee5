//! Reads request bodies, within a limit of size and time. Unknown JSON fields are errors.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, StatusCode, header};
use ringfence_core::{Failure, Kind};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use super::RestError;
use crate::tools::arguments;

/// Maximum time for a client to send its request.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn read_bytes(body: Body, max_bytes: usize) -> Result<Bytes, RestError> {
    match timeout(READ_TIMEOUT, to_bytes(body, max_bytes)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(RestError {
            failure: Failure::new(Kind::Validation, format!("request body exceeds the limit of {max_bytes} bytes"))
                .hint("send a smaller body")
                .with("limit", max_bytes.to_string()),
            status: Some(StatusCode::PAYLOAD_TOO_LARGE),
        }),
        Err(_) => Err(RestError {
            failure: Failure::new(Kind::Validation, "request body was not received in time").hint("try again"),
            status: Some(StatusCode::REQUEST_TIMEOUT),
        }),
    }
}

/// Reads a JSON object with the fields of `P` and no others. An empty body is an empty object.
pub(super) async fn read_json<P: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
    max_bytes: usize,
) -> Result<P, RestError> {
    let bytes = read_bytes(body, max_bytes).await?;
    if bytes.is_empty() {
        return Ok(arguments::parse("request", serde_json::json!({}))?);
    }
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !content_type.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        let failure = Failure::new(Kind::Validation, "request body is not declared as JSON")
            .hint("send `Content-Type: application/json`");
        return Err(RestError { failure, status: Some(StatusCode::UNSUPPORTED_MEDIA_TYPE) });
    }
    let invalid = |message: String| Failure::new(Kind::Validation, message).hint("send a JSON object");
    let value: Value =
        serde_json::from_slice(&bytes).map_err(|error| invalid(format!("request body is not JSON: {error}")))?;
    if !value.is_object() {
        return Err(invalid("request body is not a JSON object".into()).into());
    }
    Ok(arguments::parse("request", value)?)
}
