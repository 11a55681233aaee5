//! What answers requests: calls over MCP at once, and everything else by way of the router.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::Method;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;

use super::gate::Gate;
use super::mcp::Mcp;

pub(super) struct App {
    routes: TowerToHyperService<Router>,
    direct: Option<Direct>,
}

/// Where a call goes, which is nearly every request: the way through the router takes time, and it needs nothing of it.
pub(super) struct Direct {
    pub(super) gate: Arc<Gate>,
    pub(super) mcp: Arc<Mcp>,
}

impl App {
    /// `direct` where nothing but the gate stands before calls in the router.
    pub(super) fn new(routes: Router, direct: Option<Direct>) -> Self {
        Self { routes: TowerToHyperService::new(routes), direct }
    }

    pub(super) async fn answer(&self, request: hyper::Request<Incoming>) -> Response {
        match &self.direct {
            Some(Direct { gate, mcp }) if request.method() == Method::POST && request.uri().path() == "/mcp" => {
                gate.pass(request.map(Body::new), |request, admitted| Arc::clone(mcp).post(None, admitted, request))
                    .await
            }
            _ => match Box::pin(self.routes.call(request)).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
        }
    }
}
