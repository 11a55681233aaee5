//! Renders failures as JSON-RPC errors and HTTP responses, with the error codes of the API.
//!
//! Details of internal errors are never shown to a caller; they are logged with an incident id.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use ringfence_core::{Failure, Kind};
use serde_json::{Value, json};

use crate::rpc::RpcError;

/// Time after which a client that was refused for a limit may try again. Most requests are shorter.
pub const RETRY_AFTER_MS: u64 = 1000;

/// The same in the whole seconds of HTTP.
const RETRY_AFTER_S: HeaderValue = HeaderValue::from_static("1");

/// Returns the JSON-RPC error for a request over a limit.
pub fn busy(message: &str) -> RpcError {
    render(Failure::new(Kind::Busy, message).hint(format!("try again after {RETRY_AFTER_MS} ms")))
}

/// The failure of a request that was given up after the request timeout.
pub fn timed_out(timeout: Duration) -> Failure {
    Failure::new(Kind::ResourceLimit, format!("the request timed out after {} s; it may have run", timeout.as_secs()))
        .with("rule", "server.request_timeout_s")
        .with("may_have_run", "true")
        .hint("check whether it had an effect before you call again")
        .hint("calls in one session wait for each other: use another session for independent work")
}

/// Adds the `Retry-After` header to a response.
pub fn with_retry_after(mut response: Response) -> Response {
    response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_S);
    response
}

struct Class {
    code: i64,
    error_code: &'static str,
    category: &'static str,
    severity: &'static str,
}

fn class(kind: Kind) -> Class {
    let (code, error_code, category, severity) = match kind {
        Kind::ResourceLimit => (RpcError::INVALID_REQUEST, "RESOURCE_LIMIT_EXCEEDED", "resource", "medium"),
        Kind::Busy => (RpcError::BUSY, "RESOURCE_LIMIT_EXCEEDED", "resource", "medium"),
        Kind::SessionNotFound => (RpcError::INVALID_PARAMS, "SESSION_NOT_FOUND", "validation", "low"),
        // The API has no separate code for `NotFound`.
        Kind::Validation | Kind::NotFound => (RpcError::INVALID_PARAMS, "VALIDATION_ERROR", "validation", "low"),
        Kind::Policy => (RpcError::INVALID_PARAMS, "POLICY_DENIED", "policy", "medium"),
        Kind::Configuration => (RpcError::INTERNAL_ERROR, "CONFIGURATION_ERROR", "configuration", "high"),
        Kind::SandboxCreation => (RpcError::INTERNAL_ERROR, "SANDBOX_CREATION_ERROR", "sandbox", "high"),
        Kind::Connection => (RpcError::INTERNAL_ERROR, "CONNECTION_ERROR", "connection", "high"),
        Kind::Internal => (RpcError::INTERNAL_ERROR, "INTERNAL_ERROR", "internal", "critical"),
    };
    Class { code, error_code, category, severity }
}

/// Renders a failure as a JSON-RPC error.
pub fn render(failure: Failure) -> RpcError {
    let failure = without_internals(failure);
    let error = RpcError::new(class(failure.kind).code, failure.message.clone()).with_data(fields(&failure));
    RpcError { is_busy: failure.kind == Kind::Busy, ..error }
}

/// Renders a failure as the fields of a tool result: those in the data of a JSON-RPC error, and the message.
pub fn tool_result_fields(failure: Failure) -> Value {
    let failure = without_internals(failure);
    let mut fields = fields(&failure);
    fields["message"] = failure.message.into();
    fields
}

/// Renders a failure for HTTP: the status, and a body with the same fields.
pub fn render_http(failure: Failure) -> (StatusCode, Value) {
    let status = match failure.kind {
        Kind::ResourceLimit => StatusCode::TOO_MANY_REQUESTS,
        Kind::SessionNotFound | Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::Validation => StatusCode::BAD_REQUEST,
        Kind::Policy => StatusCode::FORBIDDEN,
        Kind::Connection | Kind::Busy => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Configuration | Kind::SandboxCreation | Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let failure = without_internals(failure);
    let mut body = fields(&failure);
    body["error"] = failure.message.into();
    (status, body)
}

fn without_internals(failure: Failure) -> Failure {
    if failure.kind == Kind::Internal { conceal(&failure) } else { failure }
}

fn fields(failure: &Failure) -> Value {
    let class = class(failure.kind);
    let mut fields = json!({
        "error_code": class.error_code,
        "category": class.category,
        "severity": class.severity,
        "recovery_suggestions": suggestions(failure),
        "context": failure.context,
    });
    if failure.kind == Kind::Busy {
        fields["retry_after_ms"] = RETRY_AFTER_MS.into();
    }
    fields
}

/// Returns the hints of a failure, or a general one if it has none.
fn suggestions(failure: &Failure) -> Vec<&str> {
    let general = match failure.kind {
        Kind::Validation | Kind::NotFound | Kind::SessionNotFound => "correct the request and send it again",
        Kind::ResourceLimit => "end sessions or processes that are not needed any more, then try again",
        Kind::Policy | Kind::Configuration => "ask the operator of this server to allow it",
        Kind::SandboxCreation => "`ringfence doctor` shows which protections this host supports",
        Kind::Busy | Kind::Connection | Kind::Internal => "try again shortly",
    };
    let hints: Vec<&str> = failure.hints.iter().map(String::as_str).collect();
    if hints.is_empty() { vec![general] } else { hints }
}

/// Replaces the details with an incident id, under which they are logged.
fn conceal(failure: &Failure) -> Failure {
    let incident = uuid::Uuid::new_v4().simple().to_string();
    tracing::error!(%incident, context = ?failure.context, "{}", failure.message);
    Failure::new(Kind::Internal, "internal error")
        .hint("try again; if the error persists, give the incident id to the operator of this server")
        .with("incident_id", incident)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_code() {
        let kinds = [
            Kind::ResourceLimit,
            Kind::Busy,
            Kind::SessionNotFound,
            Kind::NotFound,
            Kind::Validation,
            Kind::Policy,
            Kind::Configuration,
            Kind::SandboxCreation,
            Kind::Connection,
        ];
        let rendered: Vec<_> = kinds
            .into_iter()
            .map(|kind| render(Failure::new(kind, "what").hint("do this").with("limit", "64")))
            .map(|error| serde_json::to_string(&error).unwrap())
            .collect();
        insta::assert_snapshot!(rendered.join("\n"));
    }

    #[test]
    fn internal_details_are_not_rendered() {
        let mut error = render(Failure::new(Kind::Internal, "open /srv/secret").hint("x").with("path", "/srv/secret"));
        assert!(!serde_json::to_string(&error).unwrap().contains("secret"));
        let fields = tool_result_fields(Failure::new(Kind::Internal, "open /srv/secret").with("path", "/srv/secret"));
        assert!(!fields.to_string().contains("secret") && fields["context"]["incident_id"].is_string());
        error.data.as_mut().unwrap()["context"]["incident_id"] = "[incident]".into();
        insta::assert_json_snapshot!(error);
    }
}
