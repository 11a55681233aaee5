//! `POST /mcp`, for both protocol eras and for bare requests by hand.
//!
//! rmcp serves every request on its own. What is added here: an answer in plain JSON for callers that
//! did not ask for streams, and cancellation, which needs to know the other requests of a client.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ringfence_runtime::session::Principal;
use rmcp::ErrorData;
use rmcp::model::{ErrorCode, RequestId};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::in_flight::{InFlight, Key};
use super::{patience, refuse};
use crate::Gateway;

/// How long a client may take to send its request.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");

/// Marks a request whose sender takes no event stream, and so no notifications.
#[derive(Clone)]
pub(crate) struct JsonOnly;

#[derive(Clone)]
pub(super) struct Mcp {
    service: StreamableHttpService<Gateway, NeverSessionManager>,
    in_flight: InFlight,
    max_body_bytes: usize,
}

/// As much of a message as routing needs; rmcp reads the rest.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Envelope {
    #[serde(default)]
    method: String,
    id: Option<RequestId>,
    #[serde(default)]
    params: Value,
}

impl Mcp {
    pub(super) fn new(gateway: Gateway, max_body_bytes: usize, shutdown: &CancellationToken) -> Self {
        let config = StreamableHttpServerConfig::default()
            .with_legacy_session_mode(false)
            .with_json_response(true)
            .with_max_request_body_bytes(max_body_bytes)
            .with_cancellation_token(shutdown.child_token())
            // The gate has judged Host and Origin already, with the names of the configuration.
            .disable_allowed_hosts()
            .disable_allowed_origins();
        let sessions = Arc::new(NeverSessionManager::default());
        let service = StreamableHttpService::new(move || Ok(gateway.clone()), sessions, config);
        Self { service, in_flight: InFlight::default(), max_body_bytes }
    }
}

pub(super) async fn handle(
    State(mcp): State<Mcp>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Response {
    let (mut parts, body) = request.into_parts();
    if !names(&parts.headers, &header::CONTENT_TYPE, "application/json") {
        let hint = "send `Content-Type: application/json`";
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the request is not declared to be JSON", hint);
    }
    let body = match timeout(BODY_TIMEOUT, to_bytes(body, mcp.max_body_bytes)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => return refuse(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large", "send less at a time"),
        Err(_) => return refuse(StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time", "try again"),
    };
    let envelope = match read(&body) {
        Ok(envelope) => envelope,
        Err(error) => {
            let error = json!({"jsonrpc": "2.0", "id": null, "error": error});
            return (StatusCode::BAD_REQUEST, axum::Json(error)).into_response();
        }
    };

    let client = parts.headers.get(&SESSION_HEADER).and_then(|id| id.to_str().ok()).map(str::to_owned);
    let key = |request| client.map(|client| Key { principal, client, request });
    if envelope.method == "notifications/cancelled" {
        let request = RequestId::deserialize(&envelope.params["requestId"]).ok();
        if let Some(key) = request.and_then(key) {
            mcp.in_flight.cancel(&key);
        }
        return StatusCode::ACCEPTED.into_response();
    }

    let streams = names(&parts.headers, &header::ACCEPT, "text/event-stream");
    if !streams {
        parts.extensions.insert(JsonOnly);
    }
    parts.headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    let ticket = mcp.in_flight.enter(envelope.id.and_then(key));
    let service = mcp.service.clone();
    let answer = async move { service.handle(Request::from_parts(parts, Body::from(body))).await.map(Body::new) };
    let mut response = patience::respond(Box::pin(answer), streams, ticket).await;
    if envelope.method == "initialize"
        && response.status() == StatusCode::OK
        && let Ok(id) = HeaderValue::from_str(&uuid::Uuid::new_v4().to_string())
    {
        response.headers_mut().insert(SESSION_HEADER, id);
    }
    response
}

/// Whether a header lists a media type.
fn names(headers: &HeaderMap, header: &HeaderName, media_type: &str) -> bool {
    headers
        .get_all(header)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|item| item.split(';').next())
        .any(|item| item.trim().eq_ignore_ascii_case(media_type))
}

fn read(body: &Bytes) -> Result<Envelope, ErrorData> {
    serde_json::from_slice(body).map_err(|error| {
        let (code, message) = match serde_json::from_slice::<Value>(body) {
            Err(_) => (ErrorCode::PARSE_ERROR, format!("the request is not JSON: {error}")),
            Ok(Value::Array(_)) => (ErrorCode::INVALID_REQUEST, "batches are not served: send one message".to_owned()),
            Ok(_) => (ErrorCode::INVALID_REQUEST, format!("the request is not a JSON-RPC message: {error}")),
        };
        ErrorData::new(code, message, None)
    })
}
