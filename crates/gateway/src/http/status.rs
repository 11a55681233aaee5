//! The status of the server, for people and probes.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use ringfence_mcp::era;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::Gateway;

pub(super) async fn about(State(gateway): State<Gateway>) -> Json<Value> {
    let health = gateway.backend_state();
    // Programs that were written for the server that ringfence replaces read `status` and `wrapper_status`.
    let (status, wrapper_status) = if health.is_ok() { ("healthy", "connected") } else { ("degraded", "disconnected") };
    Json(json!({
        "status": status,
        "wrapper_status": wrapper_status,
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

/// Cancelled when the server starts to shut down.
#[derive(Clone)]
pub(super) struct Draining(pub(super) CancellationToken);

pub(super) async fn health(State(gateway): State<Gateway>, Extension(draining): Extension<Draining>) -> Response {
    let health = if draining.0.is_cancelled() {
        Err("the server is shutting down".into())
    } else {
        gateway.check_health().await
    };
    match health {
        Ok(()) => Json(json!({"status": "ok"})).into_response(),
        Err(reason) => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "down", "reason": reason}))).into_response()
        }
    }
}
