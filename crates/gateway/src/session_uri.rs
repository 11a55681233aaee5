//! URIs of resources that belong to a session: outputs, displayed items and files.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStringExt as _;

use ringfence_core::SessionId;
use ringfence_session::{DisplayId, FullOutput};

pub(crate) const PREFIX: &str = "ringfence://sessions/";

#[derive(Debug, PartialEq)]
pub(crate) enum Resource {
    Output(u64),
    Display(DisplayId),
    /// An absolute path.
    File(OsString),
}

/// Parses the URI of a resource of a session.
pub(crate) fn parse(uri: &str) -> Option<(&str, Resource)> {
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

/// The URI of an output.
pub(crate) fn output(session: &SessionId, whole: &FullOutput) -> String {
    format!("{PREFIX}{session}/outputs/{}", whole.number)
}

/// The URI of a displayed item.
pub(crate) fn display(session: &SessionId, DisplayId { call, index }: DisplayId) -> String {
    format!("{PREFIX}{session}/displays/{call}/{index}")
}

/// The URI of a file with an absolute path.
pub(crate) fn file(session: &SessionId, path: &str) -> String {
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
            let uri = file(&session, path);
            assert!(uri.is_ascii() && !uri.contains(['#', '?', ' ', '\n']), "{uri}");
            assert_eq!(parse(&uri), Some(("s", Resource::File(path.into()))));
        }
    }
}
