//! `POST /v1/sessions/{id}/exec`: runs code or a shell command. `GET …/outputs/{number}`: reads a long output.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_core::Principal;
use ringfence_mcp::{Service as _, failure};
use ringfence_session::{CodeRequest, CommandRequest};
use serde::Deserialize;
use serde_json::json;

use super::path::{NumberPath, SessionPath};
use super::{HandlerResult, Rest, RestError, body};
use crate::authorize::{Action, Subject};
use crate::detach_on_drop::DetachOnDrop;
use crate::reply;
use crate::tools::arguments::{exactly_one_of, not_blank, timeout};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExecParams {
    code: Option<String>,
    command: Option<String>,
    timeout: Option<f64>,
    /// Of code: return HTML beside text that says the same.
    #[serde(default)]
    rich_html: bool,
}

pub(super) async fn run(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    SessionPath(id): SessionPath,
    request: Request,
) -> HandlerResult {
    let (parts, content) = request.into_parts();
    let params: ExecParams = body::read_json(&parts.headers, content, rest.max_body_bytes).await?;
    let timeout = params.timeout.map(timeout).transpose()?;
    let action = if params.command.is_some() { Action::RunCommand } else { Action::RunCode };
    rest.authorize(&principal, action)?;
    let session_id = Some(id);
    let sessions = rest.sessions()?.clone();
    let caller = principal.clone();
    let cancel = rest.shutdown.child_token();
    // Dropped when the client disconnects, which cancels the call.
    let _cancel_guard = cancel.clone().drop_guard();
    let (template, flavor) = (None, None);
    let call = async {
        match (params.code, params.command) {
            (Some(code), None) => {
                let code = not_blank("code", code)?;
                let request = CodeRequest {
                    code,
                    template,
                    flavor,
                    session_id,
                    timeout,
                    host: None,
                    questions: None,
                    rich_html: params.rich_html,
                };
                DetachOnDrop::new(async move { sessions.execute(&principal, request, cancel).await }).await
            }
            (None, Some(command)) => {
                let command = not_blank("command", command)?;
                let request = CommandRequest { command, template, flavor, session_id, timeout, questions: None };
                DetachOnDrop::new(async move { sessions.run_command(&principal, request, cancel).await }).await
            }
            _ => Err(exactly_one_of("code", "command")),
        }
    };
    let timeout = rest.gateway.request_timeout();
    let Ok(result) = tokio::time::timeout(timeout, call).await else {
        let failure = rest.gateway.authorizer().refuse(Subject::principal(&caller), failure::timed_out(timeout));
        return Err(RestError { failure, status: Some(StatusCode::GATEWAY_TIMEOUT) });
    };
    let answer = result?;
    let mut fields = reply::run_fields(&answer);
    fields["notices"] = json!(answer.notices);
    for (name, output) in [("stdout", &answer.stdout), ("stderr", &answer.stderr)] {
        match &output.full {
            Some(whole) => fields[format!("{name}_missing_bytes")] = whole.missing_bytes.into(),
            // Invalid UTF-8 was replaced in the text, so the bytes are added.
            None if output.dropped_bytes == 0 && str::from_utf8(&output.head).is_err() => {
                fields[format!("{name}_base64")] = STANDARD.encode(&output.head).into();
            }
            None => {}
        }
    }
    Ok(Json(fields).into_response())
}

/// Returns an output that was too long for its result.
pub(super) async fn output(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    NumberPath(id, number): NumberPath<u64>,
) -> HandlerResult {
    let (bytes, missing) = rest.sessions()?.read_output(&principal, &id, number).await?;
    let mut response = super::files::attachment(bytes);
    response.headers_mut().insert("x-missing-bytes", missing.into());
    Ok(response)
}
