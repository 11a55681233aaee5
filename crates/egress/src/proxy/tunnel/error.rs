//! Reasons why a tunnel ends early.

use std::io;

use crate::refusal::Refusal;
use crate::terminate::TerminationError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum TunnelError {
    #[error("the tunnel was refused")]
    Refused(#[source] Refusal),
    /// The refused bytes are the first of the tunnel and no TLS, so the guest receives an HTTP response.
    #[error("the request was refused")]
    RefusedRequest(#[source] Refusal),
    #[error("the connection failed")]
    Io(#[from] io::Error),
    #[error("the idle timeout expired")]
    IdleTimeout,
}

impl From<TerminationError> for TunnelError {
    fn from(error: TerminationError) -> Self {
        match error {
            TerminationError::Refused(refusal) => Self::Refused(refusal),
            TerminationError::Io(error) => Self::Io(error),
            TerminationError::IdleTimeout => Self::IdleTimeout,
        }
    }
}

impl From<Refusal> for TunnelError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            // The client uses HTTP or a similar protocol.
            Refusal::NotHttp | Refusal::Head(_) | Refusal::HeadTimeout => Self::RefusedRequest(refusal),
            refusal => Self::Refused(refusal),
        }
    }
}
