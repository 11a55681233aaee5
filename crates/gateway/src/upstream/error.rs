//! How a call to a server fails, and how a connection ends.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An error as JSON-RPC carries it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RpcError {
    pub(crate) code: i64,
    #[serde(default)]
    pub(crate) message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<Value>,
}

impl RpcError {
    pub(crate) const INVALID_REQUEST: i64 = -32600;
    pub(crate) const METHOD_NOT_FOUND: i64 = -32601;
    pub(crate) const INTERNAL_ERROR: i64 = -32603;
    /// A server of the modern era does not speak the version that was asked for.
    pub(crate) const UNSUPPORTED_PROTOCOL_VERSION: i64 = -32022;
    /// A server of the modern era wants a capability that the client lacks.
    pub(crate) const MISSING_CLIENT_CAPABILITY: i64 = -32021;
    /// A server of the modern era found headers and body to differ.
    pub(crate) const HEADER_MISMATCH: i64 = -32020;

    pub(crate) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum UpstreamError {
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
pub(crate) enum EndReason {
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
