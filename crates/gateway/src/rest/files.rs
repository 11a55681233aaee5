//! `/v1/sessions/{id}/files/{path}`: reads and writes files. GET lists a directory if the path is empty or ends with a
//! slash.

use std::os::unix::ffi::OsStrExt as _;

use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use ringfence_core::{Failure, Kind, Principal};
use ringfence_mcp::fair_pool::Full;
use ringfence_session::{FileRange, MAX_FILE_BYTES};
use serde::Deserialize;
use serde_json::json;

use super::path::SessionPath;
use super::{HandlerResult, Rest, body, path};
use crate::reply;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RangeParams {
    #[serde(default)]
    offset: u64,
    length: Option<u64>,
}

pub(super) async fn get(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    SessionPath(id): SessionPath,
    uri: Uri,
) -> HandlerResult {
    let Query(RangeParams { offset, length }) = Query::try_from_uri(&uri).map_err(|rejection| {
        Failure::new(Kind::Validation, rejection.body_text()).hint("send ?offset=BYTES&length=BYTES, or neither")
    })?;
    let (sessions, path) = (rest.sessions()?, path::file(&uri)?);
    let is_part = uri.query().is_some_and(|query| !query.is_empty());
    if path.is_empty() || path.as_bytes().ends_with(b"/") {
        if is_part {
            let failure = Failure::new(Kind::Validation, "offset and length are not allowed for a directory");
            return Err(failure.hint("list the directory without query parameters").into());
        }
        let directory = sessions.list_files(&principal, &id, &path).await?;
        return Ok(Json(reply::directory_fields(&directory)).into_response());
    }
    let file = sessions.read_file(&principal, &id, &path, FileRange { offset, length }).await?;
    let mut response = attachment(file.bytes);
    response.headers_mut().insert("x-file-size", file.size.into());
    Ok(response)
}

/// Returns a response with bytes from a guest. Its headers prevent a browser from showing them as a page of this
/// server.
pub(super) fn attachment(bytes: Vec<u8>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    (headers, bytes).into_response()
}

pub(super) async fn put(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    SessionPath(id): SessionPath,
    request: Request,
) -> HandlerResult {
    let path = path::file(request.uri())?;
    // A PUT replaces the whole file. A server without partial PUT responds with 400 (RFC 9110, section 14.5).
    if request.headers().contains_key(header::CONTENT_RANGE) {
        let failure = Failure::new(Kind::Validation, "a file can only be written as a whole, without Content-Range");
        return Err(failure.hint("send the whole file").into());
    }
    // The owner is checked before the body is read, so that no other caller can occupy an upload slot.
    let sessions = rest.sessions()?;
    sessions.language(&principal, &id)?;
    let _permit = rest.uploads.try_acquire(&principal).map_err(|full| {
        let message = match full {
            Full::Pool => "too many concurrent uploads".into(),
            Full::Share(share) => format!("your token has {share} uploads in progress, its maximum"),
        };
        Failure::new(Kind::ResourceLimit, message).with("rule", "uploads").hint("try again shortly")
    })?;
    let content = body::read_bytes(request.into_body(), usize::try_from(MAX_FILE_BYTES).unwrap_or(usize::MAX)).await?;
    let written = sessions.write_file(&principal, &id, &path, content.into()).await?;
    Ok(Json(json!({"path": written.path, "size": written.size})).into_response())
}
