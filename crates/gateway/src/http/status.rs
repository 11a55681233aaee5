//! What the server says about itself to people and probes.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{Gateway, era};

pub(super) const ENDING: &str = "the server is shutting down";

pub(super) async fn about(State(gateway): State<Gateway>) -> Json<Value> {
    let health = gateway.backend_state();
    Json(json!({
        "status": if health.is_ok() { "ok" } else { "degraded" },
        "server": "ringfence",
        "version": env!("CARGO_PKG_VERSION"),
        "protocol_versions": era::VERSIONS,
        "mcp": "/mcp",
        "backend": match health {
            Ok(()) => json!({"state": "ready"}),
            Err(reason) => json!({"state": "down", "reason": reason}),
        },
    }))
}

/// Cancelled once the server is told to end.
#[derive(Clone)]
pub(super) struct Ending(pub(super) CancellationToken);

pub(super) async fn health(State(gateway): State<Gateway>, Extension(ending): Extension<Ending>) -> Response {
    let health = if ending.0.is_cancelled() { Err(ENDING.into()) } else { gateway.check_health().await };
    match health {
        Ok(()) => Json(json!({"status": "ok"})).into_response(),
        Err(reason) => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "down", "reason": reason}))).into_response()
        }
    }
}
