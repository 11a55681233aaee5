//! The ways to a server: what differs between them is here, and behind it.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderMap;
use serde_json::Value;

use super::era::Era;
use super::error::UpstreamError;
use super::outbox::{Outbox, Unsent};
use super::rpc::Connection;

/// A message on its way out.
pub(super) struct Parcel {
    /// Of a request.
    pub(super) id: Option<u64>,
    pub(super) body: Vec<u8>,
    /// Empty but over HTTP.
    pub(super) headers: HeaderMap,
}

impl Parcel {
    /// A message that is not a request of ours.
    pub(super) fn bare(body: Vec<u8>) -> Self {
        Self { id: None, body, headers: HeaderMap::new() }
    }
}

pub(super) enum Link {
    Lines(Outbox),
}

impl Link {
    /// Brings a message to the server. For a request, Ok means that it is on its way, not that its answer is here.
    pub(super) async fn deliver(&self, _connection: &Arc<Connection>, parcel: Parcel) -> Result<(), UpstreamError> {
        match self {
            Self::Lines(outbox) => outbox.send(parcel.body).await.map_err(Into::into),
        }
    }

    /// Brings a message that nobody waits for.
    pub(super) fn post(&self, _connection: &Arc<Connection>, body: Vec<u8>) {
        match self {
            Self::Lines(outbox) => {
                outbox.try_send(body);
            }
        }
    }

    /// The headers that a message wants beside itself.
    pub(super) fn headers(&self, _method: &str, _params: Option<&Value>, _era: Option<&Era>) -> HeaderMap {
        HeaderMap::new()
    }

    /// How long a call without a limit of its own may be silent.
    pub(super) fn patience(&self) -> Option<Duration> {
        match self {
            Self::Lines(_) => None,
        }
    }

    /// Both sides have agreed: from now on this is said with every message where that is the custom.
    pub(super) fn agreed(&self, _era: &Era) {}

    pub(super) fn is_http(&self) -> bool {
        false
    }

    pub(super) fn close(&self) {
        match self {
            Self::Lines(outbox) => outbox.close(),
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
