//! The output of calls: captured within limits, and retained in full for a while.

mod capture;
mod full_output;

pub(crate) use capture::{CallOutput, ProcessCapture};
pub use full_output::{DisplayId, FullOutput, MAX_FULL_OUTPUT_BYTES, RetainedOutputs};

/// The output of one stream: all of it, or its start and its end.
#[derive(Debug, Clone, Default)]
pub struct Output {
    pub head: Vec<u8>,
    /// Empty unless bytes were dropped.
    pub tail: Vec<u8>,
    pub dropped_bytes: u64,
    /// The complete output, if bytes were dropped.
    pub full: Option<FullOutput>,
}
