//! What code displays: images, tables, markup, data.

use ringfence_guest::{DisplayItem, is_json};
use ringfence_session::Answer;

use super::output::Excerpt;
use super::terminal;
use crate::content::{ContentBlock, ResourceContents};

const MAX_ITEMS: usize = 32;
const MAX_TOTAL_BYTES: usize = 8 << 20;

/// Displayed items as content, and how many there was no room for.
pub(super) struct Displayed {
    pub(super) blocks: Vec<ContentBlock>,
    pub(super) left_out: usize,
}

/// Each has an address of its own in its session.
pub(super) fn blocks(Answer { session_id, number, display: items, .. }: &Answer) -> Displayed {
    let mut room = MAX_TOTAL_BYTES;
    let blocks: Vec<_> = items
        .iter()
        .take(MAX_ITEMS)
        .enumerate()
        .filter_map(|(index, item)| {
            block(&format!("ringfence://sessions/{session_id}/displays/{number}/{index}"), item, &mut room)
        })
        .collect();
    let left_out = items.len() - blocks.len();
    Displayed { blocks, left_out }
}

/// The guest chooses the type, so it is checked as much as the data.
fn block(uri: &str, item: &DisplayItem, room: &mut usize) -> Option<ContentBlock> {
    let mime = item.mime.as_str();
    if !is_mime(mime) {
        return None;
    }
    let data = item.data.as_ref()?;
    if mime == "application/json" {
        return Some(ContentBlock::text(terminal::plain(&Excerpt::of_text(data).text)));
    }
    if mime == "text/plain" {
        return Some(ContentBlock::text(Excerpt::of_text(data).plain()?));
    }
    *room = room.checked_sub(data.len())?;
    if mime.starts_with("text/") || is_json(mime) {
        return Some(ContentBlock::Resource(ResourceContents::text(uri, mime, terminal::plain(data))));
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
