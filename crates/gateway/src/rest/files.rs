//! `/v1/sessions/{id}/files/{path}`: a file's bytes. A path that ends with a slash, or none, lists a directory.

use std::os::unix::ffi::OsStrExt as _;

use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use ringfence_core::{Failure, Kind, Principal};
use ringfence_session::{FileRange, MOST_FILE_BYTES};
use serde::Deserialize;
use serde_json::json;

use super::path::OfSession;
use super::{Answer, Rest, body, path};
use crate::reply;
use ringfence_mcp::fair_pool::Full;

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
    OfSession(id): OfSession,
    uri: Uri,
) -> Answer {
    let Query(RangeParams { offset, length }) = Query::try_from_uri(&uri).map_err(|rejection| {
        Failure::new(Kind::Validation, rejection.body_text()).hint("send ?offset=BYTES&length=BYTES, or neither")
    })?;
    let (sessions, path) = (rest.sessions()?, path::file(&uri)?);
    let is_part = uri.query().is_some_and(|query| !query.is_empty());
    if path.is_empty() || path.as_bytes().ends_with(b"/") {
        if is_part {
            let failure = Failure::new(Kind::Validation, "a directory listing takes no offset or length");
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

/// The guest's bytes must never be taken for a page of this server's.
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
    OfSession(id): OfSession,
    request: Request,
) -> Answer {
    let path = path::file(request.uri())?;
    // A PUT replaces the whole file; RFC 9110, section 14.5, has a server refuse a part that it cannot store as one.
    if request.headers().contains_key(header::CONTENT_RANGE) {
        let failure = Failure::new(Kind::Validation, "a file can only be written as a whole, without Content-Range");
        return Err(failure.hint("send the whole file").into());
    }
    // Before the body is read: a caller that does not own this session must not take an upload slot.
    let sessions = rest.sessions()?;
    sessions.language(&principal, &id)?;
    let _room = rest.uploads.try_acquire(&principal).map_err(|full| {
        let why = match full {
            Full::Pool => "too many uploads at a time".into(),
            Full::Share(share) => format!("your token has {share} uploads under way, its maximum"),
        };
        Failure::new(Kind::ResourceLimit, why).with("rule", "uploads").hint("try again shortly")
    })?;
    let content = body::bytes(request.into_body(), usize::try_from(MOST_FILE_BYTES).unwrap_or(usize::MAX)).await?;
    let written = sessions.write_file(&principal, &id, &path, content.into()).await?;
    Ok(Json(json!({"path": written.path, "size": written.size})).into_response())
}
