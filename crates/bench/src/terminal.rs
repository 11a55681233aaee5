//! Output to the person who runs the benchmark.

use std::io::{ErrorKind, Write as _};

use anyhow::Context as _;
use ringfence_core::hidden_text::escape;

use crate::programs::RingfenceNotFound;

/// The exit code of all failures, as in `ringfence`.
pub(crate) const FAILURE: u8 = 125;

/// Writes the report to standard output.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match anstream::stdout().write_all(text.as_bytes()) {
        // The reader, such as `head`, has read enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}

/// Writes one line of progress to standard error.
pub(crate) fn notice(text: &str) {
    let _ = writeln!(anstream::stderr(), "ringfence: {}", escape(text));
}

pub(crate) fn show_error(error: &anyhow::Error) {
    let causes = error.chain().skip(1).map(|cause| format!("  caused by: {cause}\n"));
    let hint = error.downcast_ref::<RingfenceNotFound>().map(|_| format!("hint: {}\n", RingfenceNotFound::HINT));
    let text: String = std::iter::once(format!("error: {error}\n")).chain(causes).chain(hint).collect();
    let _ = anstream::stderr().write_all(escape(&text).as_bytes());
}
