//! The error that code receives for a failed request to the host.

use ringfence_core::{Failure, Kind};
use ringfence_guest::HostResponse;
use ringfence_store::StoreError;
use serde_json::{Map, Value, json};

/// The kind of an error, by which code can distinguish errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// The code lacks a permission.
    Refused,
    NotFound,
    Invalid,
    Limit,
    /// The server responded with an error.
    Upstream,
    Timeout,
    /// The server was not connected, or the connection was lost.
    Lost,
    Cancelled,
    Internal,
}

impl ErrorKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::NotFound => "not_found",
            Self::Invalid => "invalid",
            Self::Limit => "limit",
            Self::Upstream => "upstream",
            Self::Timeout => "timeout",
            Self::Lost => "lost",
            Self::Cancelled => "cancelled",
            Self::Internal => "internal",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct CallError {
    pub(super) kind: ErrorKind,
    pub(super) message: String,
    details: Map<String, Value>,
}

impl CallError {
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), details: Map::new() }
    }

    pub(super) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.insert(key.into(), value.into());
        self
    }

    pub(super) fn into_response(self) -> HostResponse {
        let mut error =
            Map::from_iter([("kind".to_owned(), json!(self.kind.name())), ("message".to_owned(), json!(self.message))]);
        error.extend(self.details);
        HostResponse::Error(Value::Object(error))
    }
}

impl From<StoreError> for CallError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Rejected(reason) => {
                let kind = if reason.is_limit() { ErrorKind::Limit } else { ErrorKind::Invalid };
                Self::new(kind, format!("{reason}; {}", reason.hint()))
            }
            error => {
                // The details are about the host's disk, which the guest must not learn about.
                tracing::error!("the store failed to handle a request from code: {error}");
                Self::new(ErrorKind::Internal, "the host failed to handle the request; see the log of the server")
            }
        }
    }
}

impl From<Failure> for CallError {
    fn from(failure: Failure) -> Self {
        let kind = match failure.kind {
            Kind::Policy => ErrorKind::Refused,
            Kind::ResourceLimit | Kind::Busy => ErrorKind::Limit,
            Kind::NotFound | Kind::SessionNotFound => ErrorKind::NotFound,
            Kind::Validation => ErrorKind::Invalid,
            _ => ErrorKind::Internal,
        };
        let message = [failure.message].into_iter().chain(failure.hints).collect::<Vec<_>>().join("; ");
        failure.context.into_iter().fold(Self::new(kind, message), |error, (key, value)| error.with(&key, value))
    }
}
