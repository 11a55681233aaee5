//! How a call to a server fails, and how a connection ends.

use std::fmt;

pub use crate::rpc::RpcError;

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum UpstreamError {
    #[error("the server answered: {0}")]
    Rpc(RpcError),
    #[error("the call was cancelled")]
    Cancelled,
    #[error("the server did not answer in time")]
    TimedOut,
    /// The connection, or over HTTP the exchange of this one call, is gone.
    #[error("{why}")]
    Closed { may_have_run: bool, why: String },
    /// The server was reached, and said no before anything ran.
    #[error("{0}")]
    Refused(String),
    /// The server answered with this HTTP status; nothing ran.
    #[error("{why}")]
    Denied { status: u16, why: String },
    #[error("the message is larger than 16 MiB")]
    TooLarge,
    /// The server has answered; what it said was thrown away.
    #[error("the answer is larger than 1 MiB, and too many such answers are held already")]
    Busy,
    /// The server ended when it was asked which era it speaks. Its streams cannot be opened again here:
    /// start it anew and connect with `Eras::LegacyOnly`.
    #[error("{0}")]
    EndedInProbe(String),
}

impl UpstreamError {
    pub(super) fn lost(may_have_run: bool, why: impl Into<String>) -> Self {
        Self::Closed { may_have_run, why: why.into() }
    }
}

/// Why a connection is gone for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndReason {
    /// This side closed it.
    Closed,
    /// The other side did, or broke the protocol beyond repair.
    Lost(String),
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the connection was closed"),
            Self::Lost(why) => f.write_str(why),
        }
    }
}
