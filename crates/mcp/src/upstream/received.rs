//! Received messages as bytes, and results that are returned as text.

use axum::body::Bytes;

use super::connection::{ResultFlags, result_flags};
use super::large_message_slots::Slot;

/// A complete message of the server.
pub(super) struct ReceivedMessage<'a> {
    body: Body<'a>,
    pub(super) slot: Option<Slot>,
}

enum Body<'a> {
    /// The message is still in the buffer of its reader.
    Borrowed(&'a [u8]),
    Owned(Bytes),
}

impl<'a> From<&'a [u8]> for ReceivedMessage<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { body: Body::Borrowed(bytes), slot: None }
    }
}

impl ReceivedMessage<'_> {
    pub(super) fn owned(bytes: impl Into<Bytes>, slot: Option<Slot>) -> Self {
        Self { body: Body::Owned(bytes.into()), slot }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match &self.body {
            Body::Borrowed(bytes) => bytes,
            Body::Owned(bytes) => bytes,
        }
    }

    /// Returns a part of the message. An owned message stays in memory as long as its parts.
    pub(super) fn slice(&self, part: &[u8]) -> Bytes {
        match &self.body {
            Body::Borrowed(_) => Bytes::copy_from_slice(part),
            Body::Owned(bytes) => bytes.slice_ref(part),
        }
    }
}

/// The result of a call as the server wrote it: valid JSON, not parsed.
#[derive(Debug)]
pub struct RawResult {
    json: Bytes,
    /// The slot of a large result, released when the result is dropped.
    _slot: Option<Slot>,
}

/// The text of `result`.
impl AsRef<[u8]> for RawResult {
    fn as_ref(&self) -> &[u8] {
        &self.json
    }
}

impl RawResult {
    pub(super) fn new(json: Bytes, slot: Option<Slot>) -> Self {
        Self { json, _slot: slot }
    }

    /// Whether the result reports a failed tool, or requests input of the client.
    pub fn flags(&self) -> ResultFlags {
        result_flags(&self.json)
    }
}
