//! MCP over standard input and output, for clients that start the server themselves.

use std::sync::Arc;
use std::time::Duration;

use ringfence_core::Principal;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::{Client, Context, Outlet, WAITING};
use crate::era;
use crate::era::{CAPABILITIES_KEY, ENDLESS, Era};
use crate::in_flight::{InFlight, Key};
use crate::rpc;
use crate::rpc::{Id, Message, RpcError, Sent};
use crate::{Gateway, busy};

#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    #[error("standard input cannot be read")]
    Reading(#[source] std::io::Error),
}

/// The longest message of a client's.
const LONGEST: u64 = rpc::LONGEST as u64;

/// How long calls under way may still take once nothing more is asked, and then once they are to end.
const FAREWELL: Duration = Duration::from_secs(10);

/// There is one only.
const CLIENT: &str = "stdio";

/// Serves until the end of input. Sessions are left to the caller, which knows who else uses them.
///
/// More requests than `at_once` are refused. They cannot wait unread: what comes behind them may be the answer to a
/// question that the others wait for.
pub async fn serve_stdio(gateway: Gateway, at_once: usize) -> Result<(), StdioError> {
    serve(gateway, at_once, tokio::io::stdin(), tokio::io::stdout()).await
}

async fn serve<I, O>(gateway: Gateway, at_once: usize, input: I, output: O) -> Result<(), StdioError>
where
    I: AsyncRead + Send + Unpin + 'static,
    O: AsyncWrite + Send + Unpin + 'static,
{
    let (sender, messages) = mpsc::channel(WAITING);
    let (tasks, calls) = (TaskTracker::new(), TaskTracker::new());
    let ended = CancellationToken::new();
    tasks.spawn(write(messages, output, ended.clone()));
    // Calls under way end also where this is dropped.
    let _ended = ended.clone().drop_guard();
    let client = gateway.clients().find(&Principal::local(), CLIENT).unwrap_or_default();
    let conversation = Conversation {
        gateway,
        client,
        in_flight: InFlight::default(),
        room: Arc::new(Semaphore::new(at_once.min(Semaphore::MAX_PERMITS))),
        sender,
        ended: ended.clone(),
        listening: ended.child_token(),
    };
    conversation.client.listen(Outlet::of(conversation.sender.clone()));
    let read = tokio::select! {
        read = conversation.read(input, &calls) => read,
        // Nobody reads what is said any more.
        () = ended.cancelled() => Ok(()),
    };
    calls.close();
    conversation.listening.cancel();
    // Whoever pipes requests in has ended its input and waits for the answers.
    tokio::select! {
        () = calls.wait() => {}
        () = ended.cancelled() => {}
        () = tokio::time::sleep(FAREWELL) => {}
    }
    conversation.gateway.clients().remove(&Principal::local(), CLIENT);
    conversation.ended.cancel();
    drop(conversation);
    tasks.close();
    let _ = tokio::time::timeout(FAREWELL, async { tokio::join!(calls.wait(), tasks.wait()) }).await;
    read
}

async fn write<O: AsyncWrite + Unpin>(mut messages: mpsc::Receiver<Value>, mut output: O, ended: CancellationToken) {
    while let Some(message) = messages.recv().await {
        let line = format!("{message}\n");
        if output.write_all(line.as_bytes()).await.is_err() || output.flush().await.is_err() {
            ended.cancel();
            return;
        }
    }
}

struct Conversation {
    gateway: Gateway,
    client: Arc<Client>,
    in_flight: InFlight,
    room: Arc<Semaphore>,
    sender: mpsc::Sender<Value>,
    ended: CancellationToken,
    /// The client may still ask something: what has no end of its own goes on.
    listening: CancellationToken,
}

impl Conversation {
    async fn read<I: AsyncRead + Unpin>(&self, input: I, tasks: &TaskTracker) -> Result<(), StdioError> {
        let mut input = BufReader::new(input);
        let mut line = Vec::new();
        loop {
            line.clear();
            let length = (&mut input).take(LONGEST).read_until(b'\n', &mut line).await.map_err(StdioError::Reading)?;
            if length == 0 {
                return Ok(());
            }
            if line.len() as u64 == LONGEST && line.last() != Some(&b'\n') {
                skip_line(&mut input).await.map_err(StdioError::Reading)?;
                // Whose it was is not known; the others go on.
                self.say(rpc::answer(None, Err(rpc::too_long()))).await;
                continue;
            }
            if !line.trim_ascii().is_empty() {
                self.take(&line, tasks).await;
            }
        }
    }

    async fn take(&self, line: &[u8], tasks: &TaskTracker) {
        match rpc::parse_all(line) {
            Err(error) => self.say(rpc::answer(None, Err(error))).await,
            Ok(Sent::One(Message::Request { id, method, params })) => self.asked(id, method, params, tasks).await,
            Ok(Sent::One(message)) => self.hear(message),
            Ok(Sent::Together(batch)) => self.asked_together(batch, tasks).await,
        }
    }

    /// Hears what needs no answer.
    fn hear(&self, message: Message) {
        match message {
            Message::Answer { id, outcome } => self.client.hear(&id, outcome),
            Message::Notification { method, params } => self.notified(&method, &params),
            Message::Request { .. } => {}
        }
    }

    fn notified(&self, method: &str, params: &Value) {
        if method == "notifications/cancelled" {
            if let Ok(request) = serde_json::from_value(params["requestId"].clone()) {
                self.in_flight.cancel(&key(request));
            }
        } else {
            self.gateway.hear(method, params);
        }
    }

    async fn asked(&self, id: Id, method: String, params: Value, tasks: &TaskTracker) {
        let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() else {
            return self.say(rpc::answer(Some(&id), Err(too_many()))).await;
        };
        let is_opening = method == "initialize";
        let work = match era::of_request(&method, &params) {
            Ok(era) => self.begin(id, method, params, era),
            Err(error) => return self.say(rpc::answer(Some(&id), Err(error))).await,
        };
        // What opens the conversation is answered before anything that follows it is looked at.
        if is_opening {
            if let Some(answer) = work.await {
                self.say(answer).await;
            }
            return;
        }
        let sender = self.sender.clone();
        tasks.spawn(async move {
            if let Some(answer) = work.await {
                let _ = sender.send(answer).await;
            }
            drop(permit);
        });
    }

    /// Answers what is asked in a batch, one after the other: it has one place.
    async fn asked_together(&self, batch: Vec<Result<Message, RpcError>>, tasks: &TaskTracker) {
        if !self.client.may_send_batches() {
            return self.say(rpc::answer(None, Err(era::no_batches()))).await;
        }
        let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() else {
            return self.say(rpc::answer(None, Err(too_many()))).await;
        };
        let (mut works, mut answers) = (Vec::new(), Vec::new());
        for message in batch {
            match message {
                Err(error) => answers.push(rpc::answer(None, Err(error))),
                Ok(Message::Request { id, method, params }) => {
                    let era = era::of_request(&method, &params)
                        .and_then(|era| era::check_among_others(&method, era).map(|()| era));
                    match era {
                        Ok(era) => works.push(self.begin(id, method, params, era)),
                        Err(error) => answers.push(rpc::answer(Some(&id), Err(error))),
                    }
                }
                Ok(message) => self.hear(message),
            }
        }
        let sender = self.sender.clone();
        tasks.spawn(async move {
            for work in works {
                answers.extend(work.await);
            }
            if !answers.is_empty() {
                let _ = sender.send(answers.into()).await;
            }
            drop(permit);
        });
    }

    /// The answer to a request, unless it is cancelled.
    fn begin(
        &self,
        id: Id,
        method: String,
        params: Value,
        era: Era,
    ) -> impl Future<Output = Option<Value>> + Send + use<> {
        let capabilities = match era {
            Era::Modern => Arc::new(params["_meta"][CAPABILITIES_KEY].clone()),
            Era::Legacy => self.client.capabilities(),
        };
        let context = Context {
            principal: self.gateway.policy().principal(Principal::local()),
            era,
            capabilities,
            outlet: Outlet::of(self.sender.clone()),
            client: Some(Arc::clone(&self.client)),
            cancel: if method == ENDLESS { &self.listening } else { &self.ended }.child_token(),
            request: id.clone(),
        };
        let ticket = self.in_flight.enter(Some(key(id.clone())));
        let gateway = self.gateway.clone();
        async move {
            let _gone = context.cancel.clone().drop_guard();
            tokio::select! {
                biased;
                // Whoever cancels does not wait for an answer.
                () = ticket.token.cancelled() => None,
                outcome = gateway.serve(&method, params, &context) => Some(rpc::answer(Some(&id), outcome)),
            }
        }
    }

    async fn say(&self, message: Value) {
        let _ = self.sender.send(message).await;
    }
}

fn too_many() -> RpcError {
    busy::error("too many requests at a time")
}

async fn skip_line<I: AsyncRead + Unpin>(input: &mut BufReader<I>) -> std::io::Result<()> {
    loop {
        let there = input.fill_buf().await?;
        let (end, length) = (there.iter().position(|byte| *byte == b'\n'), there.len());
        input.consume(end.map_or(length, |end| end + 1));
        if end.is_some() || length == 0 {
            return Ok(());
        }
    }
}

fn key(request: Id) -> Key {
    Key { principal: Principal::local(), client: CLIENT.into(), request }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::io::AsyncReadExt;

    use super::*;

    async fn converse(messages: &[Value]) -> Vec<Value> {
        converse_with(messages, 16).await
    }

    async fn converse_with(messages: &[Value], at_once: usize) -> Vec<Value> {
        let input = messages.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n") + "\n";
        let (output, mut answers) = tokio::io::duplex(1 << 20);
        serve(Gateway::without_backend("none here"), at_once, std::io::Cursor::new(input), output).await.unwrap();
        let mut text = String::new();
        answers.read_to_string(&mut text).await.unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[tokio::test]
    async fn the_older_era_opens_with_initialize() {
        let answers = converse(&[
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
                "protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}),
            json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "get_volume_path"}}),
        ])
        .await;
        assert_eq!(answers[0]["result"]["protocolVersion"], "2024-11-05");
        insta::assert_snapshot!(answers[1]["error"]);
    }

    #[tokio::test]
    async fn the_newer_era_needs_no_opening() {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let answers = converse(&[
            json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}}),
            json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {"_meta": meta}}),
        ])
        .await;
        assert_eq!(answers[0]["result"]["supportedVersions"][4], "2026-07-28");
        assert_eq!(answers[1]["result"]["tools"][0]["name"], "execute_code");
    }

    #[tokio::test]
    async fn a_batch_is_answered_with_one_where_the_version_has_them() {
        let opening = |version: &str| {
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
                "protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}})
        };
        let ping = |id: u32| json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
        let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let batch = json!([told, ping(2), opening("2025-03-26"), 7, ping(3)]);
        let answers = converse(&[opening("2025-03-26"), batch.clone()]).await;
        let mut codes: Vec<_> =
            answers[1].as_array().unwrap().iter().map(|it| (&it["id"], &it["error"]["code"])).collect();
        codes.sort_by_key(|(id, _)| id.as_i64());
        let (none, invalid) = (Value::Null, json!(-32600));
        assert_eq!(codes, [(&none, &invalid), (&json!(1), &invalid), (&json!(2), &none), (&json!(3), &none)]);
        let answers = converse(&[opening("2025-06-18"), batch]).await;
        assert_eq!((&answers[1]["id"], &answers[1]["error"]["code"]), (&none, &invalid));
        // Where nothing is asked nothing is answered.
        assert_eq!(converse(&[json!([told, told]), ping(4)]).await.len(), 1);
    }

    #[tokio::test]
    async fn one_request_too_many_is_told_when_to_ask_again() {
        let answers = converse_with(&[json!({"jsonrpc": "2.0", "id": 7, "method": "ping"})], 0).await;
        assert_eq!((&answers[0]["id"], &answers[0]["error"]["code"]), (&json!(7), &json!(-32001)));
        assert_eq!(answers[0]["error"]["data"]["retry_after_ms"], 1000);
    }

    #[tokio::test]
    async fn a_message_that_is_too_long_is_refused_and_the_next_one_heard() {
        let ping = |id: u32, padding: usize| json!({"jsonrpc": "2.0", "id": id, "method": "ping", "params": {"x": "x".repeat(padding)}});
        let longest = rpc::LONGEST;
        let answers = converse(&[ping(1, 0), ping(2, longest), ping(3, 2 * longest), ping(4, longest / 2)]).await;
        let told: Vec<_> = answers.iter().map(|answer| (&answer["id"], &answer["error"]["code"])).collect();
        let (none, too_long) = (Value::Null, json!(-32600));
        for expected in [(&json!(1), &none), (&none, &too_long), (&json!(4), &none)] {
            assert!(told.contains(&expected), "{expected:?} in {told:?}");
        }
        assert_eq!(told.len(), 4);
    }

    #[tokio::test]
    async fn an_input_that_ends_at_once_is_no_error() {
        assert!(converse(&[]).await.is_empty());
    }
}
