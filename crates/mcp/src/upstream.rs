//! The client side of MCP: connections to the servers whose tools are offered.
//!
//! Results and notifications of a server are passed on as raw JSON, so that fields unknown here survive. Everything that
//! a server sends is limited in size, number and time. A call runs in the task of its caller, which also sends the
//! request; one task per connection reads and passes each response to the call that waits for it.

mod connection;
mod era;
mod error;
mod event_parser;
mod event_stream;
#[cfg(fuzzing)]
pub mod fuzzing;
mod handshake;
mod http;
mod large_message_slots;
mod list;
mod outbox;
mod received;
mod remote;
mod sse;
mod stdio;
mod subscriptions;
#[cfg(test)]
mod tests;
mod tls;
mod transport;
mod websocket;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

#[cfg(test)]
use self::connection::Counters;
use self::connection::{ClientSide, Connection, RequestEra};
pub use self::era::{ClientIdentity, Era};
pub use self::error::{EndReason, RpcError, UpstreamError};
use self::http::Http;
pub use self::large_message_slots::MAX_RAW_BYTES;
use self::large_message_slots::Slots;
use self::outbox::Outbox;
pub use self::received::RawResult;
use self::remote::RemoteServer;
pub use self::remote::RemoteTarget;
use self::sse::Sse;
use self::transport::Transport;
use self::websocket::WebSocket;

/// A connection to a server. Clones share it; it is closed when the last one is dropped.
#[derive(Clone)]
pub struct Upstream(Arc<Owner>);

struct Owner {
    connection: Arc<Connection>,
    era: Era,
    description: Value,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.connection.close(EndReason::Closed);
    }
}

/// The server to connect to, and the transport to use.
pub enum Target {
    /// Standard output and standard input of the server: one message per line.
    Stdio(Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>),
    /// Streamable HTTP.
    Http(RemoteTarget),
    /// HTTP with SSE, the transport of 2024-11-05.
    Sse(RemoteTarget),
    WebSocket(RemoteTarget),
    /// Streamable HTTP, or SSE if the server supports only that.
    Remote(RemoteTarget),
}

/// The protocol eras that the handshake tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Eras {
    #[default]
    Auto,
    /// For servers that exit if they receive any request before `initialize`.
    LegacyOnly,
}

#[derive(Debug, Clone, Copy)]
pub struct ConnectOptions {
    /// Limits connecting and the handshake together.
    pub timeout: Duration,
    pub eras: Eras,
}

/// A call to a server.
#[derive(Debug)]
pub struct OutgoingCall {
    pub method: String,
    /// The parameters of the client, with names already rewritten.
    pub params: Option<Value>,
    /// If it is cancelled, the server is notified and the call ends with `Cancelled`.
    pub cancel: CancellationToken,
    /// Maximum time without a message for this call. Progress and requests to the client restart it. Without a value,
    /// calls to remote servers use `RemoteTarget::read_timeout`.
    pub idle_timeout: Option<Duration>,
    /// Receives the messages that belong to this call: its progress, and everything on its own HTTP stream.
    pub related: Option<mpsc::Sender<Incoming>>,
}

/// A message that a server sends on its own initiative.
#[derive(Debug)]
pub enum Incoming {
    /// A progress notification carries the progress token of the caller.
    Notification { method: String, params: Option<Value> },
    /// The receiver of `reply` is dropped when the server cancels the request.
    Request { method: String, params: Option<Value>, reply: oneshot::Sender<Result<Value, RpcError>> },
}

impl Upstream {
    /// Connects and negotiates the protocol: the modern era first, then the legacy era.
    ///
    /// `unrelated` receives the messages of the server that belong to no call.
    pub async fn connect(
        target: Target,
        client: ClientIdentity,
        unrelated: mpsc::Sender<Incoming>,
        options: ConnectOptions,
    ) -> Result<Self, UpstreamError> {
        Self::connect_from(target, ClientSide { client, unrelated, slots: Slots::shared() }, options).await
    }

    async fn connect_from(target: Target, side: ClientSide, options: ConnectOptions) -> Result<Self, UpstreamError> {
        let connect = Self::open(target, side, options.eras);
        tokio::time::timeout(options.timeout, connect).await.unwrap_or(Err(UpstreamError::TimedOut))
    }

    async fn open(target: Target, side: ClientSide, eras: Eras) -> Result<Self, UpstreamError> {
        match target {
            Target::Stdio(output, input) => {
                let connection = Connection::new(Transport::Stdio(Outbox::new(input)), side);
                connection.spawn(stdio::read(Arc::clone(&connection), output));
                connection.spawn(stdio::write(Arc::clone(&connection)));
                Self::negotiate(connection, eras).await
            }
            Target::Http(remote) => Self::open_http(&remote, side, eras).await.map_err(|(error, _)| error),
            Target::Sse(remote) => Self::open_sse(&remote, side).await,
            Target::WebSocket(remote) => match Self::open_websocket(&remote, side.clone(), eras).await {
                Err(UpstreamError::ClosedDuringProbe(_)) => Self::open_websocket(&remote, side, Eras::LegacyOnly).await,
                opened => opened,
            },
            Target::Remote(remote) => match Self::open_http(&remote, side.clone(), eras).await {
                Err((http_error, Some(400 | 404 | 405))) => Self::open_sse(&remote, side).await.map_err(|sse_error| {
                    UpstreamError::Refused(format!(
                        "cannot connect with streamable HTTP ({http_error}) or with SSE ({sse_error})"
                    ))
                }),
                opened => opened.map_err(|(error, _)| error),
            },
        }
    }

    /// An error is returned with the last HTTP status that was not a success.
    async fn open_http(
        remote: &RemoteTarget,
        side: ClientSide,
        eras: Eras,
    ) -> Result<Self, (UpstreamError, Option<u16>)> {
        let http = Http::new(RemoteServer::new(remote).map_err(|error| (error, None))?);
        let connection = Connection::new(Transport::Http(Box::new(http)), side);
        let upstream = Self::negotiate(Arc::clone(&connection), eras).await.map_err(|error| {
            let Transport::Http(http) = &connection.transport else { return (error, None) };
            (error, http.last_error_status())
        })?;
        if !upstream.0.era.is_modern() {
            connection.spawn(http::read_notifications(Arc::downgrade(&connection)));
        }
        Ok(upstream)
    }

    async fn open_sse(remote: &RemoteTarget, side: ClientSide) -> Result<Self, UpstreamError> {
        let (sse, stream) = Sse::open(RemoteServer::new(remote)?).await?;
        let connection = Connection::new(Transport::Sse(Box::new(sse)), side);
        connection.spawn(sse::read(Arc::clone(&connection), stream));
        // The transport is older than the modern era.
        Self::negotiate(connection, Eras::LegacyOnly).await
    }

    async fn open_websocket(remote: &RemoteTarget, side: ClientSide, eras: Eras) -> Result<Self, UpstreamError> {
        let (socket, opened) = WebSocket::open(remote).await?;
        let connection = Connection::new(Transport::WebSocket(socket), side);
        connection.spawn(websocket::run(Arc::clone(&connection), opened));
        Self::negotiate(connection, eras).await
    }

    async fn negotiate(connection: Arc<Connection>, eras: Eras) -> Result<Self, UpstreamError> {
        let guard = CloseOnDrop(Some(connection));
        let Some(connection) = &guard.0 else { unreachable!() };
        let (era, description) = handshake::negotiate(connection, eras).await?;
        let _ = connection.era.set(era.clone());
        connection.transport.set_era(&era);
        let lists = subscriptions::watchable_lists(&description);
        if era.is_modern() && !lists.is_empty() {
            connection.spawn(subscriptions::run(Arc::downgrade(connection), lists));
        }
        Ok(Self(Arc::new(Owner { connection: guard.into_connection(), era, description })))
    }

    pub fn era(&self) -> Era {
        self.0.era.clone()
    }

    /// The server's description of itself: the raw result of `initialize` or `server/discover`.
    pub fn description(&self) -> &Value {
        &self.0.description
    }

    /// Calls a method and returns the `result` unchanged.
    pub async fn call(&self, call: OutgoingCall) -> Result<Value, UpstreamError> {
        self.0.connection.call(call, RequestEra::Negotiated).await.map(|(result, _)| result)
    }

    /// Calls a method and returns the text of the `result`, up to [`MAX_RAW_BYTES`] and not parsed. A result over 1 MiB
    /// occupies one of a few slots from its reception until it is dropped.
    pub async fn call_raw(&self, call: OutgoingCall) -> Result<RawResult, UpstreamError> {
        self.0.connection.call_raw(call).await
    }

    pub async fn notify(&self, method: &str, params: Option<Value>) -> Result<(), UpstreamError> {
        self.0.connection.notify(method, params).await
    }

    /// Reads all pages of a list, for example the `tools` of `tools/list`.
    pub async fn list(&self, method: &str, key: &str) -> Result<Vec<Value>, UpstreamError> {
        list::list(&self.0.connection, method, key).await
    }

    /// Waits until the connection has ended.
    pub async fn ended(&self) -> EndReason {
        self.0.connection.closed().await;
        self.0.connection.end_reason()
    }

    /// The time when something was last received from the server.
    pub fn last_activity(&self) -> Instant {
        self.0.connection.last_activity()
    }

    /// Sends a cheap request and returns whether the server responds, or is busy sending a large message.
    pub async fn ping(&self, timeout: Duration) -> bool {
        let method = if self.0.era.is_modern() { "server/discover" } else { "ping" };
        let call = OutgoingCall {
            method: method.to_owned(),
            params: self.0.era.is_modern().then(|| json!({})),
            cancel: CancellationToken::new(),
            idle_timeout: Some(timeout),
            related: None,
        };
        let started = Instant::now();
        match self.call(call).await {
            // An error is a response too.
            Ok(_) | Err(UpstreamError::Rpc(_)) => true,
            // The response may be queued behind a large message that is still being received.
            Err(UpstreamError::TimedOut) => self.last_activity() > started,
            Err(_) => false,
        }
    }

    #[cfg(test)]
    fn counters(&self) -> &Counters {
        &self.0.connection.counters
    }

    /// Closes the connection and ends its calls. Returns when all of its tasks have ended.
    pub async fn close(&self) {
        self.0.connection.close(EndReason::Closed);
        self.0.connection.tasks.wait().await;
    }
}

/// Closes a connection whose handshake fails or is cancelled.
struct CloseOnDrop(Option<Arc<Connection>>);

impl CloseOnDrop {
    fn into_connection(mut self) -> Arc<Connection> {
        let Some(connection) = self.0.take() else { unreachable!() };
        connection
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.close(EndReason::Closed);
        }
    }
}
