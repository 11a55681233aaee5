//! The server over HTTP: MCP, the REST API, and the status of the server.

mod status;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::routing::get;
use axum::{Extension, Router};
use ringfence_mcp::http::{HttpOptions, Incoming, LARGE_BODY_BYTES, refuse};
use tokio_util::sync::CancellationToken;

use crate::authorize::{Authentication, AuthenticationOptions, ListenError, check_listen_address};
use crate::{Gateway, rest};

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("serving HTTP failed")]
    Io(#[from] io::Error),
}

/// Serves until `shutdown`, which also ends the requests in progress. After `options.drain`, requests in progress may
/// finish and no others start.
pub async fn serve_http(
    incoming: impl Into<Incoming>,
    gateway: Gateway,
    authentication: AuthenticationOptions,
    options: HttpOptions,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let incoming = incoming.into();
    check_listen_address(incoming.address()?, &authentication)?;
    let options = HttpOptions { principals: authentication.principals(), ..options };
    let routes = routes(&gateway, &options, &shutdown);
    let authentication = Arc::new(Authentication::new(authentication));
    ringfence_mcp::http::serve(incoming, gateway, authentication, routes, options, shutdown).await?;
    Ok(())
}

/// The routes besides MCP.
fn routes(gateway: &Gateway, options: &HttpOptions, shutdown: &CancellationToken) -> Router {
    let status = Router::new()
        .route("/", get(status::about))
        .route("/health", get(status::health))
        .layer(Extension(status::Draining(options.drain.clone())))
        .with_state(gateway.clone());
    let max_body_bytes = options.max_body_bytes.min(LARGE_BODY_BYTES);
    rest::routes(gateway.clone(), max_body_bytes, options.principals, shutdown)
        .merge(status)
        .fallback(async || refuse(StatusCode::NOT_FOUND, "unknown path", "MCP is served at /mcp, REST at /v1/sessions"))
}
