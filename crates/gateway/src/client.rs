//! The client's side of a conversation: where messages to it go, and what it was asked.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringfence_core::Principal;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::era;
use crate::era::Era;
use crate::http::Replays;
use crate::rpc;
use crate::rpc::{Id, Outcome, RpcError};

/// The first version in which a stream begins with an event that says how to take it up again.
const SINCE_RESUMING: &str = "2025-11-25";

/// Messages that may wait for a client which reads slowly; more of what is not an answer are dropped.
pub(crate) const WAITING: usize = 64;

/// How long a person may think about a question of a server's.
const PATIENCE: Duration = Duration::from_secs(600);

/// Resources that one client may be told of.
const MOST_SUBSCRIPTIONS: usize = 1024;

/// Questions to one client that may be open at a time.
const MOST_QUESTIONS: usize = 64;

/// Where messages go that belong to a request, beside its answer.
#[derive(Clone, Default)]
pub(crate) struct Outlet(Option<mpsc::Sender<Value>>);

/// A client that is remembered from one request to the next: one that has opened with `initialize`, or one on stdio.
#[derive(Default)]
pub(crate) struct Client {
    state: Mutex<State>,
    questions: Mutex<HashMap<Id, oneshot::Sender<Outcome>>>,
    last_question: AtomicI64,
    replays: Replays,
}

#[derive(Default)]
struct State {
    capabilities: Arc<Value>,
    version: &'static str,
    /// For what it has not asked for: its own stream.
    stream: Outlet,
    log_level: Option<String>,
    subscribed: BTreeSet<String>,
}

/// What is known of a request besides its words.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) principal: Principal,
    pub(crate) era: Era,
    /// What the client can do, as it says.
    pub(crate) capabilities: Arc<Value>,
    pub(crate) outlet: Outlet,
    pub(crate) client: Option<Arc<Client>>,
    pub(crate) cancel: CancellationToken,
    pub(crate) request: Id,
}

impl Outlet {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Value>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(Some(sender)), receiver)
    }

    pub(crate) fn of(sender: mpsc::Sender<Value>) -> Self {
        Self(Some(sender))
    }

    /// Where a client takes nothing but the answer, or nothing else can come.
    pub(crate) fn closed() -> Self {
        Self(None)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.0.as_ref().is_some_and(|sender| !sender.is_closed())
    }

    /// Sends what may be lost.
    pub(crate) fn notify(&self, method: &str, params: Option<Value>) {
        if let Some(sender) = &self.0 {
            let _ = sender.try_send(rpc::notification(method, params));
        }
    }

    async fn send(&self, message: Value) -> Result<(), RpcError> {
        let gone =
            || RpcError::new(RpcError::INTERNAL_ERROR, "the client cannot be asked: it takes no stream of messages");
        let sender = self.0.as_ref().ok_or_else(gone)?;
        sender.send(message).await.map_err(|_| gone())
    }
}

impl Client {
    /// What it has said of itself when it opened the conversation, and what was agreed on.
    pub(crate) fn introduce(&self, capabilities: Value, version: &'static str) {
        let mut state = self.state();
        state.capabilities = Arc::new(capabilities);
        state.version = version;
    }

    /// Its event streams, which it may take up again.
    pub(crate) fn replays(&self) -> &Replays {
        &self.replays
    }

    /// Whether it knows that streams can be taken up again.
    pub(crate) fn can_resume(&self) -> bool {
        self.state().version >= SINCE_RESUMING
    }

    /// Whether it may send several messages at once, as far as is known.
    pub(crate) fn may_send_batches(&self) -> bool {
        era::has_batches(self.state().version)
    }

    pub(crate) fn capabilities(&self) -> Arc<Value> {
        Arc::clone(&self.state().capabilities)
    }

    /// Takes the stream for what it has not asked for; the last one given is the one that is used.
    pub(crate) fn listen(&self, stream: Outlet) {
        self.state().stream = stream;
    }

    pub(crate) fn stream(&self) -> Outlet {
        self.state().stream.clone()
    }

    pub(crate) fn set_log_level(&self, level: &str) {
        self.state().log_level = Some(level.to_owned());
    }

    pub(crate) fn log_level(&self) -> Option<String> {
        self.state().log_level.clone()
    }

    /// Remembers that it wants to hear of a resource; whether there was room for that.
    pub(crate) fn subscribe(&self, uri: &str) -> bool {
        let mut state = self.state();
        if state.subscribed.len() >= MOST_SUBSCRIPTIONS && !state.subscribed.contains(uri) {
            return false;
        }
        state.subscribed.insert(uri.to_owned());
        true
    }

    pub(crate) fn unsubscribe(&self, uri: &str) {
        self.state().subscribed.remove(uri);
    }

    pub(crate) fn is_subscribed(&self, uri: &str) -> bool {
        self.state().subscribed.contains(uri)
    }

    /// Asks it something and waits for the answer.
    pub(crate) async fn ask(
        &self,
        outlet: &Outlet,
        method: &str,
        params: Option<Value>,
        cancel: &CancellationToken,
    ) -> Outcome {
        let id = Id::Number(self.last_question.fetch_add(1, Ordering::Relaxed) + 1);
        let (reply, answered) = oneshot::channel();
        {
            let mut questions = self.questions();
            if questions.len() >= MOST_QUESTIONS {
                return Err(RpcError::new(RpcError::INTERNAL_ERROR, "too many questions to the client are open"));
            }
            questions.insert(id.clone(), reply);
        }
        let question = Question { client: self, id };
        let exchange = async {
            outlet.send(rpc::request(&question.id, method, params)).await?;
            answered.await.unwrap_or_else(|_| Err(RpcError::new(RpcError::INTERNAL_ERROR, "the client is gone")))
        };
        tokio::select! {
            // What was not asked must not be withdrawn.
            biased;
            answer = exchange => answer,
            () = cancel.cancelled() => {
                question.withdraw(outlet);
                Err(RpcError::new(RpcError::INTERNAL_ERROR, "the call was cancelled before the client answered"))
            }
            () = tokio::time::sleep(PATIENCE) => {
                question.withdraw(outlet);
                Err(RpcError::new(RpcError::INTERNAL_ERROR, "the client did not answer in time"))
            }
        }
    }

    /// Hears an answer; one to something that was not asked is nobody's.
    pub(crate) fn hear(&self, id: &Id, outcome: Outcome) {
        if let Some(reply) = self.questions().remove(id) {
            let _ = reply.send(outcome);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn questions(&self) -> MutexGuard<'_, HashMap<Id, oneshot::Sender<Outcome>>> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question that is open as long as somebody waits for its answer.
struct Question<'a> {
    client: &'a Client,
    id: Id,
}

impl Question<'_> {
    fn withdraw(&self, outlet: &Outlet) {
        outlet.notify("notifications/cancelled", Some(json!({"requestId": self.id, "reason": "no longer needed"})));
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        self.client.questions().remove(&self.id);
    }
}

impl Context {
    /// Whether the client says it can do something, such as `elicitation`.
    pub(crate) fn client_can(&self, capability: &str) -> bool {
        self.capabilities.get(capability).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_finds_its_question() {
        let client = Client::default();
        let (outlet, mut sent) = Outlet::new();
        let never = CancellationToken::new();
        let (answer, ()) = tokio::join!(client.ask(&outlet, "roots/list", None, &never), async {
            let question = sent.recv().await.unwrap();
            assert_eq!(question["method"], "roots/list");
            client.hear(&Id::Number(99), Ok(json!("for another")));
            client.hear(&serde_json::from_value(question["id"].clone()).unwrap(), Ok(json!({"roots": []})));
        });
        assert_eq!(answer, Ok(json!({"roots": []})));
        assert!(client.questions().is_empty());
    }

    #[tokio::test]
    async fn a_question_of_a_cancelled_call_is_withdrawn() {
        let client = Client::default();
        let (outlet, mut sent) = Outlet::new();
        let cancel = CancellationToken::new();
        cancel.cancel();
        assert!(client.ask(&outlet, "elicitation/create", None, &cancel).await.is_err());
        assert_eq!(sent.recv().await.unwrap()["method"], "elicitation/create");
        assert_eq!(sent.recv().await.unwrap()["params"]["requestId"], 1);
        assert!(client.questions().is_empty());
    }

    #[test]
    fn subscriptions_are_bounded() {
        let client = Client::default();
        for number in 0..MOST_SUBSCRIPTIONS {
            assert!(client.subscribe(&number.to_string()));
        }
        assert!(!client.subscribe("one more") && client.subscribe("0"));
        client.unsubscribe("0");
        assert!(client.subscribe("one more") && client.is_subscribed("one more"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_not_waited_for_for_ever() {
        let client = Client::default();
        let (outlet, _unread) = Outlet::new();
        for _ in 0..WAITING {
            outlet.notify("x", None);
        }
        assert!(client.ask(&outlet, "roots/list", None, &CancellationToken::new()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever() {
        let client = Client::default();
        let (outlet, _sent) = Outlet::new();
        let answer = client.ask(&outlet, "elicitation/create", None, &CancellationToken::new()).await;
        assert!(answer.unwrap_err().message.contains("in time"));
        assert!(client.ask(&Outlet::closed(), "x", None, &CancellationToken::new()).await.is_err());
    }
}
