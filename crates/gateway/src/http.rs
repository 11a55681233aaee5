//! MCP over HTTP at `/mcp`, with `/` and `/health` beside it.
//!
//! Every request passes the `gate` first: room, Host, Origin, token. What is kept of a client between its requests,
//! in the older era, can be lost at any time: nothing hangs on it but what it is told without asking.

mod clients;
mod gate;
mod headers;
mod mcp;
mod options;
mod patience;
mod peers;
mod replay;
mod status;

use std::time::Duration;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower_http::cors::{AllowOrigin, CorsLayer};

pub(crate) use clients::Clients;
pub(crate) use headers::subject;
pub use options::{HttpOptions, ListenError, Token, check};
pub(crate) use replay::Replays;

use crate::{Gateway, rest};
use gate::Gate;
use mcp::Mcp;
use peers::Peers;

/// How long answers under way may still take once the server is told to end.
const FAREWELL: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("serving HTTP failed")]
    Io(#[from] std::io::Error),
}

/// Serves until `shutdown`, which also ends the calls under way.
pub async fn serve_http(
    listener: TcpListener,
    gateway: Gateway,
    options: HttpOptions,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let address = listener.local_addr()?;
    check(address, &options)?;
    let (drain, closing) = (options.drain.clone(), shutdown.child_token());
    let app = router(gateway, options, address.ip(), &shutdown, &closing);
    let server = axum::serve(listener, app).with_graceful_shutdown(closing.clone().cancelled_owned());
    let close_early = async {
        drain.cancelled().await;
        closing.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = close_early => {}
        served = async { server.await } => served?,
        () = async { shutdown.cancelled().await; tokio::time::sleep(FAREWELL).await } => {
            tracing::warn!("connections were still open when the server ended");
        }
    }
    Ok(())
}

/// `shutdown` ends everything, `closing` only what has no end of its own.
fn router(
    gateway: Gateway,
    options: HttpOptions,
    address: std::net::IpAddr,
    shutdown: &CancellationToken,
    closing: &CancellationToken,
) -> Router {
    let peers = Peers::new(address, options.allowed_hosts);
    let cors = options.enable_cors.then(|| cors(peers.clone()));
    let gate = Gate::new(peers, options.tokens, options.max_requests, options.max_response_bytes, &gateway);
    let app = Router::new()
        .route("/mcp", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .route("/mcp/{profile}", post(mcp::post).get(mcp::get).delete(mcp::delete))
        .with_state(Mcp::new(gateway.clone(), options.max_body_bytes, shutdown, closing))
        .merge(rest::routes(gateway.clone(), options.max_body_bytes, shutdown))
        .merge(Router::new().route("/", get(status::about)).route("/health", get(status::health)).with_state(gateway))
        .fallback(async || {
            refuse(StatusCode::NOT_FOUND, "nothing is here", "MCP is served at /mcp, REST at /v1/sessions")
        })
        .layer(from_fn_with_state(gate, gate::pass));
    match cors {
        Some(cors) => app.layer(cors),
        None => app,
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
        ])
        .expose_headers([HeaderName::from_static("mcp-session-id")])
}

/// A refusal below the level of MCP.
pub(crate) fn refuse(status: StatusCode, error: &str, hint: &str) -> Response {
    (status, axum::Json(json!({"error": error, "hint": hint}))).into_response()
}

#[cfg(test)]
mod tests;
