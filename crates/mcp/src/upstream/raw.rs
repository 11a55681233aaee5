//! Messages as bytes, and the answer to a call that wants the text of its result and no more.

use axum::body::Bytes;

use super::large_message_slots::Slot;
use super::rpc::{ResultHead, head_of};

/// A message from the server, whole.
pub(super) struct Received<'a> {
    body: Body<'a>,
    pub(super) slot: Option<Slot>,
}

enum Body<'a> {
    /// It is still in the buffer of its reader.
    Lent(&'a [u8]),
    Own(Bytes),
}

impl<'a> From<&'a [u8]> for Received<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { body: Body::Lent(bytes), slot: None }
    }
}

impl Received<'_> {
    pub(super) fn own(bytes: impl Into<Bytes>, slot: Option<Slot>) -> Self {
        Self { body: Body::Own(bytes.into()), slot }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match &self.body {
            Body::Lent(bytes) => bytes,
            Body::Own(bytes) => bytes,
        }
    }

    /// A part of the message. It keeps the whole alive where that is not in the buffer of the reader.
    pub(super) fn cut(&self, part: &[u8]) -> Bytes {
        match &self.body {
            Body::Lent(_) => Bytes::copy_from_slice(part),
            Body::Own(bytes) => bytes.slice_ref(part),
        }
    }
}

/// The result of a call as the server wrote it: JSON, and not looked into any further.
#[derive(Debug)]
pub struct RawAnswer {
    json: Bytes,
    /// Of a large one, the room it takes.
    _slot: Option<Slot>,
}

/// The text of `result`. Its room is free for others when this is dropped.
impl AsRef<[u8]> for RawAnswer {
    fn as_ref(&self) -> &[u8] {
        &self.json
    }
}

impl RawAnswer {
    pub(super) fn new(json: Bytes, slot: Option<Slot>) -> Self {
        Self { json, _slot: slot }
    }

    /// Whether it is the result of a tool that says it has failed, and whether it is a question in the place of one.
    pub fn head(&self) -> ResultHead {
        head_of(&self.json)
    }
}
