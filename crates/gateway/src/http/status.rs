//! What the server says about itself to people and probes.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::{Gateway, era};

pub(super) async fn about(State(gateway): State<Gateway>) -> Json<Value> {
    let health = gateway.health();
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

pub(super) async fn health(State(gateway): State<Gateway>) -> Response {
    match gateway.health() {
        Ok(()) => Json(json!({"status": "ok"})).into_response(),
        Err(reason) => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "down", "reason": reason}))).into_response()
        }
    }
}
