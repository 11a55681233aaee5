//! Files of a session. What is in them and what they are called is the guest's; the last block is the host's.

use std::string::FromUtf8Error;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_runtime::session::{Directory, FileContent, FileWritten, MOST_ENTRIES, SessionId};
use ringfence_sandbox::{Entry, FileKind};
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::{Value, json};

use super::{finish, terminal};

/// Renders a file, or a part of it: text as it is, anything else in base64.
pub(crate) fn file(session: &SessionId, file: FileContent) -> CallToolResult {
    let FileContent { path, size, offset, bytes } = file;
    let length = bytes.len();
    let text = if is_binary(&bytes) { Err(bytes) } else { String::from_utf8(bytes).map_err(FromUtf8Error::into_bytes) };
    let (encoding, content, block) = match text {
        Ok(text) => ("utf-8", text.clone(), ContentBlock::text(text)),
        Err(bytes) => {
            let text = STANDARD.encode(bytes);
            let uri = format!("ringfence://sessions/{session}/files/{}", terminal::plain(&path));
            let contents = ResourceContents::blob(text.clone(), uri);
            ("base64", text, ContentBlock::resource(contents.with_mime_type("application/octet-stream")))
        }
    };
    let part = if length as u64 == size { String::new() } else { format!("{length} from {offset} on, of ") };
    let closing = format!("[{}: {part}{size} bytes, {encoding}]", terminal::plain(&path));
    let fields = json!({"path": path, "size": size, "offset": offset, "encoding": encoding, "content": content});
    finish(vec![block, ContentBlock::text(closing)], fields, false)
}

const FEW_CONTROLS: usize = 1 << 10;

/// Whether it is better not taken for text, though it may be UTF-8: in JSON control characters have six bytes each.
fn is_binary(bytes: &[u8]) -> bool {
    let is_control = |byte: &&u8| **byte < b' ' && !b"\t\n\r".contains(byte);
    bytes.contains(&0) || bytes.iter().filter(is_control).count() > FEW_CONTROLS.max(bytes.len() / 16)
}

/// Renders what was written.
pub(crate) fn written(written: &FileWritten) -> CallToolResult {
    let FileWritten { path, size } = written;
    let text = format!("[{}: {size} bytes written]", terminal::plain(path));
    finish(vec![ContentBlock::text(text)], json!({"path": path, "size": size}), false)
}

/// Renders what is in a directory.
pub(crate) fn directory(directory: &Directory) -> CallToolResult {
    let lines: Vec<String> = directory.entries.iter().map(line).collect();
    let count = directory.entries.len();
    let more = if directory.more { format!("; there is more than {MOST_ENTRIES}") } else { String::new() };
    let closing = format!("[{}: {count} entries{more}]", terminal::plain(&directory.path));
    let mut content = Vec::new();
    content.extend((!lines.is_empty()).then(|| ContentBlock::text(lines.join("\n"))));
    content.push(ContentBlock::text(closing));
    finish(content, directory_fields(directory), false)
}

pub(crate) fn directory_fields(directory: &Directory) -> Value {
    let entries: Vec<Value> = directory.entries.iter().map(entry).collect();
    json!({"path": directory.path, "entries": entries, "truncated": directory.more})
}

/// A name that is no UTF-8 is shown as well as it can be, and given exactly beside that.
fn entry(entry: &Entry) -> Value {
    let mut fields = json!({
        "name": String::from_utf8_lossy(&entry.name),
        "kind": entry.kind,
        "size": entry.size,
        "modified": entry.modified,
    });
    if std::str::from_utf8(&entry.name).is_err() {
        fields["name_base64"] = STANDARD.encode(&entry.name).into();
    }
    fields
}

/// One line whatever the name: a line break in it must not look like another entry.
fn line(entry: &Entry) -> String {
    let name = String::from_utf8_lossy(&entry.name);
    let name = if name.chars().any(char::is_control) { format!("{name:?}") } else { name.into_owned() };
    match entry.kind {
        FileKind::File => format!("{name}  {}", entry.size),
        FileKind::Directory => format!("{name}/"),
        FileKind::Link => format!("{name}  (link)"),
        FileKind::Other => format!("{name}  (special)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_what_a_person_would_read() {
        for text in ["", "plain\r\n", "ü\ttab", "\u{1b}[31ma red word\u{1b}[0m in a line of a log"] {
            assert!(!is_binary(text.as_bytes()), "{text:?}");
        }
        for other in [&b"a\0b"[..], &[1; 2000]] {
            assert!(is_binary(other), "{other:?}");
        }
    }
}
