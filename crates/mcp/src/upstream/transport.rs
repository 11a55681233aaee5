//! The transport of a connection: one enum over stdio, WebSocket, streamable HTTP and SSE.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderMap;
use serde_json::Value;
use tokio_util::task::TaskTracker;

use super::connection::Connection;
use super::era::Era;
use super::error::UpstreamError;
use super::http::Http;
use super::outbox::{Outbox, SendError};
use super::sse::Sse;
use super::websocket::WebSocket;

/// A message to the server.
pub(super) struct OutgoingMessage {
    /// The id of the call if the message is a request.
    pub(super) id: Option<u64>,
    pub(super) body: Vec<u8>,
    /// Empty except over streamable HTTP.
    pub(super) headers: HeaderMap,
    /// The message is sent without a session id, and the response starts a session.
    pub(super) opens_session: bool,
}

impl OutgoingMessage {
    /// A notification, or the response to a request of the server.
    pub(super) fn without_headers(body: Vec<u8>) -> Self {
        Self { id: None, body, headers: HeaderMap::new(), opens_session: false }
    }
}

pub(super) enum Transport {
    Stdio(Outbox),
    WebSocket(WebSocket),
    Http(Box<Http>),
    Sse(Box<Sse>),
}

impl Transport {
    /// Sends a message. For a request, `Ok` means that the response has been received, or will arrive on another stream.
    pub(super) async fn send(
        &self,
        connection: &Arc<Connection>,
        message: OutgoingMessage,
    ) -> Result<(), UpstreamError> {
        match self {
            Self::Stdio(outbox) => outbox.send(message.body).await.map_err(Into::into),
            Self::WebSocket(socket) => socket.send(message.body).await,
            // Boxed: these futures are large, and calls over stdio should not pay for them.
            Self::Http(http) => Box::pin(http.send(connection, message)).await,
            Self::Sse(sse) => Box::pin(sse.send(connection, message)).await,
        }
    }

    /// Sends a message without waiting for it. The message is dropped if the queue is full.
    pub(super) fn send_in_background(&self, connection: &Arc<Connection>, body: Vec<u8>) {
        match self {
            Self::Stdio(outbox) => {
                outbox.try_send(body);
            }
            Self::WebSocket(socket) => socket.try_send(body),
            Self::Http(_) | Self::Sse(_) => {
                let sending = Arc::clone(connection);
                connection.spawn_limited(async move {
                    let _ = sending.transport.send(&sending, OutgoingMessage::without_headers(body)).await;
                });
            }
        }
    }

    /// The HTTP headers that describe a message.
    pub(super) fn headers(&self, method: &str, params: Option<&Value>, era: Option<&Era>) -> HeaderMap {
        match self {
            Self::Http(http) => http.headers(method, params, era),
            _ => HeaderMap::new(),
        }
    }

    /// The idle timeout of a call that has none.
    pub(super) fn default_idle_timeout(&self) -> Option<Duration> {
        match self {
            Self::Stdio(_) => None,
            Self::WebSocket(socket) => Some(socket.read_timeout),
            Self::Http(http) => Some(http.read_timeout()),
            Self::Sse(sse) => Some(sse.read_timeout()),
        }
    }

    /// Sets the negotiated era. Over HTTP every further message carries its version.
    pub(super) fn set_era(&self, era: &Era) {
        if let Self::Http(http) = self {
            http.set_era(era);
        }
    }

    /// Whether each request is a separate exchange, so that a failed one does not affect the others.
    pub(super) fn is_http(&self) -> bool {
        matches!(self, Self::Http(_))
    }

    pub(super) fn close(&self, tasks: &TaskTracker) {
        match self {
            Self::Stdio(outbox) => outbox.close(),
            Self::Http(http) => http.close(tasks),
            // Their tasks own the streams and end with the connection.
            Self::WebSocket(_) | Self::Sse(_) => {}
        }
    }
}

impl From<SendError> for UpstreamError {
    fn from(error: SendError) -> Self {
        Self::closed(
            false,
            match error {
                SendError::Closed => "the server closed its input",
                SendError::Stalled => "the server does not read its input",
            },
        )
    }
}
