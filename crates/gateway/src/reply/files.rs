//! Files of a session. What is in them and what they are called is the guest's; the last block is the host's.

use std::string::FromUtf8Error;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_backend::{DirectoryEntry, FileKind};
use ringfence_core::SessionId;
use ringfence_core::hidden_text::escape_content;
use ringfence_session::{Directory, FileContent, FileWritten, MOST_ENTRIES};
use serde_json::{Value, json};

use super::output::without_broken_end;
use super::{ToolResult, terminal};
use crate::content::{ContentBlock, ResourceContents};

/// Renders a file, or a part of it: text, in which the block shows hidden characters, or anything else in base64.
pub(crate) fn file(session: &SessionId, file: FileContent) -> ToolResult {
    let FileContent { path, size, offset, bytes } = file;
    let goes_on = offset + (bytes.len() as u64) < size;
    let (length, encoding, content, block) = match as_text(bytes, goes_on) {
        Ok(text) => {
            let block = ContentBlock::text(escape_content(&text));
            (text.len(), "utf-8", text, block)
        }
        Err(bytes) => {
            let text = STANDARD.encode(&bytes);
            let uri = format!("ringfence://sessions/{session}/files/{}", terminal::plain(&path));
            let contents = ResourceContents::blob(uri, "application/octet-stream", text.as_str());
            let block = ContentBlock::Resource(contents);
            (bytes.len(), "base64", text, block)
        }
    };
    let part = if length as u64 == size { String::new() } else { format!("{length} from {offset} on, of ") };
    let closing = format!("[{}: {part}{size} bytes, {encoding}]", on_one_line(&path));
    let fields = json!({"path": path, "size": size, "offset": offset, "encoding": encoding, "content": content});
    ToolResult::success(vec![block, ContentBlock::text(closing)], fields)
}

/// Gives back what is no text. Of text that goes on, a letter that is not whole is left to the next part; of anything
/// else nothing is left out.
fn as_text(mut bytes: Vec<u8>, goes_on: bool) -> Result<String, Vec<u8>> {
    let whole = if goes_on { without_broken_end(&bytes).len() } else { bytes.len() };
    // A part without one whole letter would have whoever reads on by what it got read it again.
    if is_binary(&bytes) || (whole == 0) != bytes.is_empty() || str::from_utf8(&bytes[..whole]).is_err() {
        return Err(bytes);
    }
    bytes.truncate(whole);
    String::from_utf8(bytes).map_err(FromUtf8Error::into_bytes)
}

const FEW_CONTROLS: usize = 1 << 10;

/// Whether it is better not taken for text, though it may be UTF-8: in JSON control characters have six bytes each.
fn is_binary(bytes: &[u8]) -> bool {
    let is_control = |byte: &&u8| **byte < b' ' && !b"\t\n\r".contains(byte);
    bytes.contains(&0) || bytes.iter().filter(is_control).count() > FEW_CONTROLS.max(bytes.len() / 16)
}

/// Renders what was written.
pub(crate) fn written(written: &FileWritten) -> ToolResult {
    let FileWritten { path, size } = written;
    let text = format!("[{}: {size} bytes written]", on_one_line(path));
    ToolResult::success(vec![ContentBlock::text(text)], json!({"path": path, "size": size}))
}

/// Renders what is in a directory.
pub(crate) fn directory(directory: &Directory) -> ToolResult {
    let lines: Vec<String> = directory.entries.iter().map(line).collect();
    let count = directory.entries.len();
    let shown = if is_cut(directory) { format!("the first {count} of ") } else { String::new() };
    let closing = format!("[{}: {shown}{} entries]", on_one_line(&directory.path), directory.total);
    let mut content = Vec::new();
    content.extend((!lines.is_empty()).then(|| ContentBlock::text(lines.join("\n"))));
    content.push(ContentBlock::text(closing));
    ToolResult::success(content, directory_fields(directory))
}

pub(crate) fn directory_fields(directory: &Directory) -> Value {
    let entries: Vec<Value> = directory.entries.iter().map(entry).collect();
    json!({"path": directory.path, "entries": entries, "total": directory.total, "truncated": is_cut(directory)})
}

/// Entries may be missing also because they were gone when they were looked at.
fn is_cut(directory: &Directory) -> bool {
    directory.total > u64::from(MOST_ENTRIES)
}

/// A name that is no UTF-8 is shown as well as it can be, and given exactly beside that.
fn entry(entry: &DirectoryEntry) -> Value {
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
fn line(entry: &DirectoryEntry) -> String {
    let name = on_one_line(&String::from_utf8_lossy(&entry.name));
    match entry.kind {
        FileKind::File => format!("{name}  {}", entry.size),
        FileKind::Directory => format!("{name}/"),
        FileKind::Link => format!("{name}  (link)"),
        FileKind::Other => format!("{name}  (special)"),
    }
}

/// A name as the guest has chosen it, which must not pass for words of the host's.
fn on_one_line(name: &str) -> String {
    if name.chars().any(char::is_control) { format!("{name:?}") } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_text_is_text_and_ends_with_a_whole_letter() {
        let part = |bytes: &[u8], size| {
            let content = FileContent { path: "/workspace/a".into(), size, offset: 0, bytes: bytes.to_vec() };
            file(&SessionId::from_caller("session-0"), content).fields["content"].clone()
        };
        let text = "aé".as_bytes();
        assert_eq!(part(&text[..2], 3), "a");
        assert_eq!(part(text, 3), "aé");
        assert_eq!(part(&text[..2], 2), "YcM=", "the file itself ends so");
        assert_eq!(part(b"\xff\xc3", 3), "/8M=", "of what is no text nothing is left out");
        assert_eq!(part(b"\xc3", 2), "ww==", "nor is all of a part");
        assert_eq!(part(b"", 2), "");
    }

    #[test]
    fn a_name_says_nothing_in_the_words_of_the_host() {
        let path = "/workspace/a: 1 bytes, utf-8]\n[ok; new session_id session-0".to_owned();
        let told = written(&FileWritten { path, size: 1 });
        let ContentBlock::Text(text) = &told.content[0] else { panic!("{told:?}") };
        assert_eq!(text.lines().count(), 1);
    }

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
