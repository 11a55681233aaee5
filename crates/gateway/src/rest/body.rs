//! What a client sends: bounded in size and time, and checked strictly.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, StatusCode, header};
use ringfence_core::{Failure, Kind};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use super::Refusal;
use crate::tools::arguments;

/// How long a client may take to send its request.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn bytes(body: Body, most: usize) -> Result<Bytes, Refusal> {
    match timeout(PATIENCE, to_bytes(body, most)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(Refusal {
            failure: Failure::new(Kind::Validation, format!("the request is larger than the limit of {most} bytes"))
                .hint("send less at a time")
                .with("limit", most.to_string()),
            status: Some(StatusCode::PAYLOAD_TOO_LARGE),
        }),
        Err(_) => Err(Refusal {
            failure: Failure::new(Kind::Validation, "the request did not arrive in time").hint("try again"),
            status: Some(StatusCode::REQUEST_TIMEOUT),
        }),
    }
}

/// An object of JSON with the fields of `P` and no others. No body at all is an empty object.
pub(super) async fn json<P: DeserializeOwned>(headers: &HeaderMap, body: Body, most: usize) -> Result<P, Refusal> {
    let bytes = bytes(body, most).await?;
    if bytes.is_empty() {
        return Ok(arguments::read("request", serde_json::json!({}))?);
    }
    let declared = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !declared.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        let failure = Failure::new(Kind::Validation, "the request is not declared to be JSON")
            .hint("send `Content-Type: application/json`");
        return Err(Refusal { failure, status: Some(StatusCode::UNSUPPORTED_MEDIA_TYPE) });
    }
    let invalid = |message: String| Failure::new(Kind::Validation, message).hint("send one object of JSON");
    let value: Value =
        serde_json::from_slice(&bytes).map_err(|error| invalid(format!("the request is not JSON: {error}")))?;
    if !value.is_object() {
        return Err(invalid("the request is not an object of JSON".into()).into());
    }
    Ok(arguments::read("request", value)?)
}
