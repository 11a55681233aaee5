//! The client side of MCP: connections to the servers that are offered.
//!
//! What a server says is passed on as it is, raw JSON, so that nothing it knows and we do not is lost.
//! Everything that comes from it is bounded, in size, number and time. A call runs in the caller's task:
//! it writes for itself, and the one task that reads hands it its answer.

mod era;
mod error;
mod events;
#[cfg(fuzzing)]
pub mod fuzzing;
mod handshake;
mod http;
mod large_message_slots;
mod lines;
mod link;
mod list;
mod listen;
mod outbox;
mod raw;
mod remote;
mod rpc;
mod sse;
mod stream;
#[cfg(test)]
mod tests;
mod tls;
mod websocket;

use std::sync::Arc;
use std::time::Duration;

use ringfence_entries::RemoteSettings;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::era::{ClientIdentity, Era};
pub use self::error::{EndReason, RpcError, UpstreamError};
use self::http::Http;
pub use self::large_message_slots::MAX_RAW_BYTES;
use self::large_message_slots::Slots;
use self::link::Link;
use self::outbox::Outbox;
pub use self::raw::RawAnswer;
use self::remote::Place;
#[cfg(test)]
use self::rpc::Counters;
use self::rpc::{Connection, Side, Style};
use self::sse::Sse;
use self::websocket::Socket;

/// A connection to a server. All clones are one; when the last is dropped it is closed.
#[derive(Clone)]
pub struct Upstream(Arc<Owner>);

struct Owner {
    connection: Arc<Connection>,
    era: Era,
    about: Value,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.connection.close(EndReason::Closed);
    }
}

/// What leads to the server.
pub enum Wire {
    /// Its output and its input.
    Lines(Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>),
    Http(RemoteSettings),
    Sse(RemoteSettings),
    Websocket(RemoteSettings),
    /// Streamable HTTP, or SSE where the other side knows only that.
    Remote(RemoteSettings),
}

/// Which eras are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Eras {
    #[default]
    Auto,
    /// For a server that dies of a question before `initialize`.
    LegacyOnly,
}

#[derive(Debug, Clone, Copy)]
pub struct ConnectOptions {
    pub deadline: Duration,
    pub eras: Eras,
}

/// A call to a server.
#[derive(Debug)]
pub struct Outgoing {
    pub method: String,
    /// As the client gave them, names already rewritten.
    pub params: Option<Value>,
    /// Cancelled: the server is told, and the call ends with `Cancelled`.
    pub cancel: CancellationToken,
    /// How long the server may be silent: progress and questions to the client begin it anew. A call over
    /// HTTP that has none takes the `sse_read_timeout` of the entry.
    pub deadline: Option<Duration>,
    /// What arrives for this call: its progress, and whatever comes on its own HTTP stream.
    pub related: Option<mpsc::Sender<Incoming>>,
}

/// What a server sends by itself.
#[derive(Debug)]
pub enum Incoming {
    /// A progress notification has the token of the caller's.
    Notification { method: String, params: Option<Value> },
    /// The other end of `answer` is gone when the server has withdrawn the request.
    Request { method: String, params: Option<Value>, answer: oneshot::Sender<Result<Value, RpcError>> },
}

impl Upstream {
    /// Connects and agrees on a protocol: modern first, legacy otherwise.
    pub async fn connect_with(
        wire: Wire,
        who: ClientIdentity,
        unrelated: mpsc::Sender<Incoming>,
        options: ConnectOptions,
    ) -> Result<Self, UpstreamError> {
        Self::connect_as(wire, Side { who, unrelated, slots: Slots::shared() }, options).await
    }

    async fn connect_as(wire: Wire, side: Side, options: ConnectOptions) -> Result<Self, UpstreamError> {
        let connect = Self::open(wire, side, options.eras);
        tokio::time::timeout(options.deadline, connect).await.unwrap_or(Err(UpstreamError::TimedOut))
    }

    async fn open(wire: Wire, side: Side, eras: Eras) -> Result<Self, UpstreamError> {
        match wire {
            Wire::Lines(output, input) => {
                let connection = Connection::new(Link::Lines(Outbox::new(input)), side);
                connection.spawn(lines::read(Arc::clone(&connection), output));
                connection.spawn(lines::write(Arc::clone(&connection)));
                Self::agree(connection, eras).await
            }
            Wire::Http(settings) => Self::open_http(&settings, side, eras).await.map_err(|(error, _)| error),
            Wire::Sse(settings) => Self::open_sse(&settings, side).await,
            Wire::Websocket(settings) => match Self::open_socket(&settings, side.clone(), eras).await {
                Err(UpstreamError::EndedInProbe(_)) => Self::open_socket(&settings, side, Eras::LegacyOnly).await,
                opened => opened,
            },
            Wire::Remote(settings) => match Self::open_http(&settings, side.clone(), eras).await {
                Err((error, Some(400 | 404 | 405))) => Self::open_sse(&settings, side).await.map_err(|other| {
                    UpstreamError::Refused(format!("neither streamable HTTP ({error}) nor SSE ({other})"))
                }),
                opened => opened.map_err(|(error, _)| error),
            },
        }
    }

    /// The error comes with the last HTTP status that was no success.
    async fn open_http(
        settings: &RemoteSettings,
        side: Side,
        eras: Eras,
    ) -> Result<Self, (UpstreamError, Option<u16>)> {
        let http = Http::new(Place::new(settings).map_err(|error| (error, None))?);
        let connection = Connection::new(Link::Http(Box::new(http)), side);
        let upstream = Self::agree(Arc::clone(&connection), eras).await.map_err(|error| {
            let Link::Http(http) = &connection.link else { return (error, None) };
            (error, http.refusal())
        })?;
        if !upstream.0.era.is_modern() {
            connection.spawn(http::hear(Arc::downgrade(&connection)));
        }
        Ok(upstream)
    }

    async fn open_sse(settings: &RemoteSettings, side: Side) -> Result<Self, UpstreamError> {
        let (sse, stream) = Sse::open(Place::new(settings)?).await?;
        let connection = Connection::new(Link::Sse(Box::new(sse)), side);
        connection.spawn(sse::read(Arc::clone(&connection), stream));
        // The transport is older than the modern era.
        Self::agree(connection, Eras::LegacyOnly).await
    }

    async fn open_socket(settings: &RemoteSettings, side: Side, eras: Eras) -> Result<Self, UpstreamError> {
        let (socket, halves) = Socket::open(settings).await?;
        let connection = Connection::new(Link::Socket(socket), side);
        connection.spawn(websocket::run(Arc::clone(&connection), halves));
        Self::agree(connection, eras).await
    }

    async fn agree(connection: Arc<Connection>, eras: Eras) -> Result<Self, UpstreamError> {
        let closing = CloseOnDrop(Some(connection));
        let Some(connection) = &closing.0 else { unreachable!() };
        let (era, about) = handshake::agree(connection, eras).await?;
        let _ = connection.era.set(era.clone());
        connection.link.agreed(&era);
        let lists = listen::changing(&about);
        if era.is_modern() && !lists.is_empty() {
            connection.spawn(listen::keep(Arc::downgrade(connection), lists));
        }
        Ok(Self(Arc::new(Owner { connection: closing.keep(), era, about })))
    }

    pub fn era(&self) -> Era {
        self.0.era.clone()
    }

    /// What the server told of itself: the raw result of `initialize` or `server/discover`.
    pub fn about(&self) -> &Value {
        &self.0.about
    }

    /// The raw `result`, untouched.
    pub async fn call(&self, call: Outgoing) -> Result<Value, UpstreamError> {
        self.0.connection.call(call, Style::Agreed).await.map(|(result, _)| result)
    }

    /// The `result` as the server wrote it, up to [`MAX_RAW_BYTES`] and not parsed. Over 1 MiB it takes one of a few
    /// slots, from when it is received to when it is dropped.
    pub async fn call_raw(&self, call: Outgoing) -> Result<RawAnswer, UpstreamError> {
        self.0.connection.call_raw(call).await
    }

    pub async fn notify(&self, method: &str, params: Option<Value>) -> Result<(), UpstreamError> {
        self.0.connection.notify(method, params).await
    }

    /// All pages of a list: of `tools/list` the `tools`.
    pub async fn list(&self, method: &str, key: &str) -> Result<Vec<Value>, UpstreamError> {
        list::list(&self.0.connection, method, key).await
    }

    /// Waits until the connection is gone for good.
    pub async fn ended(&self) -> EndReason {
        self.0.connection.closed().await;
        self.0.connection.end_reason()
    }

    /// When the server last gave a sign of life.
    pub fn last_heard(&self) -> Instant {
        self.0.connection.last_heard()
    }

    /// Whether the server answers a question that costs it nothing.
    pub async fn ping(&self, deadline: Duration) -> bool {
        let method = if self.0.era.is_modern() { "server/discover" } else { "ping" };
        let call = Outgoing {
            method: method.to_owned(),
            params: self.0.era.is_modern().then(|| json!({})),
            cancel: CancellationToken::new(),
            deadline: Some(deadline),
            related: None,
        };
        let began = Instant::now();
        match self.call(call).await {
            // An error is an answer too.
            Ok(_) | Err(UpstreamError::Rpc(_)) => true,
            // An answer may be stuck behind a large message that keeps coming.
            Err(UpstreamError::TimedOut) => self.last_heard() > began,
            Err(_) => false,
        }
    }

    #[cfg(test)]
    fn counters(&self) -> &Counters {
        &self.0.connection.counters
    }

    /// Closes the connection; calls under way end. Returns when nothing of it is left.
    pub async fn close(&self) {
        self.0.connection.close(EndReason::Closed);
        self.0.connection.tasks.wait().await;
    }
}

/// A connection that nobody owns yet.
struct CloseOnDrop(Option<Arc<Connection>>);

impl CloseOnDrop {
    fn keep(mut self) -> Arc<Connection> {
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
