//! Messages of a kernel, read from the bytes that have been received.

use ringfence_core::Language;

use super::message::{Message, parse_json, parse_line};
use crate::kernel_buffer::KernelBuffer;

/// Maximum size of a frame; no kernel has reason to send a larger one.
const MAX_FRAME_BYTES: usize = 12 << 20;

/// Maximum length of a line of the bash kernel.
const MAX_LINE_BYTES: usize = 4096;

/// Consumes and returns the next whole message; `None` if it has not arrived yet.
///
/// Malformed messages and those about a cell other than `id` are skipped. `Err` means that the stream is unusable.
pub fn next_message(language: Language, id: u64, buffer: &mut KernelBuffer) -> Result<Option<Message>, &'static str> {
    loop {
        let Some(frame) = next_frame(language, buffer)? else { return Ok(None) };
        let message = if language == Language::Bash { parse_line(id, frame) } else { parse_json(id, frame) };
        if message.is_some() {
            return Ok(message);
        }
        buffer.count_ignored()?;
    }
}

/// Drops everything up to the end of the `done` message of cell `id`; `false` if that has not arrived yet, and `Err` if
/// it never will.
///
/// For a stream that is taken over from another server at an unknown position: only the id shows where a message starts.
pub fn skip_past_done(language: Language, id: u64, buffer: &mut KernelBuffer) -> Result<bool, &'static str> {
    let (needle, length_bytes) = match language {
        Language::Bash => (format!("{id} "), 0),
        Language::Python | Language::Node => (format!("{{\"type\":\"done\",\"id\":{id},"), 4),
    };
    let received = buffer.unread();
    let found = received.windows(needle.len()).position(|window| window == needle.as_bytes());
    // Bytes that cannot be the beginning of the message are dropped, however many arrive.
    let droppable = received.len().saturating_sub(needle.len() + length_bytes);
    let start = found.and_then(|found| found.checked_sub(length_bytes));
    buffer.consume(start.unwrap_or(droppable));
    Ok(start.is_some() && next_frame(language, buffer)?.is_some())
}

fn next_frame(language: Language, buffer: &mut KernelBuffer) -> Result<Option<&[u8]>, &'static str> {
    let received = buffer.unread();
    if language == Language::Bash {
        return match received.iter().position(|byte| *byte == b'\n') {
            Some(end) => Ok(Some(&buffer.consume(end + 1)[..end])),
            None if received.len() > MAX_LINE_BYTES => Err("a line on the shell's control channel exceeds 4096 bytes"),
            None => Ok(None),
        };
    }
    let Some((length, body)) = received.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length > MAX_FRAME_BYTES {
        return Err("a frame on the control channel exceeds 12 MiB");
    }
    if body.len() < length {
        return Ok(None);
    }
    Ok(Some(&buffer.consume(4 + length)[4..]))
}
