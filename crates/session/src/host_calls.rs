//! What code asks of the host while it runs, and what it is told.
//!
//! Only carried here: who answers, and what may be asked, is the business of whoever gave the code. The guest's side is
//! hostile, so what waits is bounded in number and size, and a number is taken once.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use ringfence_guest::{HostRequest, HostResponse, JsonBytes};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use ringfence_core::Language;
use ringfence_guest::protocol;

/// Calls of one cell that may be open.
pub const MOST_OPEN_CALLS: usize = 1024;

/// What the open calls of one cell may hold together.
const MOST_OPEN_BYTES: usize = 32 << 20;

/// Answers that may wait for a guest that does not read; then it is not heard any more until it does.
const MOST_UNREAD: usize = 2 * MOST_OPEN_CALLS;

/// Answers that may wait to be passed on; those who have more wait themselves.
const ANSWERS_AT_ONCE: usize = 16;

/// Who answers code, given along with it.
#[derive(Clone)]
pub struct HostCalls {
    /// What the interpreter is told before the code: a JSON object.
    pub preface: Option<Arc<str>>,
    /// Called for each thing that is asked; must not take long.
    pub ask: Arc<dyn Fn(Asked) + Send + Sync>,
}

impl fmt::Debug for HostCalls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HostCalls").field("preface", &self.preface).finish_non_exhaustive()
    }
}

/// Something that code has asked.
#[derive(Debug)]
pub enum Asked {
    Call(HostCall),
    /// A frame that no kernel of ours sends, and why. It is not answered.
    Forged(&'static str),
}

#[derive(Debug)]
pub struct HostCall {
    pub method: String,
    /// JSON as the guest wrote it.
    pub params: Box<RawValue>,
    /// Cancelled when nobody waits for the answer any more.
    pub cancel: CancellationToken,
    pub note: Arc<CallNote>,
    pub reply: Reply,
}

/// What is known of a call when its cell ends before it.
#[derive(Debug, Default)]
pub struct CallNote {
    about: OnceLock<(String, String)>,
    has_started: AtomicBool,
}

impl CallNote {
    pub fn describe(&self, server: &str, tool: &str) {
        let _ = self.about.set((server.to_owned(), tool.to_owned()));
    }

    /// From now on it may have had an effect.
    pub fn start(&self) {
        self.has_started.store(true, Ordering::Release);
    }

    pub fn has_started(&self) -> bool {
        self.has_started.load(Ordering::Acquire)
    }

    /// The server and its tool; nothing for a call that reaches no server.
    pub fn about(&self) -> Option<(&str, &str)> {
        self.about.get().map(|(server, tool)| (server.as_str(), tool.as_str()))
    }
}

/// Where the answer to a call goes.
#[derive(Debug)]
pub struct Reply {
    number: u64,
    answers: mpsc::Sender<(u64, HostResponse)>,
}

impl Reply {
    /// To a cell that has ended, nothing is said any more.
    pub async fn send(self, answer: HostResponse) {
        let _ = self.answers.send((self.number, answer)).await;
    }
}

struct Answers {
    sender: mpsc::Sender<(u64, HostResponse)>,
    receiver: mpsc::Receiver<(u64, HostResponse)>,
}

struct Open {
    note: Arc<CallNote>,
    cancel: CancellationToken,
    bytes: usize,
}

/// The calls of one cell. Dropped, those that are open are cancelled.
pub(crate) struct Calls {
    language: Language,
    host: Option<HostCalls>,
    /// Made by the first call: most cells make none.
    answers: Option<Answers>,
    open: HashMap<u64, Open>,
    open_bytes: usize,
    given_up: Vec<Arc<CallNote>>,
    is_over: bool,
}

impl Calls {
    pub(crate) fn new(language: Language, host: Option<HostCalls>) -> Self {
        Self {
            language,
            host,
            answers: None,
            open: HashMap::new(),
            open_bytes: 0,
            given_up: Vec::new(),
            is_over: false,
        }
    }

    /// Takes a call of the cell that runs. What is answered at once goes into `outbox`.
    pub(crate) fn take(&mut self, request: HostRequest, last_number: &mut u64, outbox: &mut Outbox) {
        let HostRequest { cell: _, number, method, params } = request;
        if number <= *last_number {
            return self.forged("the number of a call was used again");
        }
        *last_number = number;
        let bytes = method.len() + params.get().len();
        if self.is_over {
            let message = "the code is being ended: its time is up, or nobody waits for it";
            let over = json!({"kind": "cancelled", "message": message, "may_have_run": false});
            return outbox.answer(self.language, number, HostResponse::Error(over));
        }
        let Some(host) = &self.host else {
            let nobody = json!({"kind": "refused", "message": "this session has nobody to ask"});
            return outbox.answer(self.language, number, HostResponse::Error(nobody));
        };
        let limit = if self.open.len() >= MOST_OPEN_CALLS {
            Some("too many calls at once: wait for some of them")
        } else if self.open_bytes + bytes > MOST_OPEN_BYTES {
            Some("the arguments of the calls that are open are too large together")
        } else {
            None
        };
        if let Some(message) = limit {
            let refusal = HostResponse::Error(json!({"kind": "limit", "message": message}));
            return outbox.answer(self.language, number, refusal);
        }
        let (note, cancel) = (Arc::new(CallNote::default()), CancellationToken::new());
        let answers = self.answers.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(ANSWERS_AT_ONCE);
            Answers { sender, receiver }
        });
        let reply = Reply { number, answers: answers.sender.clone() };
        self.open_bytes += bytes;
        self.open.insert(number, Open { note: Arc::clone(&note), cancel: cancel.clone(), bytes });
        (host.ask)(Asked::Call(HostCall { method, params, cancel, note, reply }));
    }

    pub(crate) fn forged(&self, why: &'static str) {
        if let Some(host) = &self.host {
            (host.ask)(Asked::Forged(why));
        }
    }

    /// Code no longer waits for a call, of its own accord. Whether there was one.
    pub(crate) fn withdraw(&mut self, number: u64) -> bool {
        let closed = self.close(number);
        if let Some(call) = &closed {
            call.cancel.cancel();
        }
        closed.is_some()
    }

    /// The cell is being ended: all calls are, at once, or the place of one would be taken by the next that waits. They
    /// are not answered, so that the code is interrupted and does not fail of something else.
    pub(crate) fn give_up(&mut self) {
        self.is_over = true;
        self.open_bytes = 0;
        let open: Vec<Open> = self.open.drain().map(|(_, call)| call).collect();
        for call in &open {
            call.cancel.cancel();
        }
        self.given_up.extend(open.into_iter().map(|call| call.note));
    }

    fn close(&mut self, number: u64) -> Option<Open> {
        let call = self.open.remove(&number)?;
        self.open_bytes -= call.bytes;
        Some(call)
    }

    /// Waits for the next answer to a call that is still open.
    pub(crate) async fn answer(&mut self) -> (u64, HostResponse) {
        while let Some(answers) = &mut self.answers
            && let Some((number, answer)) = answers.receiver.recv().await
        {
            if self.close(number).is_some() {
                return (number, answer);
            }
        }
        std::future::pending().await
    }

    /// What was not answered when the cell ended.
    pub(crate) fn end(mut self) -> Vec<Arc<CallNote>> {
        let mut notes = std::mem::take(&mut self.given_up);
        notes.extend(self.open.values().map(|call| Arc::clone(&call.note)));
        notes
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        for call in self.open.values() {
            call.cancel.cancel();
        }
    }
}

/// What is on its way to the kernel.
#[derive(Default)]
pub(crate) struct Outbox {
    pieces: VecDeque<JsonBytes>,
    /// Of the first.
    sent: usize,
}

impl Outbox {
    pub(crate) fn of(bytes: Vec<u8>, sent: usize) -> Self {
        if sent == bytes.len() { Self::default() } else { Self { pieces: [Box::new(bytes) as JsonBytes].into(), sent } }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether the guest leaves too much unread.
    pub(crate) fn is_full(&self) -> bool {
        self.pieces.len() >= MOST_UNREAD
    }

    pub(crate) fn front(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| &piece.as_ref().as_ref()[self.sent..])
    }

    pub(crate) fn advance(&mut self, length: usize) {
        self.sent += length;
        if self.front().is_empty() {
            self.pieces.pop_front();
            self.sent = 0;
        }
    }

    pub(crate) fn answer(&mut self, language: Language, number: u64, answer: HostResponse) {
        self.pieces.extend(protocol::encode_response(language, number, answer));
    }
}

#[cfg(test)]
mod tests;
