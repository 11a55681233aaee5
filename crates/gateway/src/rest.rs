//! The same sessions over plain HTTP and JSON, for programs that embed ringfence.
//!
//! Who may ask is decided before: a request comes with its `Principal`. Errors carry the fields of the error table.

mod body;
mod exec;
mod files;
mod path;
mod processes;
mod query;
mod servers;
mod sessions;
mod socket;

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use ringfence_core::AuditEvent;
use ringfence_core::{Failure, Kind, Principal};
use ringfence_session::Sessions;
use tokio_util::sync::CancellationToken;

use crate::hosting::Hosting;
use crate::policy::Action;
use crate::share::{Pool, Principals};
use crate::{Gateway, busy, failure};

/// Files that may be on their way in at a time; each is held in memory.
const UPLOADS_AT_ONCE: usize = 8;

#[derive(Clone)]
struct Rest {
    gateway: Gateway,
    max_body_bytes: usize,
    uploads: Arc<Pool>,
    shutdown: CancellationToken,
}

impl Rest {
    fn sessions(&self) -> Result<&Sessions, Failure> {
        self.gateway.sessions()
    }

    /// What only the request itself says.
    fn permit(&self, principal: &Principal, action: Action) -> Result<(), Failure> {
        if principal.is_operator() {
            return Ok(());
        }
        self.gateway.policy().check(action).inspect_err(|failure| {
            self.gateway.audit().record(AuditEvent::refusal(failure).by(principal, None));
        })
    }

    fn hosting(&self) -> Result<&Hosting, Failure> {
        self.gateway.hosting().ok_or_else(|| {
            Failure::new(Kind::NotFound, "no servers are hosted here").hint("`ringfence server add` adds one")
        })
    }
}

pub(crate) fn routes(
    gateway: Gateway,
    max_body_bytes: usize,
    principals: Principals,
    shutdown: &CancellationToken,
) -> Router {
    let uploads = Arc::new(Pool::new(UPLOADS_AT_ONCE, principals));
    let rest = Rest { gateway, max_body_bytes, uploads, shutdown: shutdown.clone() };
    Router::new()
        .route("/v1/sessions", get(sessions::list).post(sessions::create))
        .route("/v1/sessions/{id}", get(sessions::show).delete(sessions::stop))
        .route("/v1/sessions/{id}/log", get(sessions::log))
        .route("/v1/sessions/{id}/outputs/{number}", get(exec::output))
        .route("/v1/sessions/{id}/exec", post(exec::run))
        .route("/v1/sessions/{id}/files", get(files::get))
        .route("/v1/sessions/{id}/files/", get(files::get))
        .route("/v1/sessions/{id}/files/{*path}", get(files::get).put(files::put))
        .route("/v1/sessions/{id}/processes", get(processes::list).post(processes::start))
        .route("/v1/sessions/{id}/processes/{pid}", get(processes::show).delete(processes::stop))
        .route("/v1/sessions/{id}/processes/{pid}/ws", get(socket::open))
        .route("/v1/servers", get(servers::list).post(servers::add))
        .route("/v1/servers/{name}", get(servers::show).patch(servers::edit).delete(servers::remove))
        .route("/v1/servers/{name}/tools", get(servers::tools))
        .route("/v1/servers/{name}/pin", post(servers::pin).delete(servers::unpin))
        .route("/v1/servers/{name}/restart", post(servers::restart))
        .route(query::FALLBACK, any(async || Refusal::from(nothing_here())))
        .method_not_allowed_fallback(async || Refusal {
            failure: Failure::new(Kind::Validation, "this cannot be done here").hint("the README lists the requests"),
            status: Some(StatusCode::METHOD_NOT_ALLOWED),
        })
        .layer(from_fn_with_state(rest.clone(), permit))
        .with_state(rest)
}

/// Forwards requests that the policy allows and whose query parameters the route knows.
async fn permit(State(rest): State<Rest>, request: Request, next: Next) -> Response {
    let principal = request.extensions().get::<Principal>().cloned();
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let allowed = match &principal {
        Some(principal) => rest.gateway.policy().check_route(principal, request.method(), route),
        None => Err(Failure::new(Kind::Policy, "nobody is known to ask").hint("send a token")),
    };
    if let Err(failure) = allowed {
        let event = AuditEvent::refusal(&failure);
        rest.gateway.audit().record(principal.iter().fold(event, |event, principal| event.by(principal, None)));
        return Refusal::from(failure).into_response();
    }
    if let Err(failure) = query::check(request.method(), route, request.uri()) {
        return Refusal::from(failure).into_response();
    }
    next.run(request).await
}

fn nothing_here() -> Failure {
    Failure::new(Kind::NotFound, "nothing is here").hint("sessions are at /v1/sessions, servers at /v1/servers")
}

type Answer = Result<Response, Refusal>;

/// A failure on its way to an HTTP client.
struct Refusal {
    failure: Failure,
    /// Where the kind of failure alone does not say it.
    status: Option<StatusCode>,
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self { failure, status: None }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let is_busy = self.failure.kind == Kind::Busy;
        let (status, body) = failure::render_http(self.failure);
        let response = (self.status.unwrap_or(status), axum::Json(body)).into_response();
        if is_busy { busy::with_retry_after(response) } else { response }
    }
}
