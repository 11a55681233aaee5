//! The built-in resources: outputs that were too long for their result, displayed items, files of sessions, and the
//! description of code mode. A session and all that belongs to it can be read by its owner only.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStringExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_core::hidden_text::escape_content;
use ringfence_core::{Failure, Kind, Principal, SessionId};
use ringfence_session::{DisplayId, FileRange, FullOutput, Sessions};
use serde_json::{Value, json};

use crate::authorize::Action;
use crate::code::CAPABILITIES;
use crate::content::ResourceContents;
use crate::reply;
use crate::tools::arguments;

const PREFIX: &str = "ringfence://sessions/";

/// The entries of `resources/templates/list` whose actions are allowed.
pub(crate) fn templates(is_allowed: impl Fn(Action) -> bool) -> Vec<Value> {
    let template = |path: &str, name: &str, description: &str| {
        json!({"uriTemplate": format!("{PREFIX}{{session_id}}/{path}"), "name": name, "description": description})
    };
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
    match parse(uri) {
        _ if uri == CAPABILITIES_URI => Action::RunCode,
        Some((_, Resource::File(_))) => Action::ReadFiles,
        _ => Action::ReadOutput,
    }
}

/// The URI of an output.
pub(crate) fn uri(session: &SessionId, whole: &FullOutput) -> String {
    format!("{PREFIX}{session}/outputs/{}", whole.number)
}

/// The URI of a displayed item.
pub(crate) fn display_uri(session: &SessionId, DisplayId { call, index }: DisplayId) -> String {
    format!("{PREFIX}{session}/displays/{call}/{index}")
}

/// The URI of a file with an absolute path.
pub(crate) fn file_uri(session: &SessionId, path: &str) -> String {
    let mut uri = format!("{PREFIX}{session}/files");
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri
}

/// Handles `resources/read` for a built-in resource.
pub(crate) async fn read(sessions: &Sessions, principal: &Principal, uri: &str) -> Result<Value, Failure> {
    if uri == CAPABILITIES_URI {
        return Ok(read_result([ResourceContents::text(uri, "text/markdown", CAPABILITIES)]));
    }
    let (session, resource) = parse(uri).ok_or_else(|| {
        Failure::new(Kind::NotFound, "unknown resource")
            .hint("resources/templates/list lists the resources of this server")
    })?;
    let session = arguments::session_id(session.to_owned())?;
    match resource {
        Resource::Output(number) => read_output(sessions, principal, &session, number).await,
        Resource::Display(id) => {
            let (data, mime) = sessions.read_display(principal, &session, id).await?;
            Ok(read_result([reply::display_contents(&display_uri(&session, id), &mime, &data)]))
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

#[derive(Debug, PartialEq)]
enum Resource {
    Output(u64),
    Display(DisplayId),
    /// An absolute path.
    File(OsString),
}

fn parse(uri: &str) -> Option<(&str, Resource)> {
    let (session, rest) = uri.strip_prefix(PREFIX)?.split_once('/')?;
    let (kind, rest) = rest.split_once('/')?;
    let resource = match kind {
        "outputs" => Resource::Output(rest.parse().ok()?),
        "displays" => {
            let (call, index) = rest.split_once('/')?;
            Resource::Display(DisplayId { call: call.parse().ok()?, index: index.parse().ok()? })
        }
        "files" => Resource::File(decode_path(rest)?),
        _ => return None,
    };
    Some((session, resource))
}

/// Decodes the path of a file URI, which lacks its first slash. None if an escape is malformed.
fn decode_path(encoded: &str) -> Option<OsString> {
    let mut path = vec![b'/'];
    let mut bytes = encoded.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let mut digit = || char::from(bytes.next()?).to_digit(16);
            path.push(u8::try_from(digit()? * 16 + digit()?).ok()?);
        } else {
            path.push(byte);
        }
    }
    Some(OsString::from_vec(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_uris_of_the_templates_are_resources() {
        let display = Resource::Display(DisplayId { call: 7, index: 0 });
        for (path, resource) in [
            ("outputs/3", Resource::Output(3)),
            ("displays/7/0", display),
            ("files/workspace/a", Resource::File("/workspace/a".into())),
        ] {
            assert_eq!(parse(&format!("{PREFIX}session-1/{path}")), Some(("session-1", resource)));
        }
        for path in ["x", "x/outputs/-1", "x/displays/1", "x/displays/1/a", "x/files", "x/files/%4", "x/files/%zz"] {
            assert_eq!(parse(&format!("{PREFIX}{path}")), None, "{path}");
        }
        assert_eq!(parse("file:///etc/passwd"), None);
    }

    #[test]
    fn every_path_survives_its_uri() {
        let session = SessionId::from_caller("s");
        for path in ["/workspace/a b.txt", "/workspace/ä#?%41\n", "/workspace/a//b"] {
            let uri = file_uri(&session, path);
            assert!(uri.is_ascii() && !uri.contains(['#', '?', ' ', '\n']), "{uri}");
            assert_eq!(parse(&uri), Some(("s", Resource::File(path.into()))));
        }
    }
}
