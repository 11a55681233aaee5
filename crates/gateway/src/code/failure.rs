//! What code is told of a call that came to nothing.

use ringfence_guest::HostResponse;
use ringfence_store::StoreError;
use serde_json::{Map, Value, json};

/// By which code can tell what happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// It may not.
    Refused,
    NotFound,
    Invalid,
    Limit,
    /// The server answered with an error.
    Upstream,
    Timeout,
    /// The server was not there, or was lost.
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
    more: Map<String, Value>,
}

impl CallError {
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), more: Map::new() }
    }

    pub(super) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.more.insert(key.into(), value.into());
        self
    }

    pub(super) fn into_answer(self) -> HostResponse {
        let mut error =
            Map::from_iter([("kind".to_owned(), json!(self.kind.name())), ("message".to_owned(), json!(self.message))]);
        error.extend(self.more);
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
                // What is wrong with the host's disk is not the guest's business.
                tracing::error!("the store failed a call from code: {error}");
                Self::new(ErrorKind::Internal, "the host could not do it; its log says why")
            }
        }
    }
}
