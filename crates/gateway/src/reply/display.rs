//! Items that code displays: images, tables, markup, data.

use ringfence_guest::{DisplayItem, is_json};
use ringfence_session::CallResult;

use super::excerpt::Excerpt;
use super::terminal;
use crate::content::{ContentBlock, ResourceContents};

const MAX_ITEMS: usize = 32;
const MAX_TOTAL_BYTES: usize = 8 << 20;

pub(super) struct Displayed {
    pub(super) blocks: Vec<ContentBlock>,
    /// Number of items that were invalid or over a limit.
    pub(super) left_out: usize,
}

/// Renders the displayed items of a call. Each has a URI in its session.
pub(super) fn blocks(CallResult { session_id, number, display: items, .. }: &CallResult) -> Displayed {
    let mut remaining_bytes = MAX_TOTAL_BYTES;
    let blocks: Vec<_> = items
        .iter()
        .take(MAX_ITEMS)
        .enumerate()
        .filter_map(|(index, item)| {
            block(&format!("ringfence://sessions/{session_id}/displays/{number}/{index}"), item, &mut remaining_bytes)
        })
        .collect();
    let left_out = items.len() - blocks.len();
    Displayed { blocks, left_out }
}

/// Renders one item. The guest chooses the MIME type, so it is checked as well as the data.
fn block(uri: &str, item: &DisplayItem, remaining_bytes: &mut usize) -> Option<ContentBlock> {
    let mime = item.mime.as_str();
    if !is_mime(mime) {
        return None;
    }
    let data = item.data.as_ref()?;
    if mime == "application/json" {
        return Some(ContentBlock::text(terminal::to_plain_text(&Excerpt::from_text(data).text)));
    }
    if mime == "text/plain" {
        return Some(ContentBlock::text(Excerpt::from_text(data).to_plain_text()?));
    }
    *remaining_bytes = remaining_bytes.checked_sub(data.len())?;
    if mime.starts_with("text/") || is_json(mime) {
        return Some(ContentBlock::Resource(ResourceContents::text(uri, mime, terminal::to_plain_text(data))));
    }
    if !is_base64(data) {
        return None;
    }
    Some(match mime {
        "image/png" | "image/jpeg" | "image/gif" | "image/webp" => ContentBlock::image(data, mime),
        _ => ContentBlock::Resource(ResourceContents::blob(uri, mime, data)),
    })
}

fn is_mime(mime: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte))
    };
    mime.len() <= 127 && mime.split_once('/').is_some_and(|(kind, name)| is_name(kind) && is_name(name))
}

fn is_base64(data: &str) -> bool {
    let body = data.trim_end_matches('=');
    data.len().is_multiple_of(4)
        && data.len() - body.len() <= 2
        && body.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/')
}
