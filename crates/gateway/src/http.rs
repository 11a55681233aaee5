//! MCP over HTTP at `/mcp`, with `/` and `/health` beside it.
//!
//! Connections are bounded in number and time (`connections`, `connection_table`). Without tokens, only the user of the
//! server and root may connect (`access`). Every request passes the `gate` first: Host, Origin, token, limits. The state
//! of a client between its requests, in the older era, can be lost at any time: only notifications depend on it.

mod access;
mod app;
mod batch;
mod clients;
mod connection_table;
mod connections;
mod failed_attempts;
#[cfg(fuzzing)]
pub mod fuzzing;
mod gate;
mod headers;
mod incoming;
mod last_words;
mod mcp;
mod options;
mod patience;
mod peers;
mod place;
mod replay;
mod status;

use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tower_http::cors::{AllowOrigin, CorsLayer};

pub(crate) use clients::Clients;
pub(crate) use headers::subject;
pub use incoming::Incoming;
pub use options::{HttpOptions, ListenError, MIN_TOKEN_BYTES, Token, check, short_token};
pub(crate) use replay::Replays;

use crate::{Gateway, rest};
use access::Access;
use app::{App, Direct};
use connection_table::ConnectionTable;
use gate::Gate;
use mcp::{LARGE_BODY, Mcp};
use peers::Peers;

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("serving HTTP failed")]
    Io(#[from] std::io::Error),
}

/// Serves until `shutdown`, which also ends the calls under way. Before it, `options.drain` lets them end by themselves,
/// and no others begin.
pub async fn serve_http(
    incoming: impl Into<Incoming>,
    gateway: Gateway,
    options: HttpOptions,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let incoming = incoming.into();
    let address = incoming.address()?;
    check(address, &options)?;
    let (drain, patience) = (options.drain.clone(), options.drain_timeout);
    let table = ConnectionTable::new(options.max_connections, options.principals());
    let access = Access::new(&options);
    let peers = Peers::new(address.ip(), options.allowed_hosts.clone());
    let gate = Arc::new(Gate::new(peers, &options, &gateway));
    let closing = shutdown.child_token();
    let app = Arc::new(app(gateway, &options, Arc::clone(&gate), &shutdown, &closing));
    let drained = async {
        drain.cancelled().await;
        closing.cancel();
        if tokio::time::timeout(patience, gate.is_empty()).await.is_err() {
            tracing::warn!("requests were still under way after {} s", patience.as_secs());
        }
        shutdown.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = connections::serve(incoming, &app, &table, &access, &shutdown) => Ok(()),
        () = drained => Ok(()),
    }
}

/// `shutdown` ends everything, `closing` only what has no end of its own.
fn app(
    gateway: Gateway,
    options: &HttpOptions,
    gate: Arc<Gate>,
    shutdown: &CancellationToken,
    closing: &CancellationToken,
) -> App {
    let cors = options.enable_cors.then(|| cors(gate.peers().clone()));
    let status = Router::new().route("/", get(status::about)).route("/health", get(status::health));
    let mcp = Arc::new(Mcp::new(gateway.clone(), options, shutdown, closing));
    let routes = Router::new()
        .route("/mcp", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .route("/mcp/{profile}", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .with_state(Arc::clone(&mcp))
        .merge(rest::routes(gateway.clone(), options.max_body_bytes.min(LARGE_BODY), options.principals(), shutdown))
        .merge(status.layer(Extension(status::Ending(options.drain.clone()))).with_state(gateway))
        .fallback(async || {
            refuse(StatusCode::NOT_FOUND, "nothing is here", "MCP is served at /mcp, REST at /v1/sessions")
        })
        .layer(from_fn_with_state(Arc::clone(&gate), gate::pass));
    match cors {
        Some(cors) => App::new(routes.layer(cors), None),
        None => App::new(routes, Some(Direct { gate, mcp })),
    }
}

/// Only for origins that the gate lets in: CORS tells browsers, the gate decides.
fn cors(peers: Peers) -> CorsLayer {
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(move |origin: &HeaderValue, _| peers.allow_origin(origin)))
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::DELETE])
        .allow_headers([
            header::CONTENT_TYPE,
            header::ACCEPT,
            header::AUTHORIZATION,
            HeaderName::from_static("mcp-protocol-version"),
            HeaderName::from_static("mcp-session-id"),
            HeaderName::from_static("mcp-method"),
            HeaderName::from_static("mcp-name"),
            HeaderName::from_static("last-event-id"),
        ])
        .expose_headers([HeaderName::from_static("mcp-session-id")])
}

/// A refusal below the level of MCP.
pub(crate) fn refuse(status: StatusCode, error: &str, hint: &str) -> Response {
    (status, axum::Json(json!({"error": error, "hint": hint}))).into_response()
}

#[cfg(test)]
mod tests;
