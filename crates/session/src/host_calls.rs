//! Host calls: requests of running code to the host, and the responses.
//!
//! This module only transports them; the caller of `execute` decides what is allowed and responds. The guest is hostile,
//! so open calls are limited in number and size, and no number is accepted twice.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use ringfence_core::Language;
use ringfence_guest::{HostRequest, HostResponse, JsonBytes, protocol};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Maximum number of open calls of one cell.
pub const MAX_OPEN_CALLS: usize = 1024;

/// Maximum size of all open calls of one cell.
const MAX_OPEN_BYTES: usize = 32 << 20;

/// Maximum number of responses that wait for a guest that does not read. Then nothing is received from it until it does.
const MAX_UNREAD_RESPONSES: usize = 2 * MAX_OPEN_CALLS;

/// Capacity of the channel for responses. Senders wait when it is full.
const RESPONSE_CHANNEL_CAPACITY: usize = 16;

/// Handles the host calls of one piece of code.
#[derive(Clone)]
pub struct HostCalls {
    /// A JSON object that the interpreter gets before the code.
    pub preface: Option<Arc<str>>,
    /// Called for each event; must not block.
    pub on_event: Arc<dyn Fn(HostCallEvent) + Send + Sync>,
}

impl fmt::Debug for HostCalls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HostCalls").field("preface", &self.preface).finish_non_exhaustive()
    }
}

/// An event of running code.
#[derive(Debug)]
pub enum HostCallEvent {
    Call(HostCall),
    /// The code sent a frame that a genuine kernel never sends; with the reason. It gets no response.
    Forged(&'static str),
}

/// A request of running code.
#[derive(Debug)]
pub struct HostCall {
    pub method: String,
    /// JSON as the guest wrote it.
    pub params: Box<RawValue>,
    /// Cancelled when the response is no longer needed.
    pub cancel: CancellationToken,
    pub note: Arc<CallNote>,
    pub responder: Responder,
}

/// Information about a call, for the case that its cell ends first.
#[derive(Debug, Default)]
pub struct CallNote {
    target: OnceLock<(String, String)>,
    has_started: AtomicBool,
}

impl CallNote {
    /// Sets the server and the tool of the call.
    pub fn describe(&self, server: &str, tool: &str) {
        let _ = self.target.set((server.to_owned(), tool.to_owned()));
    }

    /// Records that the call may have an effect from now on.
    pub fn start(&self) {
        self.has_started.store(true, Ordering::Release);
    }

    pub fn has_started(&self) -> bool {
        self.has_started.load(Ordering::Acquire)
    }

    /// The server and its tool. `None` for a call that reaches no server.
    pub fn target(&self) -> Option<(&str, &str)> {
        self.target.get().map(|(server, tool)| (server.as_str(), tool.as_str()))
    }
}

/// Sends the response to a call.
#[derive(Debug)]
pub struct Responder {
    number: u64,
    responses: mpsc::Sender<(u64, HostResponse)>,
}

impl Responder {
    /// Sends the response. Has no effect if the cell has ended.
    pub async fn send(self, response: HostResponse) {
        let _ = self.responses.send((self.number, response)).await;
    }
}

struct ResponseChannel {
    sender: mpsc::Sender<(u64, HostResponse)>,
    receiver: mpsc::Receiver<(u64, HostResponse)>,
}

struct OpenCall {
    note: Arc<CallNote>,
    cancel: CancellationToken,
    bytes: usize,
}

/// The open calls of one cell. Dropping it cancels them.
pub(crate) struct OpenCalls {
    language: Language,
    host: Option<HostCalls>,
    /// Created by the first call, since most cells make none.
    responses: Option<ResponseChannel>,
    open: HashMap<u64, OpenCall>,
    open_bytes: usize,
    /// Calls that were cancelled because the cell is being ended.
    cancelled: Vec<Arc<CallNote>>,
    is_ending: bool,
}

impl OpenCalls {
    pub(crate) fn new(language: Language, host: Option<HostCalls>) -> Self {
        Self {
            language,
            host,
            responses: None,
            open: HashMap::new(),
            open_bytes: 0,
            cancelled: Vec::new(),
            is_ending: false,
        }
    }

    /// Handles a call of the running cell. Immediate responses go to `outbox`.
    pub(crate) fn handle_call(&mut self, request: HostRequest, last_number: &mut u64, outbox: &mut Outbox) {
        let HostRequest { cell: _, number, method, params } = request;
        if number <= *last_number {
            return self.report_forged("the number of a call was used again");
        }
        *last_number = number;
        let bytes = method.len() + params.get().len();
        if self.is_ending {
            let message = "the code is being ended: it reached its timeout or was cancelled";
            let error = json!({"kind": "cancelled", "message": message, "may_have_run": false});
            return outbox.add_response(self.language, number, HostResponse::Error(error));
        }
        let Some(host) = &self.host else {
            let error = json!({"kind": "refused", "message": "this session does not support host calls"});
            return outbox.add_response(self.language, number, HostResponse::Error(error));
        };
        let limit = if self.open.len() >= MAX_OPEN_CALLS {
            Some("too many concurrent calls: wait for some of them")
        } else if self.open_bytes + bytes > MAX_OPEN_BYTES {
            Some("the arguments of all open calls together are too large")
        } else {
            None
        };
        if let Some(message) = limit {
            let refusal = HostResponse::Error(json!({"kind": "limit", "message": message}));
            return outbox.add_response(self.language, number, refusal);
        }
        let (note, cancel) = (Arc::new(CallNote::default()), CancellationToken::new());
        let responses = self.responses.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(RESPONSE_CHANNEL_CAPACITY);
            ResponseChannel { sender, receiver }
        });
        let responder = Responder { number, responses: responses.sender.clone() };
        self.open_bytes += bytes;
        self.open.insert(number, OpenCall { note: Arc::clone(&note), cancel: cancel.clone(), bytes });
        (host.on_event)(HostCallEvent::Call(HostCall { method, params, cancel, note, responder }));
    }

    pub(crate) fn report_forged(&self, reason: &'static str) {
        if let Some(host) = &self.host {
            (host.on_event)(HostCallEvent::Forged(reason));
        }
    }

    /// Cancels a call at the request of the code. False if it is not open.
    pub(crate) fn withdraw(&mut self, number: u64) -> bool {
        let closed = self.close(number);
        if let Some(call) = &closed {
            call.cancel.cancel();
        }
        closed.is_some()
    }

    /// Cancels all calls, because the cell is being ended. They get no response, so that the code ends with the
    /// interrupt and not with another error. Later calls are refused: otherwise code that waits for a free slot would
    /// start the next one.
    pub(crate) fn cancel_all(&mut self) {
        self.is_ending = true;
        self.open_bytes = 0;
        let open: Vec<OpenCall> = self.open.drain().map(|(_, call)| call).collect();
        for call in &open {
            call.cancel.cancel();
        }
        self.cancelled.extend(open.into_iter().map(|call| call.note));
    }

    fn close(&mut self, number: u64) -> Option<OpenCall> {
        let call = self.open.remove(&number)?;
        self.open_bytes -= call.bytes;
        Some(call)
    }

    /// Waits for the next response to a call that is still open. Cancel-safe.
    pub(crate) async fn next_response(&mut self) -> (u64, HostResponse) {
        while let Some(responses) = &mut self.responses
            && let Some((number, response)) = responses.receiver.recv().await
        {
            if self.close(number).is_some() {
                return (number, response);
            }
        }
        std::future::pending().await
    }

    /// Ends with the cell. Returns the calls that got no response.
    pub(crate) fn finish(mut self) -> Vec<Arc<CallNote>> {
        let mut notes = std::mem::take(&mut self.cancelled);
        notes.extend(self.open.values().map(|call| Arc::clone(&call.note)));
        notes
    }
}

impl Drop for OpenCalls {
    fn drop(&mut self) {
        for call in self.open.values() {
            call.cancel.cancel();
        }
    }
}

/// Frames that wait to be sent to the kernel.
#[derive(Default)]
pub(crate) struct Outbox {
    frames: VecDeque<JsonBytes>,
    /// The number of sent bytes of the first frame.
    sent: usize,
}

impl Outbox {
    /// Begins with a frame of which a part was sent already.
    pub(crate) fn new(bytes: Vec<u8>, sent: usize) -> Self {
        if sent == bytes.len() { Self::default() } else { Self { frames: [Box::new(bytes) as JsonBytes].into(), sent } }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether the guest leaves too many responses unread.
    pub(crate) fn is_full(&self) -> bool {
        self.frames.len() >= MAX_UNREAD_RESPONSES
    }

    /// The next bytes to send.
    pub(crate) fn front(&self) -> &[u8] {
        self.frames.front().map_or(&[], |frame| &frame.as_ref().as_ref()[self.sent..])
    }

    /// Removes bytes that were sent.
    pub(crate) fn advance(&mut self, length: usize) {
        self.sent += length;
        if self.front().is_empty() {
            self.frames.pop_front();
            self.sent = 0;
        }
    }

    pub(crate) fn add_response(&mut self, language: Language, number: u64, response: HostResponse) {
        self.frames.extend(protocol::encode_response(language, number, response));
    }
}

#[cfg(test)]
mod tests;
