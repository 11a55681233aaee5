//! Resources of our own: outputs that were too long for their answer, and what code mode can do.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_core::hidden_text::escape_content;
use ringfence_core::{Failure, Kind, Principal, SessionId};
use ringfence_session::{Sessions, Whole};
use rmcp::model::{ReadResourceResult, Resource, ResourceContents, ResourceTemplate};

use crate::code::CAPABILITIES;
use crate::tools::arguments;

const PREFIX: &str = "ringfence://sessions/";

/// Long outputs.
pub(crate) fn template() -> ResourceTemplate {
    ResourceTemplate::new(format!("{PREFIX}{{session_id}}/outputs/{{number}}"), "output")
        .with_description("A long output in full, up to 8 MiB; answers name it where they had to drop something.")
}

/// What explains the helpers of code mode.
const CAPABILITIES_URI: &str = "resource://ringfence/capabilities";

pub(crate) fn capabilities() -> Resource {
    Resource::new(CAPABILITIES_URI, "capabilities")
        .with_description("What code in run_python can use.")
        .with_mime_type("text/markdown")
}

pub(crate) fn is_builtin(uri: &str) -> bool {
    uri.starts_with(PREFIX) || is_capabilities(uri)
}

/// Whether it is the one that explains code mode.
pub(crate) fn is_capabilities(uri: &str) -> bool {
    uri == CAPABILITIES_URI
}

pub(crate) fn uri(session: &SessionId, whole: &Whole) -> String {
    format!("{PREFIX}{session}/outputs/{}", whole.number)
}

pub(crate) async fn read(sessions: &Sessions, principal: &Principal, uri: &str) -> Result<ReadResourceResult, Failure> {
    if is_capabilities(uri) {
        let text = ResourceContents::text(CAPABILITIES, uri).with_mime_type("text/markdown");
        return Ok(ReadResourceResult::new(vec![text]));
    }
    let (session, number) = parse(uri).ok_or_else(|| {
        Failure::new(Kind::NotFound, "there is no such resource").hint("resources/templates/list says what there is")
    })?;
    let session = arguments::session_id(session.to_owned())?;
    let (bytes, missing) = sessions.read_output(principal, &session, number).await?;
    let uri = format!("{PREFIX}{session}/outputs/{number}");
    let contents = match String::from_utf8(bytes) {
        // a guest wrote it, and a model reads it; REST has the bytes
        Ok(text) => ResourceContents::text(escape_content(&text), &uri),
        Err(error) => {
            ResourceContents::blob(STANDARD.encode(error.as_bytes()), &uri).with_mime_type("application/octet-stream")
        }
    };
    // In an item of its own, which nothing that the guest prints can be taken for.
    let note = (missing > 0)
        .then(|| ResourceContents::text(format!("{missing} more bytes were not kept"), format!("{uri}#missing")));
    Ok(ReadResourceResult::new([Some(contents), note].into_iter().flatten().collect()))
}

fn parse(uri: &str) -> Option<(&str, u64)> {
    let (session, number) = uri.strip_prefix(PREFIX)?.split_once("/outputs/")?;
    Some((session, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_template_says_is_a_resource() {
        assert_eq!(parse("ringfence://sessions/session-1/outputs/3"), Some(("session-1", 3)));
        for uri in ["", "file:///etc/passwd", "ringfence://sessions/x", "ringfence://sessions/x/outputs/-1"] {
            assert_eq!(parse(uri), None, "{uri}");
        }
    }
}
