//! Dispatches requests: POST to `/mcp` directly, everything else through the router.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::Method;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;

use super::authenticator::Authenticator;
use super::endpoint::Endpoint;
use super::gate::Gate;
use crate::service::Service;

/// Handles the requests of a connection.
pub(super) trait Handler: Send + Sync + 'static {
    fn handle(&self, request: hyper::Request<Incoming>) -> impl Future<Output = Response> + Send;
}

/// Handles every request with a router.
pub(super) struct Routes(TowerToHyperService<Router>);

impl Routes {
    pub(super) fn new(router: Router) -> Self {
        Self(TowerToHyperService::new(router))
    }
}

impl Handler for Routes {
    async fn handle(&self, request: hyper::Request<Incoming>) -> Response {
        match Box::pin(self.0.call(request)).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

pub(super) struct App<S, A> {
    pub(super) routes: Routes,
    /// None if the router has layers besides the gate.
    pub(super) direct: Option<DirectRoute<S, A>>,
}

/// The short path for MCP requests, which are nearly all requests: they need nothing that the router offers, and the
/// router costs time.
pub(super) struct DirectRoute<S, A> {
    pub(super) gate: Arc<Gate<S, A>>,
    pub(super) endpoint: Arc<Endpoint<S>>,
}

impl<S: Service, A: Authenticator> Handler for App<S, A> {
    async fn handle(&self, request: hyper::Request<Incoming>) -> Response {
        match &self.direct {
            Some(DirectRoute { gate, endpoint })
                if request.method() == Method::POST && request.uri().path() == "/mcp" =>
            {
                let post = |request, admitted| Arc::clone(endpoint).post(None, admitted, request);
                gate.pass(request.map(Body::new), post).await
            }
            _ => self.routes.handle(request).await,
        }
    }
}
