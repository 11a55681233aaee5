//! `/v1/sessions/{id}/processes`: long-lived processes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use ringfence_runtime::session::{Failure, Kind, Principal, ProcessRequest};
use serde::Deserialize;
use serde_json::json;

use super::{Answer, Rest, body, path};
use crate::arguments::not_blank;
use crate::call::to_its_end;

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
    Path(id): Path<String>,
    request: Request,
) -> Answer {
    let (parts, content) = request.into_parts();
    let params: StartParams = body::json(&parts.headers, content, rest.max_body_bytes).await?;
    let argv = match (params.argv, params.command) {
        (Some(argv), None) => argv.into_iter().map(Into::into).collect(),
        (None, Some(command)) => vec!["bash".into(), "-c".into(), not_blank("command", command)?.into()],
        _ => return Err(Failure::new(Kind::Validation, "send either `argv` or `command`").into()),
    };
    let request = ProcessRequest { argv, environment: params.env, workdir: params.workdir };
    let (sessions, id) = (rest.sessions()?.clone(), path::session(id)?);
    let session = id.clone();
    let process = to_its_end(async move { sessions.start_process(&principal, &session, request).await }).await?;
    let location = format!("/v1/sessions/{id}/processes/{}", process.pid);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(process)).into_response())
}

pub(super) async fn list(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    Path(id): Path<String>,
) -> Answer {
    let processes = rest.sessions()?.list_processes(&principal, &path::session(id)?)?;
    Ok(Json(json!({"processes": processes})).into_response())
}

pub(super) async fn show(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    Path((id, pid)): Path<(String, String)>,
) -> Answer {
    let process = rest.sessions()?.process(&principal, &path::session(id)?, path::pid(&pid)?)?;
    Ok(Json(process).into_response())
}

pub(super) async fn stop(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    Path((id, pid)): Path<(String, String)>,
) -> Answer {
    let (sessions, id, pid) = (rest.sessions()?.clone(), path::session(id)?, path::pid(&pid)?);
    let process = to_its_end(async move { sessions.stop_process(&principal, &id, pid).await }).await?;
    Ok(Json(process).into_response())
}
