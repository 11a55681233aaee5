//! MCP over streamable HTTP at `/mcp` and `/mcp/{profile}`, beside other routes of the server.
//!
//! Connections are limited in number and duration (`connections`, `connection_table`). Every request passes the `gate`
//! first: Host, Origin, authentication, limits. In the older protocol era the state of a client between its requests may
//! be lost at any time: only notifications depend on it.

mod app;
mod authenticator;
mod batch;
mod connection_table;
mod connections;
mod crash_reply;
mod endpoint;
#[cfg(fuzzing)]
pub mod fuzzing;
mod gate;
mod headers;
mod host_check;
mod incoming;
mod options;
mod request_slot;
mod response_stream;

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tower_http::cors::{AllowOrigin, CorsLayer};

pub use authenticator::{Authenticator, Denial, Origin, Refused};
pub use connection_table::{Peer, network};
pub use endpoint::LARGE_BODY_BYTES;
pub use headers::subject;
pub use incoming::Incoming;
pub use options::HttpOptions;

use crate::service::Service;
use app::{App, DirectRoute, Routes};
use connection_table::ConnectionTable;
use endpoint::Endpoint;
use gate::Gate;
use host_check::HostCheck;

/// Serves until `shutdown`, which also ends the requests in progress. After `options.drain`, requests in progress may
/// finish and no others start. `routes` are the routes of the server besides MCP.
pub async fn serve<S: Service, A: Authenticator>(
    incoming: Incoming,
    service: S,
    authenticator: Arc<A>,
    routes: Router,
    options: HttpOptions,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let host_check = HostCheck::new(incoming.address()?.ip(), options.allowed_hosts.clone());
    let (drain, drain_timeout) = (options.drain.clone(), options.drain_timeout);
    let table = ConnectionTable::new(options.max_connections, options.principals);
    let gate = Arc::new(Gate::new(host_check, &options, service.clone(), Arc::clone(&authenticator)));
    let closing = shutdown.child_token();
    let app = Arc::new(app(service, routes, &options, Arc::clone(&gate), &shutdown, &closing));
    let drained = async {
        drain.cancelled().await;
        closing.cancel();
        if tokio::time::timeout(drain_timeout, gate.wait_until_idle()).await.is_err() {
            tracing::warn!("requests were still in progress after {} s", drain_timeout.as_secs());
        }
        shutdown.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = connections::serve(incoming, &app, &table, &*authenticator, &shutdown) => Ok(()),
        () = drained => Ok(()),
    }
}

/// `shutdown` ends every request, `closing` only the streams that have no end.
fn app<S: Service, A: Authenticator>(
    service: S,
    routes: Router,
    options: &HttpOptions,
    gate: Arc<Gate<S, A>>,
    shutdown: &CancellationToken,
    closing: &CancellationToken,
) -> App<S, A> {
    let cors = options.enable_cors.then(|| cors(gate.host_check().clone()));
    let endpoint = Arc::new(Endpoint::new(service, options, shutdown, closing));
    let methods = axum::routing::post(endpoint::post::<S>).get(endpoint::get::<S>).delete(endpoint::delete::<S>);
    let mcp =
        Router::new().route("/mcp", methods.clone()).route("/mcp/{profile}", methods).with_state(Arc::clone(&endpoint));
    let routes = routes.merge(mcp).layer(from_fn_with_state(Arc::clone(&gate), gate::pass::<S, A>));
    match cors {
        Some(cors) => App { routes: Routes::new(routes.layer(cors)), direct: None },
        None => App { routes: Routes::new(routes), direct: Some(DirectRoute { gate, endpoint }) },
    }
}

/// Allows the origins that the gate allows: CORS informs browsers, the gate decides.
fn cors(host_check: HostCheck) -> CorsLayer {
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(move |origin: &HeaderValue, _| host_check.allow_origin(origin)))
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

/// Returns the response to a request that is refused before MCP is spoken.
pub fn refuse(status: StatusCode, error: &str, hint: &str) -> Response {
    (status, axum::Json(json!({"error": error, "hint": hint}))).into_response()
}
