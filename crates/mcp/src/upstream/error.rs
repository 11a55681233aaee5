//! Errors of calls to a server, and the reasons for the end of a connection.

use std::fmt;

pub use crate::rpc::RpcError;

/// The reason why a call has no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum UpstreamError {
    #[error("the server returned an error: {0}")]
    Rpc(RpcError),
    #[error("the call was cancelled")]
    Cancelled,
    #[error("the server did not respond in time")]
    TimedOut,
    /// The connection has ended, or over HTTP the exchange of this call.
    #[error("{reason}")]
    Closed { may_have_run: bool, reason: String },
    /// The call or the connection was rejected before anything ran.
    #[error("{0}")]
    Refused(String),
    /// The server responded with this HTTP status; nothing ran.
    #[error("{reason}")]
    HttpStatus { status: u16, reason: String },
    #[error("the message is larger than 16 MiB")]
    TooLarge,
    /// The server responded, and the response was discarded.
    #[error("the response is larger than 1 MiB, and too many such responses wait to be read")]
    Busy,
    /// The server closed the connection during the probe for the modern era. Its streams cannot be reopened here:
    /// restart it and connect with `Eras::LegacyOnly`.
    #[error("{0}")]
    ClosedDuringProbe(String),
}

impl UpstreamError {
    pub(super) fn closed(may_have_run: bool, reason: impl Into<String>) -> Self {
        Self::Closed { may_have_run, reason: reason.into() }
    }
}

/// The reason for the end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndReason {
    /// This side closed it.
    Closed,
    /// The server closed it, or violated the protocol too often.
    Lost(String),
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the connection was closed"),
            Self::Lost(reason) => f.write_str(reason),
        }
    }
}
