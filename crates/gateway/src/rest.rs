//! The REST API: sessions and hosted servers over plain HTTP and JSON, for programs that embed ringfence.
//!
//! The caller of [`routes`] authenticates requests and attaches the `Principal` of each. Errors have the fields of the
//! error table.

mod allow;
mod body;
mod exec;
mod files;
mod path;
mod process_socket;
mod processes;
mod query;
mod servers;
mod sessions;

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use ringfence_core::{Failure, Kind, Principal};
use ringfence_mcp::failure;
use ringfence_mcp::fair_pool::{Pool, Principals};
use ringfence_session::Sessions;
use tokio_util::sync::CancellationToken;

use crate::Gateway;
use crate::authorize::{Action, Object, Subject};
use crate::hosting::Hosting;

/// Maximum number of concurrent uploads. Each file is buffered in memory.
const MAX_UPLOADS: usize = 8;

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

    fn authorize(&self, principal: &Principal, action: Action) -> Result<(), Failure> {
        self.gateway.authorizer().authorize(Subject::principal(principal), action, Object::Endpoint)
    }

    fn hosting(&self) -> Result<&Hosting, Failure> {
        self.gateway.hosting().ok_or_else(|| {
            Failure::new(Kind::NotFound, "this gateway hosts no servers")
                .hint("add a server with `ringfence server add`")
        })
    }
}

pub(crate) fn routes(
    gateway: Gateway,
    max_body_bytes: usize,
    principals: Principals,
    shutdown: &CancellationToken,
) -> Router {
    let uploads = Arc::new(Pool::new(MAX_UPLOADS, principals));
    let rest = Rest { gateway, max_body_bytes, uploads, shutdown: shutdown.clone() };
    Router::new()
        .route("/v1/sessions", get(sessions::list).post(sessions::create))
        .route("/v1/sessions/{id}", get(sessions::show).delete(sessions::stop))
        .route("/v1/sessions/{id}/log", get(sessions::log))
        .route("/v1/sessions/{id}/allow", get(allow::session_rules).post(allow::allow_session))
        .route("/v1/sessions/{id}/outputs/{number}", get(exec::output))
        .route("/v1/sessions/{id}/exec", post(exec::run))
        .route("/v1/sessions/{id}/files", get(files::get))
        .route("/v1/sessions/{id}/files/", get(files::get))
        .route("/v1/sessions/{id}/files/{*path}", get(files::get).put(files::put))
        .route("/v1/sessions/{id}/processes", get(processes::list).post(processes::start))
        .route("/v1/sessions/{id}/processes/{pid}", get(processes::show).delete(processes::stop))
        .route("/v1/sessions/{id}/processes/{pid}/ws", get(process_socket::open))
        .route("/v1/servers", get(servers::list).post(servers::add))
        .route("/v1/servers/{name}", get(servers::show).patch(servers::edit).delete(servers::remove))
        .route("/v1/servers/{name}/allow", post(allow::allow_server))
        .route("/v1/servers/{name}/tools", get(servers::tools))
        .route("/v1/servers/{name}/pin", post(servers::pin).delete(servers::unpin))
        .route("/v1/servers/{name}/restart", post(servers::restart))
        .route(query::FALLBACK, any(async || RestError::from(unknown_path())))
        .method_not_allowed_fallback(async || RestError {
            failure: Failure::new(Kind::Validation, "method not allowed for this path")
                .hint("docs/rest.md lists the requests"),
            status: Some(StatusCode::METHOD_NOT_ALLOWED),
        })
        .layer(from_fn_with_state(rest.clone(), check))
        .with_state(rest)
}

/// Forwards requests that are authorized and whose query parameters the route knows.
async fn check(State(rest): State<Rest>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let authorized = match request.extensions().get::<Principal>() {
        Some(principal) => rest.authorize(principal, action(request.method(), route)),
        None => Err(Failure::new(Kind::Policy, "the request has no principal").hint("send a token")),
    };
    if let Err(failure) = authorized {
        return RestError::from(failure).into_response();
    }
    if let Err(failure) = query::check(request.method(), route, request.uri()) {
        return RestError::from(failure).into_response();
    }
    next.run(request).await
}

/// The action of a request, by its route. The handlers of `/exec` and of servers check more.
fn action(method: &Method, route: &str) -> Action {
    let (is_read, is_write) = (matches!(*method, Method::GET | Method::HEAD), *method == Method::PUT);
    let Some(route) = route.strip_prefix("/v1/") else { return Action::Other };
    let Some(session_route) = route.strip_prefix("sessions/{id}") else {
        return match route {
            "sessions" if is_read => Action::ManageSessions,
            "sessions" => Action::CreateSession,
            _ if route.starts_with("servers") => Action::UseServers,
            _ => Action::Other,
        };
    };
    match session_route {
        "" | "/log" => Action::ManageSessions,
        "/allow" if is_read => Action::ManageSessions,
        "/allow" => Action::ExtendNetwork,
        "/exec" => Action::Run,
        "/outputs/{number}" => Action::ReadOutput,
        _ if session_route.starts_with("/processes") => Action::RunCommand,
        _ if session_route.starts_with("/files") && is_read => Action::ReadFiles,
        _ if session_route.starts_with("/files") && is_write => Action::WriteFiles,
        _ => Action::Other,
    }
}

fn unknown_path() -> Failure {
    Failure::new(Kind::NotFound, "unknown path").hint("sessions are at /v1/sessions, servers at /v1/servers")
}

type HandlerResult = Result<Response, RestError>;

/// A failure as an HTTP response.
struct RestError {
    failure: Failure,
    /// The HTTP status, if it is not the one of the failure's kind.
    status: Option<StatusCode>,
}

impl From<Failure> for RestError {
    fn from(failure: Failure) -> Self {
        Self { failure, status: None }
    }
}

impl IntoResponse for RestError {
    fn into_response(self) -> Response {
        let is_busy = self.failure.kind == Kind::Busy;
        let (status, body) = failure::render_http(self.failure);
        let response = (self.status.unwrap_or(status), axum::Json(body)).into_response();
        if is_busy { failure::with_retry_after(response) } else { response }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_has_an_action() {
        let session = |rest: &str| format!("/v1/sessions/{{id}}{rest}");
        for (method, route, expected) in [
            (Method::GET, "/v1/sessions".into(), Action::ManageSessions),
            (Method::HEAD, "/v1/sessions".into(), Action::ManageSessions),
            (Method::POST, "/v1/sessions".into(), Action::CreateSession),
            (Method::DELETE, session(""), Action::ManageSessions),
            (Method::GET, session("/log"), Action::ManageSessions),
            (Method::POST, session("/exec"), Action::Run),
            (Method::GET, session("/outputs/{number}"), Action::ReadOutput),
            (Method::GET, session("/files"), Action::ReadFiles),
            (Method::HEAD, session("/files/{*path}"), Action::ReadFiles),
            (Method::PUT, session("/files/{*path}"), Action::WriteFiles),
            (Method::GET, session("/processes"), Action::RunCommand),
            (Method::POST, session("/processes"), Action::RunCommand),
            (Method::GET, session("/processes/{pid}/ws"), Action::RunCommand),
            (Method::GET, "/v1/servers/{name}/tools".into(), Action::UseServers),
            (Method::GET, session("/allow"), Action::ManageSessions),
            (Method::POST, session("/allow"), Action::ExtendNetwork),
            (Method::POST, "/v1/servers/{name}/allow".into(), Action::UseServers),
            (Method::DELETE, session("/files/{*path}"), Action::Other),
            (Method::GET, "/v1/{*rest}".into(), Action::Other),
        ] {
            assert_eq!(action(&method, &route), expected, "{method} {route}");
        }
    }
}
