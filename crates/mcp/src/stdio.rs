//! MCP over standard input and output, for clients that start the server themselves.

use std::sync::Arc;
use std::time::Duration;

use ringfence_core::Principal;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::{Client, Context, MAX_QUEUED_MESSAGES, MessageSink};
use crate::connection::{self, ConnectionName};
use crate::era::{CAPABILITIES_KEY, Era, SUBSCRIBE_METHOD};
use crate::in_flight::{InFlight, Key};
use crate::rpc::{Id, MAX_MESSAGE_BYTES, Message, Payload, RpcError};
use crate::service::Service;
use crate::{era, failure, rpc};

#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    #[error("cannot read standard input")]
    Read(#[source] std::io::Error),
}

/// Maximum time for calls in progress to finish after the end of the input, and to end after they were cancelled.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// The id of the only client of this transport.
const CLIENT: &str = "stdio";

/// Serves a client until the end of the input. The caller ends the sessions, because others may use them. With a name,
/// the requests belong to the connection of that name.
///
/// Requests over `max_requests` are refused. They cannot wait unread: a message behind them may be the response that
/// the requests in progress wait for.
pub async fn serve<S, I, O>(
    service: S,
    name: Option<ConnectionName>,
    max_requests: usize,
    input: I,
    output: O,
) -> Result<(), StdioError>
where
    S: Service,
    I: AsyncRead + Send + Unpin + 'static,
    O: AsyncWrite + Send + Unpin + 'static,
{
    let (sender, messages) = mpsc::channel(MAX_QUEUED_MESSAGES);
    let (writer, calls) = (TaskTracker::new(), TaskTracker::new());
    let ended = CancellationToken::new();
    writer.spawn(write(messages, output, ended.clone()));
    // Cancels the calls in progress also if this future is dropped.
    let _ended = ended.clone().drop_guard();
    let client = service.clients().find(&Principal::local(), CLIENT).unwrap_or_default();
    let connection = Connection {
        service,
        client,
        identity: name.map_or(connection::Connection::Stdio, connection::Connection::Named),
        in_flight: InFlight::default(),
        requests: Arc::new(Semaphore::new(max_requests.min(Semaphore::MAX_PERMITS))),
        sender,
        ended: ended.clone(),
        input_open: ended.child_token(),
    };
    connection.client.set_stream(MessageSink::from_sender(connection.sender.clone()));
    let read = tokio::select! {
        read = connection.read(input, &calls) => read,
        // The output is closed.
        () = ended.cancelled() => Ok(()),
    };
    calls.close();
    connection.input_open.cancel();
    // A client that pipes its requests ends the input first and then waits for the responses.
    tokio::select! {
        () = calls.wait() => {}
        () = ended.cancelled() => {}
        () = tokio::time::sleep(SHUTDOWN_TIMEOUT) => {}
    }
    connection.service.clients().remove(&Principal::local(), CLIENT);
    connection.ended.cancel();
    drop(connection);
    writer.close();
    let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, async { tokio::join!(calls.wait(), writer.wait()) }).await;
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

struct Connection<S> {
    service: S,
    client: Arc<Client>,
    identity: connection::Connection,
    in_flight: InFlight,
    requests: Arc<Semaphore>,
    sender: mpsc::Sender<Value>,
    ended: CancellationToken,
    /// Cancelled at the end of the input: subscriptions, which have no end, are closed.
    input_open: CancellationToken,
}

impl<S: Service> Connection<S> {
    async fn read<I: AsyncRead + Unpin>(&self, input: I, tasks: &TaskTracker) -> Result<(), StdioError> {
        let mut input = BufReader::new(input);
        let mut line = Vec::new();
        loop {
            line.clear();
            let limited = (&mut input).take(MAX_MESSAGE_BYTES as u64);
            let length = { limited }.read_until(b'\n', &mut line).await.map_err(StdioError::Read)?;
            if length == 0 {
                return Ok(());
            }
            if line.len() == MAX_MESSAGE_BYTES && line.last() != Some(&b'\n') {
                skip_line(&mut input).await.map_err(StdioError::Read)?;
                // The id of the message is not known.
                self.send(rpc::response(None, Err(rpc::too_large()))).await;
                continue;
            }
            if !line.trim_ascii().is_empty() {
                self.handle_line(&line, tasks).await;
            }
        }
    }

    async fn handle_line(&self, line: &[u8], tasks: &TaskTracker) {
        match rpc::parse_all(line) {
            Err(error) => self.send(rpc::response(None, Err(error))).await,
            Ok(Payload::Single(Message::Request { id, method, params })) => {
                self.handle_request(id, method, params, tasks).await;
            }
            Ok(Payload::Single(message)) => self.handle_other(message),
            Ok(Payload::Batch(batch)) => self.handle_batch(batch, tasks).await,
        }
    }

    /// Handles a message that needs no response.
    fn handle_other(&self, message: Message) {
        match message {
            Message::Response { id, outcome } => self.client.handle_response(&id, outcome),
            Message::Notification { method, params } => self.handle_notification(&method, &params),
            Message::Request { .. } => {}
        }
    }

    fn handle_notification(&self, method: &str, params: &Value) {
        if method == "notifications/cancelled" {
            if let Ok(request) = serde_json::from_value(params["requestId"].clone()) {
                self.in_flight.cancel(&key(request));
            }
        } else {
            self.service.handle_notification(method, params);
        }
    }

    async fn handle_request(&self, id: Id, method: String, params: Value, tasks: &TaskTracker) {
        let Ok(permit) = Arc::clone(&self.requests).try_acquire_owned() else {
            return self.send(rpc::response(Some(&id), Err(too_many_requests()))).await;
        };
        let is_initialize = method == "initialize";
        let call = match era::of_request(&method, &params) {
            Ok(era) => self.start(id, method, params, era),
            Err(error) => return self.send(rpc::response(Some(&id), Err(error))).await,
        };
        // Messages after `initialize` depend on its outcome.
        if is_initialize {
            if let Some(response) = call.await {
                self.send(response).await;
            }
            return;
        }
        let sender = self.sender.clone();
        tasks.spawn(async move {
            if let Some(response) = call.await {
                let _ = sender.send(response).await;
            }
            drop(permit);
        });
    }

    /// Handles the requests of a batch one after the other: a batch takes one permit.
    async fn handle_batch(&self, batch: Vec<Result<Message, RpcError>>, tasks: &TaskTracker) {
        if !self.client.may_send_batches() {
            return self.send(rpc::response(None, Err(era::no_batches()))).await;
        }
        let Ok(permit) = Arc::clone(&self.requests).try_acquire_owned() else {
            return self.send(rpc::response(None, Err(too_many_requests()))).await;
        };
        let (mut calls, mut responses) = (Vec::new(), Vec::new());
        for message in batch {
            match message {
                Err(error) => responses.push(rpc::response(None, Err(error))),
                Ok(Message::Request { id, method, params }) => {
                    let era = era::of_request(&method, &params)
                        .and_then(|era| era::check_in_batch(&method, era).map(|()| era));
                    match era {
                        Ok(era) => calls.push(self.start(id, method, params, era)),
                        Err(error) => responses.push(rpc::response(Some(&id), Err(error))),
                    }
                }
                Ok(message) => self.handle_other(message),
            }
        }
        let sender = self.sender.clone();
        tasks.spawn(async move {
            for call in calls {
                responses.extend(call.await);
            }
            if !responses.is_empty() {
                let _ = sender.send(responses.into()).await;
            }
            drop(permit);
        });
    }

    /// Returns a future with the response to a request, or None if it is cancelled.
    fn start(
        &self,
        id: Id,
        method: String,
        params: Value,
        era: Era,
    ) -> impl Future<Output = Option<Value>> + Send + use<S> {
        let capabilities = match era {
            Era::Modern => Arc::new(params["_meta"][CAPABILITIES_KEY].clone()),
            Era::Legacy => self.client.capabilities(),
        };
        let context = Context {
            principal: self.service.principal(Principal::local()),
            era,
            capabilities,
            sink: MessageSink::from_sender(self.sender.clone()),
            client: Some(Arc::clone(&self.client)),
            connection: Some(self.identity.clone()),
            cancel: if method == SUBSCRIBE_METHOD { &self.input_open } else { &self.ended }.child_token(),
            request: id.clone(),
            declares_version: self.client.is_initialized() || era::declared_version(&params).is_some(),
        };
        let ticket = self.in_flight.enter(Some(key(id.clone())));
        let service = self.service.clone();
        async move {
            let _cancel = context.cancel.clone().drop_guard();
            tokio::select! {
                biased;
                // A client that cancels a request expects no response to it.
                () = ticket.token.cancelled() => None,
                outcome = service.handle(&method, params, &context) => Some(rpc::response(Some(&id), outcome)),
            }
        }
    }

    async fn send(&self, message: Value) {
        let _ = self.sender.send(message).await;
    }
}

fn too_many_requests() -> RpcError {
    failure::busy("too many concurrent requests")
}

async fn skip_line<I: AsyncRead + Unpin>(input: &mut BufReader<I>) -> std::io::Result<()> {
    loop {
        let buffered = input.fill_buf().await?;
        let (end, length) = (buffered.iter().position(|byte| *byte == b'\n'), buffered.len());
        input.consume(end.map_or(length, |end| end + 1));
        if end.is_some() || length == 0 {
            return Ok(());
        }
    }
}

fn key(request: Id) -> Key {
    Key { principal: Principal::local(), client: CLIENT.into(), request }
}
