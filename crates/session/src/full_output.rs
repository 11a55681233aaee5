//! Output too long to be answered in full, kept beside the answer within bounds of its own.
//!
//! It lies in temporary files without a name: nobody else can open them, and they are gone with the session or the
//! server, however that ends. They cost the host no memory, unless its directory for temporary files is in memory.

use ringfence_core::sync::Mutex;
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::{Output, Sessions, events};
use ringfence_core::AuditKind;
use ringfence_core::{Failure, Kind, Principal, SessionId};

/// What is kept of one output.
pub const MOST_WHOLE_BYTES: u64 = 8 << 20;

/// Outputs of a session that are kept; the oldest goes first.
const MOST_KEPT: usize = 4;

/// An output from its beginning on.
#[derive(Debug, Clone)]
pub struct Whole {
    file: Arc<File>,
    /// By which it can be asked for in its session.
    pub number: u64,
    pub bytes: u64,
    /// What was written after the bound was met.
    pub missing_bytes: u64,
}

impl Whole {
    /// None where no file can be made: then there is only the head and the tail.
    pub(crate) fn begin() -> Option<Self> {
        let file = Arc::new(tempfile::tempfile().ok()?);
        Some(Self { file, number: 0, bytes: 0, missing_bytes: 0 })
    }

    pub(crate) fn take(&mut self, bytes: &[u8]) {
        let room = usize::try_from(MOST_WHOLE_BYTES - self.bytes).unwrap_or(usize::MAX);
        let (kept, rest) = bytes.split_at(room.min(bytes.len()));
        self.missing_bytes += rest.len() as u64;
        // After a gap nothing more is kept: what is there is the beginning without holes.
        if self.missing_bytes > rest.len() as u64 || (&*self.file).write_all(kept).is_err() {
            self.missing_bytes += kept.len() as u64;
        } else {
            self.bytes += kept.len() as u64;
        }
    }

    fn read(&self) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(self.bytes).unwrap_or(0)];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }
}

/// The outputs that a session keeps.
#[derive(Default)]
pub(crate) struct Outputs(Mutex<Shelf>);

#[derive(Default)]
struct Shelf {
    answers: u64,
    last: u64,
    kept: VecDeque<Whole>,
}

impl Outputs {
    /// Keeps what the outputs of a call have too much, and numbers it. Gives the call's own number.
    pub(crate) fn keep(&self, outputs: [&mut Output; 2]) -> u64 {
        let mut guard = self.0.lock();
        let Shelf { answers, last, kept } = &mut *guard;
        *answers += 1;
        for whole in outputs.into_iter().filter_map(|output| output.whole.as_mut()) {
            *last += 1;
            whole.number = *last;
            kept.push_back(whole.clone());
        }
        while kept.len() > MOST_KEPT {
            kept.pop_front();
        }
        *answers
    }

    fn find(&self, number: u64) -> Option<Whole> {
        let guard = self.0.lock();
        guard.kept.iter().find(|whole| whole.number == number).cloned()
    }
}

impl Sessions {
    /// An output that was kept, and how much of it was not.
    pub async fn read_output(
        &self,
        principal: &Principal,
        id: &SessionId,
        number: u64,
    ) -> Result<(Vec<u8>, u64), Failure> {
        let read = self.try_read_output(principal, id, number).await;
        let (bytes, missing) = read.map_err(|failure| self.refused(principal, Some(id), failure))?;
        self.0.audit.record(events::moved(AuditKind::FileRead, principal, id, bytes.len()));
        Ok((bytes, missing))
    }

    async fn try_read_output(
        &self,
        principal: &Principal,
        id: &SessionId,
        number: u64,
    ) -> Result<(Vec<u8>, u64), Failure> {
        let whole = self.find(principal, id)?.outputs.find(number).ok_or_else(|| {
            Failure::new(Kind::NotFound, format!("output {number} of this session is not kept"))
                .hint("only the last few long outputs are, by the server that gave them; write what matters to a file")
        })?;
        let missing = whole.missing_bytes;
        let read = self.tasks().spawn_blocking(move || whole.read()).await;
        match read.map_err(|error| error.to_string()).and_then(|read| read.map_err(|error| error.to_string())) {
            Ok(bytes) => Ok((bytes, missing)),
            Err(error) => Err(Failure::new(Kind::Internal, format!("an output cannot be read: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_is_kept_and_the_rest_counted() {
        let mut whole = Whole::begin().unwrap();
        let most = usize::try_from(MOST_WHOLE_BYTES).unwrap();
        whole.take(b"start");
        whole.take(&vec![b'.'; most]);
        whole.take(b"more");
        assert_eq!((whole.bytes, whole.missing_bytes), (MOST_WHOLE_BYTES, 9));
        let read = whole.read().unwrap();
        assert!(read.len() == most && read.starts_with(b"start."));
    }

    #[test]
    fn the_last_few_are_kept() {
        let outputs = Outputs::default();
        for _ in 0..3 {
            let output = || Output { whole: Whole::begin(), ..Output::default() };
            outputs.keep([&mut output(), &mut output()]);
        }
        let found: Vec<u64> = (0..9).filter(|number| outputs.find(*number).is_some()).collect();
        assert_eq!(found, [3, 4, 5, 6]);
    }
}
