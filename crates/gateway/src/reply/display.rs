//! Items that code displays: images, tables, markup, data.

use ringfence_guest::{DisplayItem, is_json};
use ringfence_session::{CallResult, DisplayId};

use super::excerpt::Excerpt;
use super::terminal;
use crate::content::{ContentBlock, ResourceContents};
use crate::session_uri;

const MAX_ITEMS: usize = 32;
const MAX_TOTAL_BYTES: usize = 8 << 20;

#[derive(Default)]
pub(super) struct Displayed {
    pub(super) blocks: Vec<ContentBlock>,
    /// Notes of the host about items that are too long for the response, with their URIs.
    pub(super) notes: Vec<String>,
    /// Number of items that were invalid or over a limit.
    pub(super) left_out: usize,
}

/// The number of bytes of the items that are not images.
pub(super) fn text_bytes(answer: &CallResult) -> usize {
    let items = answer.display.iter().take(MAX_ITEMS).filter(|item| !is_image(&item.mime));
    items.filter_map(|item| item.data.as_ref()).map(String::len).fold(0, usize::saturating_add)
}

/// Renders the displayed items of a call, with at most `max_text` bytes besides images. `clean` changes the lines of
/// text. Items that have a URI are retained in the session, so that clients can read them.
pub(super) fn blocks(answer: &CallResult, max_text: usize, clean: impl Fn(&str) -> String) -> Displayed {
    let mut displayed = Displayed::default();
    let (mut remaining_bytes, mut remaining_text) = (MAX_TOTAL_BYTES, max_text);
    for (index, item) in answer.display.iter().take(MAX_ITEMS).enumerate() {
        let id = DisplayId { call: answer.number, index };
        let Some(rendered) = render(answer, id, item, (&mut remaining_bytes, &mut remaining_text), &clean) else {
            displayed.left_out += 1;
            continue;
        };
        displayed.blocks.extend(rendered.block);
        displayed.notes.extend(rendered.note);
    }
    displayed.left_out += answer.display.len().saturating_sub(MAX_ITEMS);
    displayed
}

/// An item as a block, as a note with its URI, or, if the text is cut, as both.
struct Rendered {
    block: Option<ContentBlock>,
    note: Option<String>,
}

/// Renders one item. The guest chooses the MIME type, so it is checked as well as the data.
fn render(
    answer: &CallResult,
    id: DisplayId,
    item: &DisplayItem,
    (remaining_bytes, remaining_text): (&mut usize, &mut usize),
    clean: impl Fn(&str) -> String,
) -> Option<Rendered> {
    let mime = item.mime.as_str();
    if !is_mime(mime) {
        return None;
    }
    let data = item.data.as_ref()?;
    *remaining_bytes = remaining_bytes.checked_sub(data.len())?;
    if !is_text(mime) && !is_base64(data) {
        return None;
    }
    if is_image(mime) {
        return Some(Rendered { block: Some(ContentBlock::image(data, mime)), note: None });
    }
    let uri = session_uri::display(&answer.session_id, id);
    let retain = || answer.retained.retain_display(id, mime, data);
    let note = || format!("display {} ({mime}, {} bytes) is {uri}", id.index + 1, data.len());
    if matches!(mime, "application/json" | "text/plain") {
        let plain = Excerpt::from_text(data).plain().cut(*remaining_text);
        *remaining_text -= plain.len();
        let is_cut = plain.dropped_bytes > 0;
        let text = if plain.len() == 0 { String::new() } else { plain.map(clean).join() };
        let block = (!text.is_empty()).then(|| ContentBlock::text(text));
        let note = (is_cut && retain()).then(note);
        return (block.is_some() || note.is_some()).then_some(Rendered { block, note });
    }
    let is_retained = retain();
    let Some(rest) = remaining_text.checked_sub(data.len()) else {
        return is_retained.then(|| Rendered { block: None, note: Some(note()) });
    };
    *remaining_text = rest;
    Some(Rendered { block: Some(ContentBlock::Resource(contents(&uri, mime, data))), note: None })
}

/// The contents of the resource of a displayed item.
pub(crate) fn contents(uri: &str, mime: &str, data: &str) -> ResourceContents {
    if is_text(mime) {
        ResourceContents::text(uri, mime, terminal::to_plain_text(data))
    } else {
        ResourceContents::blob(uri, mime, data)
    }
}

fn is_text(mime: &str) -> bool {
    mime.starts_with("text/") || is_json(mime)
}

/// Whether models accept images of this type.
fn is_image(mime: &str) -> bool {
    matches!(mime, "image/png" | "image/jpeg" | "image/gif" | "image/webp")
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
