//! The reasons for which a call has no result.

use std::time::Duration;

use ringfence_core::{Failure, Kind};
use ringfence_mcp::failure;
use ringfence_mcp::rpc::RpcError;
use ringfence_mcp::upstream::{MAX_RAW_BYTES, UpstreamError};

use super::call_deadline::{Deadline, MIN_RESPONSE_TIME};
use crate::fleet::{CallEnd, LinkMissing, NoResponse};

#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum CallFailure {
    #[error("{0}")]
    Refused(Failure),
    #[error("{0}")]
    NotConnected(LinkMissing),
    /// The server responded with an error.
    #[error("{}", .0.message)]
    Upstream(RpcError),
    #[error("the server requests input, which code cannot give")]
    NeedsInput,
    #[error("no response within {} s", deadline.as_secs_f32())]
    TimedOut { deadline: Duration, may_have_run: bool },
    #[error("{reason}")]
    Lost { reason: String, may_have_run: bool },
    /// The server refused the connection, so nothing was sent.
    #[error("{0}")]
    Unreachable(String),
    #[error("the call was cancelled")]
    Cancelled { may_have_run: bool },
    #[error("the response is larger than {} MiB, the maximum", MAX_RAW_BYTES >> 20)]
    TooLarge,
    /// The response arrived, and was discarded.
    #[error("the response is larger than 1 MiB, and too many such responses wait to be read")]
    Busy,
}

impl CallFailure {
    pub(super) fn new(error: UpstreamError, deadline: Deadline) -> Self {
        match error {
            UpstreamError::Rpc(error) => Self::Upstream(error),
            UpstreamError::Cancelled => Self::Cancelled { may_have_run: true },
            UpstreamError::TimedOut => Self::TimedOut { deadline: deadline.duration(), may_have_run: true },
            UpstreamError::TooLarge => Self::TooLarge,
            UpstreamError::Busy => Self::Busy,
            UpstreamError::Closed { reason, may_have_run } => Self::Lost { reason, may_have_run },
            UpstreamError::Refused(_) | UpstreamError::HttpStatus { .. } | UpstreamError::ClosedDuringProbe(_) => {
                Self::Unreachable(error.to_string())
            }
        }
    }

    /// Whether the tool may have had an effect although there is no result.
    pub(crate) fn may_have_run(&self) -> bool {
        match self {
            Self::Refused(_) | Self::NotConnected(_) | Self::NeedsInput | Self::Unreachable(_) => false,
            Self::Upstream(_) | Self::TooLarge | Self::Busy => true,
            Self::TimedOut { may_have_run, .. }
            | Self::Lost { may_have_run, .. }
            | Self::Cancelled { may_have_run } => *may_have_run,
        }
    }

    pub(crate) fn hints(&self) -> &[String] {
        match self {
            Self::Refused(failure) => &failure.hints,
            Self::NotConnected(missing) => &missing.hints,
            _ => &[],
        }
    }

    /// Derives from the failure whether the server works. `None` if the server had too little time to respond.
    pub(super) fn call_end(&self) -> Option<CallEnd> {
        match self {
            Self::Upstream(_) | Self::NeedsInput | Self::TooLarge | Self::Busy => Some(CallEnd::Responded),
            Self::Lost { .. } => Some(CallEnd::NoResponse(NoResponse::ConnectionLost)),
            Self::Unreachable(_) => Some(CallEnd::NoResponse(NoResponse::Unreachable)),
            Self::TimedOut { deadline, .. } => {
                (*deadline >= MIN_RESPONSE_TIME).then_some(CallEnd::NoResponse(NoResponse::TimedOut))
            }
            Self::Refused(_) | Self::NotConnected(_) | Self::Cancelled { .. } => None,
        }
    }

    pub(super) fn audit_outcome(&self) -> &'static str {
        match self {
            Self::Upstream(_) | Self::NeedsInput => "error",
            Self::TimedOut { .. } => "timed_out",
            Self::Cancelled { .. } => "cancelled",
            _ => "lost",
        }
    }

    /// Renders the failure for a client. An error of the server is passed on as it is.
    pub(super) fn into_rpc_error(self, server: &str, deadline: Deadline) -> RpcError {
        let may_have_run = self.may_have_run();
        let is_timeout = matches!(self, Self::TimedOut { .. });
        let message = match self {
            Self::Refused(refusal) => return failure::render(refusal),
            Self::NotConnected(missing) => return not_connected(&missing),
            Self::Upstream(error) => return error,
            Self::Cancelled { .. } => return RpcError::new(RpcError::INTERNAL_ERROR, "the call was cancelled"),
            Self::TimedOut { .. } => format!("no response within {} s", deadline.duration().as_secs()),
            Self::TooLarge | Self::Busy => "the response is too large".to_owned(),
            Self::NeedsInput => "the server requests input".to_owned(),
            Self::Lost { reason, .. } | Self::Unreachable(reason) => reason,
        };
        let effect = if may_have_run { "the call may have run" } else { "the call has not run" };
        let failure =
            Failure::new(Kind::Connection, format!("the call to server {server} failed: {message}; {effect}"))
                .with("server", server)
                .with("phase", "tool_call")
                .with("may_have_run", may_have_run.to_string());
        let failure = if is_timeout { failure.with("rule", "server.request_timeout_s") } else { failure };
        let hint = if may_have_run { "check whether it had an effect before you call again" } else { "call again" };
        failure::render(failure.hint(hint))
    }
}

/// Renders the absence of a server for a client.
pub(crate) fn not_connected(missing: &LinkMissing) -> RpcError {
    let failure = Failure::new(Kind::Connection, missing.to_string()).with("server", missing.server.clone());
    let failure = match missing.phase {
        Some(phase) => failure.with("phase", phase.name()),
        None => failure,
    };
    let failure = missing.hints.iter().fold(failure, |failure, hint| failure.hint(hint.clone()));
    failure::render(failure.hint("the server was not called; `ringfence server show` on its host has details"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_under_a_short_deadline_does_not_count_against_the_server() {
        let end = |seconds| {
            CallFailure::new(UpstreamError::TimedOut, Deadline::after(Duration::from_secs(seconds))).call_end()
        };
        assert_eq!((end(1), end(60)), (None, Some(CallEnd::NoResponse(NoResponse::TimedOut))));
    }
}
