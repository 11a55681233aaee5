//! The built-in resources: outputs that were too long for their result, displayed items, files of sessions, and the
//! description of code mode. A session and all that belongs to it can be read by its owner only.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_core::hidden_text::escape_content;
use ringfence_core::{Failure, Kind, Principal, SessionId};
use ringfence_session::{FileRange, Sessions};
use serde_json::{Value, json};

use crate::authorize::Action;
use crate::code::CAPABILITIES;
use crate::content::ResourceContents;
use crate::reply;
use crate::session_uri::{self, PREFIX, Resource};
use crate::tools::arguments;

/// The entries of `resources/templates/list` whose actions are allowed.
pub(crate) fn templates(is_allowed: impl Fn(Action) -> bool) -> Vec<Value> {
    let template = |path: &str, name: &str, description: &str| json!({"uriTemplate": format!("{PREFIX}{{session_id}}/{path}"), "name": name, "description": description});
    let templates = [
        (
            Action::ReadOutput,
            template(
                "outputs/{number}",
                "output",
                "A long output in full, up to 8 MiB; results with dropped bytes name it.",
            ),
        ),
        (Action::ReadOutput, template("displays/{call}/{index}", "display", "Data that code has displayed.")),
        (Action::ReadFiles, template("files/{+path}", "file", "A file of a session, up to 16 MiB.")),
    ];
    templates.into_iter().filter(|(action, _)| is_allowed(*action)).map(|(_, template)| template).collect()
}

const CAPABILITIES_URI: &str = "resource://ringfence/capabilities";

/// The entry for the description of code mode in `resources/list`.
pub(crate) fn capabilities() -> Value {
    json!({
        "uri": CAPABILITIES_URI,
        "name": "capabilities",
        "description": "Functions for code in run_python.",
        "mimeType": "text/markdown",
    })
}

/// Whether a URI belongs to this server, even if there is no such resource.
pub(crate) fn is_builtin(uri: &str) -> bool {
    uri.starts_with(PREFIX) || uri == CAPABILITIES_URI
}

/// The action that reading a built-in resource needs.
pub(crate) fn action(uri: &str) -> Action {
    match session_uri::parse(uri) {
        _ if uri == CAPABILITIES_URI => Action::RunCode,
        Some((_, Resource::File(_))) => Action::ReadFiles,
        _ => Action::ReadOutput,
    }
}

/// Handles `resources/read` for a built-in resource.
pub(crate) async fn read(sessions: &Sessions, principal: &Principal, uri: &str) -> Result<Value, Failure> {
    if uri == CAPABILITIES_URI {
        return Ok(read_result([ResourceContents::text(uri, "text/markdown", CAPABILITIES)]));
    }
    let (session, resource) = session_uri::parse(uri).ok_or_else(|| {
        Failure::new(Kind::NotFound, "unknown resource")
            .hint("resources/templates/list lists the resources of this server")
    })?;
    let session = arguments::session_id(session.to_owned())?;
    match resource {
        Resource::Output(number) => read_output(sessions, principal, &session, number).await,
        Resource::Display(id) => {
            let (data, mime) = sessions.read_display(principal, &session, id).await?;
            Ok(read_result([reply::display_contents(&session_uri::display(&session, id), &mime, &data)]))
        }
        Resource::File(path) => {
            let file = sessions.read_file(principal, &session, &path, FileRange::default()).await?;
            Ok(read_result([reply::file_contents(uri, file.bytes)]))
        }
    }
}

async fn read_output(
    sessions: &Sessions,
    principal: &Principal,
    session: &SessionId,
    number: u64,
) -> Result<Value, Failure> {
    let (bytes, missing) = sessions.read_output(principal, session, number).await?;
    let uri = format!("{PREFIX}{session}/outputs/{number}");
    let contents = match String::from_utf8(bytes) {
        // Written by a guest and read by a model, so hidden characters are shown. REST returns the bytes unchanged.
        Ok(text) => ResourceContents::text(&uri, "text/plain", escape_content(&text)),
        Err(error) => ResourceContents::blob(&uri, "application/octet-stream", STANDARD.encode(error.as_bytes())),
    };
    // A separate item, so that the guest's output cannot imitate it.
    let note = (missing > 0).then(|| {
        ResourceContents::text(format!("{uri}#missing"), "text/plain", format!("{missing} more bytes were not stored"))
    });
    Ok(read_result([Some(contents), note].into_iter().flatten()))
}

fn read_result(contents: impl IntoIterator<Item = ResourceContents>) -> Value {
    let contents: Vec<Value> = contents.into_iter().map(Value::from).collect();
    // `json!` would copy the contents.
    let mut result = json!({"resultType": "complete"});
    result["contents"] = Value::Array(contents);
    result
}
