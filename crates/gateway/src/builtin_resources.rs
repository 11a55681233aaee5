//! The built-in resources: outputs that were too long for their result, and the description of code mode.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_core::hidden_text::escape_content;
use ringfence_core::{Failure, Kind, Principal, SessionId};
use ringfence_session::{FullOutput, Sessions};
use serde_json::{Value, json};

use crate::code::CAPABILITIES;
use crate::content::ResourceContents;
use crate::tools::arguments;

const PREFIX: &str = "ringfence://sessions/";

/// The entry for outputs in `resources/templates/list`.
pub(crate) fn output_template() -> Value {
    json!({
        "uriTemplate": format!("{PREFIX}{{session_id}}/outputs/{{number}}"),
        "name": "output",
        "description": "A long output in full, up to 8 MiB; results with dropped bytes name it.",
    })
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
    uri.starts_with(PREFIX) || is_capabilities(uri)
}

pub(crate) fn is_capabilities(uri: &str) -> bool {
    uri == CAPABILITIES_URI
}

/// The URI of an output.
pub(crate) fn uri(session: &SessionId, whole: &FullOutput) -> String {
    format!("{PREFIX}{session}/outputs/{}", whole.number)
}

/// Handles `resources/read` for a built-in resource.
pub(crate) async fn read(sessions: &Sessions, principal: &Principal, uri: &str) -> Result<Value, Failure> {
    if is_capabilities(uri) {
        return Ok(read_result([ResourceContents::text(uri, "text/markdown", CAPABILITIES)]));
    }
    let (session, number) = parse(uri).ok_or_else(|| {
        Failure::new(Kind::NotFound, "unknown resource")
            .hint("resources/templates/list lists the resources of this server")
    })?;
    let session = arguments::session_id(session.to_owned())?;
    let (bytes, missing) = sessions.read_output(principal, &session, number).await?;
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

fn parse(uri: &str) -> Option<(&str, u64)> {
    let (session, number) = uri.strip_prefix(PREFIX)?.split_once("/outputs/")?;
    Some((session, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_uris_of_the_template_are_outputs() {
        assert_eq!(parse("ringfence://sessions/session-1/outputs/3"), Some(("session-1", 3)));
        for uri in ["", "file:///etc/passwd", "ringfence://sessions/x", "ringfence://sessions/x/outputs/-1"] {
            assert_eq!(parse(uri), None, "{uri}");
        }
    }
}
