//! What an interpreter has said and nobody has taken yet.

/// No kernel says anything that makes no sense, but for a word that came too late: whoever goes on about it is a guest
/// that keeps the server busy.
const MOST_NONSENSE: u32 = 1000;

#[derive(Debug, Default)]
pub struct KernelBuffer {
    bytes: Vec<u8>,
    /// So many of them. Not moved for each word, since there may be thousands.
    taken: usize,
    nonsense: u32,
}

impl KernelBuffer {
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// The next ones, which are unread.
    pub fn take(&mut self, length: usize) -> &[u8] {
        let start = self.taken;
        self.taken += length;
        &self.bytes[start..self.taken]
    }

    /// Where more is put, behind what is unread, with room for so much.
    pub fn room(&mut self, length: usize) -> &mut Vec<u8> {
        self.bytes.drain(..std::mem::take(&mut self.taken));
        self.bytes.reserve(length);
        &mut self.bytes
    }

    /// Begins a cell.
    pub fn forgive(&mut self) {
        self.nonsense = 0;
    }

    /// Notes a word of which no sense can be made; an error if there are too many.
    pub fn pass_over(&mut self) -> Result<(), &'static str> {
        self.nonsense += 1;
        if self.nonsense > MOST_NONSENSE { Err("too much that makes no sense on the control channel") } else { Ok(()) }
    }
}

impl From<Vec<u8>> for KernelBuffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }
}
