//! The client's side of an MCP session: the messages to it, and the requests that it has not answered yet.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ringfence_core::Principal;
use ringfence_core::sync::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::connection::Connection;
use crate::era::Era;
use crate::replay::Replays;
use crate::rpc::{Id, Outcome, RpcError};
use crate::{era, rpc};

/// The first version in which a stream begins with an event that allows to resume it.
const FIRST_RESUMABLE_VERSION: &str = "2025-11-25";

/// Maximum number of messages that wait for a slow client; further notifications are dropped.
pub(crate) const MAX_QUEUED_MESSAGES: usize = 64;

/// Maximum time for a client to respond to a request of a server, which may ask a person.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(600);

/// Maximum number of resources that one client may subscribe to.
const MAX_SUBSCRIPTIONS: usize = 1024;

/// Maximum number of requests to one client that wait for their response.
const MAX_OPEN_REQUESTS: usize = 64;

/// Sends messages that belong to a request, besides its response.
#[derive(Clone, Default)]
pub struct MessageSink(Option<mpsc::Sender<Value>>);

/// A client that is known beyond one request: one that has sent `initialize`, or one on stdio.
#[derive(Default)]
pub struct Client {
    state: Mutex<State>,
    open_requests: Mutex<HashMap<Id, oneshot::Sender<Outcome>>>,
    last_request: AtomicI64,
    replays: Replays,
}

#[derive(Default)]
struct State {
    capabilities: Arc<Value>,
    version: &'static str,
    /// The stream for messages that belong to no request.
    stream: MessageSink,
    log_level: Option<String>,
    subscribed: BTreeSet<String>,
}

/// Everything about a request besides its method and its parameters.
#[derive(Clone)]
pub struct Context {
    pub principal: Principal,
    pub era: Era,
    /// The capabilities that the client declares.
    pub capabilities: Arc<Value>,
    pub sink: MessageSink,
    pub client: Option<Arc<Client>>,
    /// None if the request belongs to no connection.
    pub connection: Option<Connection>,
    pub cancel: CancellationToken,
    pub request: Id,
    /// Whether the client has declared a protocol version: with `initialize`, in a header or in `_meta`. Plain requests
    /// of programs that know JSON-RPC but not MCP declare none.
    pub declares_version: bool,
}

impl MessageSink {
    pub fn new() -> (Self, mpsc::Receiver<Value>) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_MESSAGES);
        (Self(Some(sender)), receiver)
    }

    pub(crate) fn from_sender(sender: mpsc::Sender<Value>) -> Self {
        Self(Some(sender))
    }

    /// A sink for requests whose client accepts only the response.
    pub fn closed() -> Self {
        Self(None)
    }

    pub fn is_open(&self) -> bool {
        self.0.as_ref().is_some_and(|sender| !sender.is_closed())
    }

    /// Sends a notification, which is dropped if the client is too slow.
    pub fn notify(&self, method: &str, params: Option<Value>) {
        if let Some(sender) = &self.0 {
            let _ = sender.try_send(rpc::notification(method, params));
        }
    }

    async fn send(&self, message: Value) -> Result<(), RpcError> {
        let closed =
            || RpcError::new(RpcError::INTERNAL_ERROR, "the client cannot be called: it accepts no stream of messages");
        let sender = self.0.as_ref().ok_or_else(closed)?;
        sender.send(message).await.map_err(|_| closed())
    }
}

impl Client {
    /// Records the capabilities of `initialize`, and the negotiated version.
    pub fn initialize(&self, capabilities: Value, version: &'static str) {
        let mut state = self.state.lock();
        state.capabilities = Arc::new(capabilities);
        state.version = version;
    }

    /// Whether the client has sent `initialize`.
    pub(crate) fn is_initialized(&self) -> bool {
        !self.state.lock().version.is_empty()
    }

    /// The event streams that the client may resume.
    pub(crate) fn replays(&self) -> &Replays {
        &self.replays
    }

    /// Whether the client knows that streams can be resumed.
    pub(crate) fn can_resume(&self) -> bool {
        self.state.lock().version >= FIRST_RESUMABLE_VERSION
    }

    /// Whether the client may send batches. True before `initialize`.
    pub(crate) fn may_send_batches(&self) -> bool {
        era::has_batches(self.state.lock().version)
    }

    pub fn capabilities(&self) -> Arc<Value> {
        Arc::clone(&self.state.lock().capabilities)
    }

    /// Sets the stream for messages that belong to no request; it replaces the one before.
    pub(crate) fn set_stream(&self, stream: MessageSink) {
        self.state.lock().stream = stream;
    }

    pub fn stream(&self) -> MessageSink {
        self.state.lock().stream.clone()
    }

    pub fn set_log_level(&self, level: &str) {
        self.state.lock().log_level = Some(level.to_owned());
    }

    pub fn log_level(&self) -> Option<String> {
        self.state.lock().log_level.clone()
    }

    /// Subscribes to a resource. Returns false if the client has too many subscriptions.
    pub fn subscribe(&self, uri: &str) -> bool {
        let mut state = self.state.lock();
        if state.subscribed.len() >= MAX_SUBSCRIPTIONS && !state.subscribed.contains(uri) {
            return false;
        }
        state.subscribed.insert(uri.to_owned());
        true
    }

    pub fn unsubscribe(&self, uri: &str) {
        self.state.lock().subscribed.remove(uri);
    }

    pub fn is_subscribed(&self, uri: &str) -> bool {
        self.state.lock().subscribed.contains(uri)
    }

    /// Sends a request to the client and waits for its response.
    pub async fn call(
        &self,
        sink: &MessageSink,
        method: &str,
        params: Option<Value>,
        cancel: &CancellationToken,
    ) -> Outcome {
        let id = Id::Number(self.last_request.fetch_add(1, Ordering::Relaxed) + 1);
        let (sender, response) = oneshot::channel();
        {
            let mut open = self.open_requests.lock();
            if open.len() >= MAX_OPEN_REQUESTS {
                let message = format!("{MAX_OPEN_REQUESTS} requests to the client wait for a response, the maximum");
                return Err(RpcError::new(RpcError::INTERNAL_ERROR, message));
            }
            open.insert(id.clone(), sender);
        }
        let request = OpenRequest { client: self, id };
        let exchange = async {
            sink.send(rpc::request(&request.id, method, params)).await?;
            let disconnected = || RpcError::new(RpcError::INTERNAL_ERROR, "the client disconnected");
            response.await.unwrap_or_else(|_| Err(disconnected()))
        };
        tokio::select! {
            // In this order, so that a request which was not sent yet is not cancelled at the client.
            biased;
            outcome = exchange => outcome,
            () = cancel.cancelled() => {
                request.cancel(sink);
                Err(RpcError::new(RpcError::INTERNAL_ERROR, "the call was cancelled before the client responded"))
            }
            () = tokio::time::sleep(RESPONSE_TIMEOUT) => {
                request.cancel(sink);
                Err(RpcError::new(RpcError::INTERNAL_ERROR, "the client did not respond in time"))
            }
        }
    }

    /// Handles a response of the client. Ignores one without a request.
    pub(crate) fn handle_response(&self, id: &Id, outcome: Outcome) {
        if let Some(sender) = self.open_requests.lock().remove(id) {
            let _ = sender.send(outcome);
        }
    }
}

/// A request to the client, until its caller stops waiting for the response.
struct OpenRequest<'a> {
    client: &'a Client,
    id: Id,
}

impl OpenRequest<'_> {
    fn cancel(&self, sink: &MessageSink) {
        sink.notify("notifications/cancelled", Some(json!({"requestId": self.id, "reason": "no longer needed"})));
    }
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        self.client.open_requests.lock().remove(&self.id);
    }
}

impl Context {
    /// Whether the client declares a capability, such as `elicitation`.
    pub fn client_can(&self, capability: &str) -> bool {
        self.capabilities.get(capability).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn response_reaches_its_request() {
        let client = Client::default();
        let (sink, mut sent) = MessageSink::new();
        let never = CancellationToken::new();
        let (outcome, ()) = tokio::join!(client.call(&sink, "roots/list", None, &never), async {
            let request = sent.recv().await.unwrap();
            assert_eq!(request["method"], "roots/list");
            client.handle_response(&Id::Number(99), Ok(json!("for another request")));
            client.handle_response(&serde_json::from_value(request["id"].clone()).unwrap(), Ok(json!({"roots": []})));
        });
        assert_eq!(outcome, Ok(json!({"roots": []})));
        assert!(client.open_requests.lock().is_empty());
    }

    #[tokio::test]
    async fn cancelled_call_cancels_its_request_to_the_client() {
        let client = Client::default();
        let (sink, mut sent) = MessageSink::new();
        let cancel = CancellationToken::new();
        cancel.cancel();
        assert!(client.call(&sink, "elicitation/create", None, &cancel).await.is_err());
        assert_eq!(sent.recv().await.unwrap()["method"], "elicitation/create");
        assert_eq!(sent.recv().await.unwrap()["params"]["requestId"], 1);
        assert!(client.open_requests.lock().is_empty());
    }

    #[test]
    fn subscriptions_are_bounded() {
        let client = Client::default();
        for number in 0..MAX_SUBSCRIPTIONS {
            assert!(client.subscribe(&number.to_string()));
        }
        assert!(!client.subscribe("one more") && client.subscribe("0"));
        client.unsubscribe("0");
        assert!(client.subscribe("one more") && client.is_subscribed("one more"));
    }

    #[tokio::test(start_paused = true)]
    async fn call_times_out_if_the_client_does_not_read() {
        let client = Client::default();
        let (sink, _unread) = MessageSink::new();
        for _ in 0..MAX_QUEUED_MESSAGES {
            sink.notify("x", None);
        }
        assert!(client.call(&sink, "roots/list", None, &CancellationToken::new()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn call_times_out_if_the_client_does_not_respond() {
        let client = Client::default();
        let (sink, _sent) = MessageSink::new();
        let outcome = client.call(&sink, "elicitation/create", None, &CancellationToken::new()).await;
        assert!(outcome.unwrap_err().message.contains("in time"));
        assert!(client.call(&MessageSink::closed(), "x", None, &CancellationToken::new()).await.is_err());
    }
}
