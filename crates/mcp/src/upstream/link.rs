//! The ways to a server: what differs between them is here, and behind it.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderMap;
use serde_json::Value;
use tokio_util::task::TaskTracker;

use super::era::Era;
use super::error::UpstreamError;
use super::http::Http;
use super::outbox::{Outbox, Unsent};
use super::rpc::Connection;
use super::sse::Sse;
use super::websocket::Socket;

/// A message on its way out.
pub(super) struct Parcel {
    /// Of a request.
    pub(super) id: Option<u64>,
    pub(super) body: Vec<u8>,
    /// Empty but over HTTP.
    pub(super) headers: HeaderMap,
    /// It is sent outside of any session, and the answer begins one.
    pub(super) opens_session: bool,
}

impl Parcel {
    /// A message that is not a request of ours.
    pub(super) fn bare(body: Vec<u8>) -> Self {
        Self { id: None, body, headers: HeaderMap::new(), opens_session: false }
    }
}

pub(super) enum Link {
    Lines(Outbox),
    Socket(Socket),
    Http(Box<Http>),
    Sse(Box<Sse>),
}

impl Link {
    /// Brings a message to the server. For a request, Ok means that its answer is here or will come elsewhere.
    pub(super) async fn deliver(&self, connection: &Arc<Connection>, parcel: Parcel) -> Result<(), UpstreamError> {
        match self {
            Self::Lines(outbox) => outbox.send(parcel.body).await.map_err(Into::into),
            Self::Socket(socket) => socket.send(parcel.body).await,
            // Boxed: these are large, and a call over lines need not carry them.
            Self::Http(http) => Box::pin(http.deliver(connection, parcel)).await,
            Self::Sse(sse) => Box::pin(sse.deliver(connection, parcel)).await,
        }
    }

    /// Brings a message that nobody waits for, if there is room.
    pub(super) fn post(&self, connection: &Arc<Connection>, body: Vec<u8>) {
        match self {
            Self::Lines(outbox) => {
                outbox.try_send(body);
            }
            Self::Socket(socket) => socket.try_send(body),
            Self::Http(_) | Self::Sse(_) => {
                let sending = Arc::clone(connection);
                connection.spawn_control(async move {
                    let _ = sending.link.deliver(&sending, Parcel::bare(body)).await;
                });
            }
        }
    }

    /// The headers that a message wants beside itself.
    pub(super) fn headers(&self, method: &str, params: Option<&Value>, era: Option<&Era>) -> HeaderMap {
        match self {
            Self::Http(http) => http.headers(method, params, era),
            _ => HeaderMap::new(),
        }
    }

    /// How long a call without a limit of its own may be silent.
    pub(super) fn patience(&self) -> Option<Duration> {
        match self {
            Self::Lines(_) => None,
            Self::Socket(socket) => Some(socket.read_timeout),
            Self::Http(http) => Some(http.read_timeout()),
            Self::Sse(sse) => Some(sse.read_timeout()),
        }
    }

    /// Both sides have agreed: from now on this is said with every message where that is the custom.
    pub(super) fn agreed(&self, era: &Era) {
        if let Self::Http(http) = self {
            http.agreed(era);
        }
    }

    /// Each request is an exchange of its own: one that fails leaves the others alone.
    pub(super) fn is_http(&self) -> bool {
        matches!(self, Self::Http(_))
    }

    pub(super) fn close(&self, tasks: &TaskTracker) {
        match self {
            Self::Lines(outbox) => outbox.close(),
            Self::Http(http) => http.close(tasks),
            // Their tasks hold what is open, and end.
            Self::Socket(_) | Self::Sse(_) => {}
        }
    }
}

impl From<Unsent> for UpstreamError {
    fn from(unsent: Unsent) -> Self {
        Self::lost(
            false,
            match unsent {
                Unsent::Closed => "the server closed its input",
                Unsent::Stalled => "the server does not read its input",
            },
        )
    }
}
