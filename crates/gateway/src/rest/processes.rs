//! `/v1/sessions/{id}/processes`: starts, lists, shows and stops long-lived processes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use ringfence_backend::ProcessRequest;
use ringfence_core::Principal;
use serde::Deserialize;
use serde_json::json;

use super::path::{NumberPath, SessionPath};
use super::{HandlerResult, Rest, body};
use crate::detach_on_drop::DetachOnDrop;
use crate::tools::arguments::{exactly_one_of, not_blank};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StartParams {
    argv: Option<Vec<String>>,
    command: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    workdir: Option<PathBuf>,
}

pub(super) async fn start(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    SessionPath(id): SessionPath,
    request: Request,
) -> HandlerResult {
    let (parts, content) = request.into_parts();
    let params: StartParams = body::read_json(&parts.headers, content, rest.max_body_bytes).await?;
    let argv = match (params.argv, params.command) {
        (Some(argv), None) => argv.into_iter().map(Into::into).collect(),
        (None, Some(command)) => vec!["bash".into(), "-c".into(), not_blank("command", command)?.into()],
        _ => return Err(exactly_one_of("argv", "command").into()),
    };
    let request = ProcessRequest { argv, environment: params.env, workdir: params.workdir };
    let sessions = rest.sessions()?.clone();
    let session = id.clone();
    let process = DetachOnDrop::new(async move { sessions.start_process(&principal, &session, request).await }).await?;
    let location = format!("/v1/sessions/{id}/processes/{}", process.pid);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(process)).into_response())
}

pub(super) async fn list(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    SessionPath(id): SessionPath,
) -> HandlerResult {
    let processes = rest.sessions()?.list_processes(&principal, &id)?;
    Ok(Json(json!({"processes": processes})).into_response())
}

pub(super) async fn show(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    NumberPath(id, pid): NumberPath<u32>,
) -> HandlerResult {
    let process = rest.sessions()?.process(&principal, &id, pid)?;
    Ok(Json(process).into_response())
}

pub(super) async fn stop(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    NumberPath(id, pid): NumberPath<u32>,
) -> HandlerResult {
    let sessions = rest.sessions()?.clone();
    let process = DetachOnDrop::new(async move { sessions.stop_process(&principal, &id, pid).await }).await?;
    Ok(Json(process).into_response())
}
