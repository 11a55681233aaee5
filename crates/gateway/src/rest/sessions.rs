//! `/v1/sessions`: creates, lists, shows and stops sessions.

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use ringfence_core::{Failure, Principal};
use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::path::SessionPath;
use super::{HandlerResult, Rest, body};
use crate::detach_on_drop::DetachOnDrop;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateParams {
    template: Option<String>,
    flavor: Option<String>,
}

pub(super) async fn create(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> HandlerResult {
    let (parts, content) = request.into_parts();
    let CreateParams { template, flavor } = body::read_json(&parts.headers, content, rest.max_body_bytes).await?;
    let sessions = rest.sessions()?.clone();
    let disconnected = CancellationToken::new();
    let _disconnect_guard = disconnected.clone().drop_guard();
    let creation = async move {
        let session = sessions.create_session(&principal, template, flavor).await?;
        // The client does not learn the id any more, so it could not use the session.
        if disconnected.is_cancelled() {
            let _ = sessions.stop(&principal, &session.session_id).await;
        }
        Ok::<_, Failure>(session)
    };
    let session = DetachOnDrop::new(creation).await?;
    let location = format!("/v1/sessions/{}", session.session_id);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(session)).into_response())
}

pub(super) async fn list(State(rest): State<Rest>, Extension(principal): Extension<Principal>) -> HandlerResult {
    Ok(Json(json!({"sessions": rest.sessions()?.list(&principal).await})).into_response())
}

pub(super) async fn show(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    SessionPath(id): SessionPath,
) -> HandlerResult {
    Ok(Json(rest.sessions()?.info(&principal, &id).await?).into_response())
}

pub(super) async fn stop(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    SessionPath(id): SessionPath,
) -> HandlerResult {
    let sessions = rest.sessions()?.clone();
    let session = id.clone();
    let stopped = DetachOnDrop::new(async move { sessions.stop(&principal, &session).await }).await?;
    Ok(Json(json!({"session_id": id, "was_running": stopped.was_running})).into_response())
}

pub(super) async fn log(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    SessionPath(id): SessionPath,
) -> HandlerResult {
    Ok(Json(json!({"calls": rest.sessions()?.log(&principal, &id)?})).into_response())
}
