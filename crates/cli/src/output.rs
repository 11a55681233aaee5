//! Output of the commands: results on standard output, all other messages on standard error.
//!
//! Standard output has only what can be piped into another program. Texts may come from guests and hosted servers, so
//! control characters in them are escaped.

use std::io::Write as _;
use std::process::ExitCode;

use ringfence_core::hidden_text::{escape, escape_json, escape_line};
use serde_json::Value;

use crate::failure::Failure;

/// Writes a result to standard output.
pub(crate) fn print(text: &str) -> Result<ExitCode, Failure> {
    match anstream::stdout().write_all(text.as_bytes()) {
        // The reader, such as `head`, has read enough.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new("cannot write to standard output").caused_by(&error))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

pub(crate) fn print_json(value: &Value) -> Result<ExitCode, Failure> {
    print(&format!("{}\n", escape_json(&format!("{value:#}"))))
}

/// Writes a message to standard error, marked so that it differs from what a command in a sandbox writes there.
pub(crate) fn notice(text: &str) {
    let _ = writeln!(anstream::stderr(), "ringfence: {}", escape(text));
}

/// Writes the next step to standard error, after a notice.
pub(crate) fn hint(text: &str) {
    let _ = writeln!(anstream::stderr(), "hint: {text}");
}

/// Writes a plain line to standard error, such as that a list is empty.
pub(crate) fn status(text: &str) {
    let _ = writeln!(anstream::stderr(), "{}", escape(text));
}

/// Returns the text in one line, with control and invisible characters escaped.
pub(crate) fn visible(text: &str) -> String {
    escape_line(text).into_owned()
}
