//! Output that is too long for a response, retained beside it within limits.
//!
//! It is in temporary files without a name: no other process can open them, and they end with the session or the server,
//! however that ends. They use no memory of the host, unless its directory for temporary files is in memory.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use ringfence_core::sync::Mutex;

use super::Output;

/// Maximum size of one retained output.
pub const MAX_FULL_OUTPUT_BYTES: u64 = 8 << 20;

/// Maximum number and size of the retained outputs of a session. The oldest are removed first. More than all calls that run
/// at the same time can have, unless these are large.
const MAX_RETAINED: usize = 32;
const MAX_RETAINED_BYTES: u64 = 4 * MAX_FULL_OUTPUT_BYTES;

/// Maximum number and size of the retained displayed items of a session. The oldest are removed first.
const MAX_DISPLAYS: usize = 32;
const MAX_DISPLAY_BYTES: u64 = 16 << 20;

/// An output from its start on.
#[derive(Debug, Clone)]
pub struct FullOutput {
    file: Arc<File>,
    /// The number by which clients request it in its session.
    pub number: u64,
    pub bytes: u64,
    /// The number of bytes after the limit was reached.
    pub missing_bytes: u64,
}

impl FullOutput {
    /// Creates the file. `None` if that fails: then only head and tail exist.
    pub(super) fn create() -> Option<Self> {
        let file = Arc::new(tempfile::tempfile().ok()?);
        Some(Self { file, number: 0, bytes: 0, missing_bytes: 0 })
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        let capacity = usize::try_from(MAX_FULL_OUTPUT_BYTES - self.bytes).unwrap_or(usize::MAX);
        let (retained, rest) = bytes.split_at(capacity.min(bytes.len()));
        self.missing_bytes += rest.len() as u64;
        // After a gap nothing more is written: the file is the start of the output, without holes.
        if self.missing_bytes > rest.len() as u64 || (&*self.file).write_all(retained).is_err() {
            self.missing_bytes += retained.len() as u64;
        } else {
            self.bytes += retained.len() as u64;
        }
    }

    /// Reads the file. Blocks.
    pub(crate) fn read(&self) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(self.bytes).unwrap_or(0)];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }
}

/// The outputs and the displayed items that a session retains, and the number of its calls.
#[derive(Debug, Default)]
pub struct RetainedOutputs(Mutex<Retained>);

#[derive(Debug, Default)]
struct Retained {
    calls: u64,
    last_number: u64,
    outputs: VecDeque<FullOutput>,
    displays: VecDeque<RetainedDisplay>,
}

#[derive(Debug)]
struct RetainedDisplay {
    id: DisplayId,
    mime: String,
    data: FullOutput,
}

/// Identifies a displayed item within its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DisplayId {
    /// The number of the call.
    pub call: u64,
    pub index: usize,
}

impl RetainedOutputs {
    /// Numbers and retains the full outputs of a call. Returns the number of the call.
    pub(crate) fn add_call(&self, outputs: [&mut Output; 2]) -> u64 {
        let mut guard = self.0.lock();
        let retained = &mut *guard;
        retained.calls += 1;
        for full in outputs.into_iter().filter_map(|output| output.full.as_mut()) {
            retained.add(full);
        }
        retained.calls
    }

    /// Retains a text that is complete in memory, but too long for its response. None if that fails.
    pub fn retain_text(&self, text: &[&[u8]]) -> Option<FullOutput> {
        let mut full = FullOutput::create()?;
        for part in text {
            full.add(part);
        }
        self.0.lock().add(&mut full);
        Some(full)
    }

    /// Retains a displayed item. Returns false if that fails.
    pub fn retain_display(&self, id: DisplayId, mime: &str, data: &str) -> bool {
        let Some(mut full) = FullOutput::create() else { return false };
        full.add(data.as_bytes());
        if full.missing_bytes > 0 {
            return false;
        }
        let mut retained = self.0.lock();
        retained.displays.retain(|display| display.id != id);
        retained.displays.push_back(RetainedDisplay { id, mime: mime.to_owned(), data: full });
        let mut bytes: u64 = retained.displays.iter().map(|display| display.data.bytes).sum();
        while retained.displays.len() > MAX_DISPLAYS || bytes > MAX_DISPLAY_BYTES {
            bytes -= retained.displays.pop_front().map_or(bytes, |display| display.data.bytes);
        }
        true
    }

    pub(crate) fn find(&self, number: u64) -> Option<FullOutput> {
        self.0.lock().outputs.iter().find(|output| output.number == number).cloned()
    }

    /// Returns a displayed item and its MIME type.
    pub(crate) fn find_display(&self, id: DisplayId) -> Option<(FullOutput, String)> {
        let retained = self.0.lock();
        let found = retained.displays.iter().find(|display| display.id == id)?;
        Some((found.data.clone(), found.mime.clone()))
    }
}

impl Retained {
    /// Numbers and adds an output.
    fn add(&mut self, full: &mut FullOutput) {
        self.last_number += 1;
        full.number = self.last_number;
        self.outputs.push_back(full.clone());
        let mut bytes: u64 = self.outputs.iter().map(|output| output.bytes).sum();
        while self.outputs.len() > MAX_RETAINED || bytes > MAX_RETAINED_BYTES {
            bytes -= self.outputs.pop_front().map_or(bytes, |output| output.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_is_retained_and_the_rest_counted() {
        let mut full = FullOutput::create().unwrap();
        let limit = usize::try_from(MAX_FULL_OUTPUT_BYTES).unwrap();
        full.add(b"start");
        full.add(&vec![b'.'; limit]);
        full.add(b"more");
        assert_eq!((full.bytes, full.missing_bytes), (MAX_FULL_OUTPUT_BYTES, 9));
        let read = full.read().unwrap();
        assert!(read.len() == limit && read.starts_with(b"start."));
    }

    #[test]
    fn last_outputs_are_retained() {
        let outputs = RetainedOutputs::default();
        let output = |bytes| {
            let mut full = FullOutput::create().unwrap();
            full.add(&vec![b'.'; bytes]);
            Output { full: Some(full), ..Output::default() }
        };
        let found = || (0..99).filter(|number| outputs.find(*number).is_some()).collect::<Vec<u64>>();
        for _ in 0..20 {
            outputs.add_call([&mut output(1), &mut output(1)]);
        }
        assert_eq!(found(), (9..=40).collect::<Vec<_>>());
        let text = outputs.retain_text(&[b"head ", b"tail"]).unwrap();
        assert_eq!((text.number, outputs.find(41).unwrap().read().unwrap().as_slice()), (41, &b"head tail"[..]));
        let largest = usize::try_from(MAX_FULL_OUTPUT_BYTES).unwrap();
        for _ in 0..3 {
            outputs.add_call([&mut output(largest), &mut output(largest)]);
        }
        assert_eq!(found(), [44, 45, 46, 47]);
    }

    #[test]
    fn retained_displays_are_bounded_in_number_and_size() {
        let outputs = RetainedOutputs::default();
        let id = |index| DisplayId { call: 1, index };
        let retain = |index, bytes| outputs.retain_display(id(index), "text/html", &"x".repeat(bytes));
        for index in 0..=MAX_DISPLAYS {
            assert!(retain(index, 10));
        }
        let is_retained = |index| outputs.find_display(id(index)).is_some();
        assert!(!is_retained(0) && is_retained(1) && is_retained(MAX_DISPLAYS));
        assert_eq!(outputs.find_display(id(1)).unwrap().1, "text/html");
        let half = usize::try_from(MAX_DISPLAY_BYTES / 2).unwrap();
        assert!(retain(100, half) && retain(101, half) && !is_retained(MAX_DISPLAYS) && is_retained(100));
        assert!(!retain(102, half + 1), "an incomplete item is not retained");
    }
}
