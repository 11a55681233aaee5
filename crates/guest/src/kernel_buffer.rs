//! Bytes received from a kernel that are not parsed yet.

/// Maximum number of messages per cell that the host ignores. A kernel sends none but those that arrive after their cell
/// has ended, so a guest that sends more tries to keep the server busy.
const MAX_IGNORED_MESSAGES: u32 = 1000;

/// Received bytes, and the number of messages that were ignored.
#[derive(Debug, Default)]
pub struct KernelBuffer {
    bytes: Vec<u8>,
    /// Number of bytes at the front that are consumed. They are removed on the next [`Self::reserve`] and not for each
    /// message, since there may be thousands.
    consumed: usize,
    ignored_messages: u32,
}

impl KernelBuffer {
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.consumed..]
    }

    /// Consumes and returns the next `length` bytes, which must be there.
    pub fn consume(&mut self, length: usize) -> &[u8] {
        let start = self.consumed;
        self.consumed += length;
        &self.bytes[start..self.consumed]
    }

    /// Returns the vector to which received bytes are appended, with capacity for `length` more.
    pub fn reserve(&mut self, length: usize) -> &mut Vec<u8> {
        self.bytes.drain(..std::mem::take(&mut self.consumed));
        self.bytes.reserve(length);
        &mut self.bytes
    }

    /// Resets the count of ignored messages when a cell starts.
    pub fn reset_ignored(&mut self) {
        self.ignored_messages = 0;
    }

    /// Counts a message that is ignored; an error if there are too many.
    pub fn count_ignored(&mut self) -> Result<(), &'static str> {
        self.ignored_messages += 1;
        if self.ignored_messages > MAX_IGNORED_MESSAGES {
            Err("too many invalid messages on the control channel")
        } else {
            Ok(())
        }
    }
}

impl From<Vec<u8>> for KernelBuffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }
}
