//! Reads the value of a secret without showing it: from a variable, a file, standard input or a terminal.

use std::fs::File;
use std::io::{BufRead, IsTerminal as _, Read, Write as _};
use std::path::Path;

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::failure::Failure;

/// A value is shorter. More than this is read only to report that.
const MAX_BYTES: usize = 64 << 10;

#[derive(Debug, Clone, Copy)]
pub(super) enum Source<'a> {
    Variable(&'a str),
    File(&'a Path),
    StandardInput { secret: &'a str },
}

pub(super) fn read(source: Source<'_>) -> Result<Zeroizing<String>, Failure> {
    match source {
        Source::Variable(name) => std::env::var(name).map(Zeroizing::new).map_err(|_| {
            Failure::new(format!("the environment variable {name} is not set, or is not UTF-8"))
                .hint("set the variable, or pass the value on standard input")
        }),
        Source::File(path) => {
            let failed =
                |error: &std::io::Error| Failure::new(format!("cannot read {}", path.display())).caused_by(error);
            text_of(File::open(path).map_err(|error| failed(&error))?, &path.display().to_string())
        }
        Source::StandardInput { secret } if std::io::stdin().is_terminal() => prompt(secret),
        Source::StandardInput { .. } => text_of(std::io::stdin().lock(), "standard input"),
    }
}

fn text_of(reader: impl Read, name: &str) -> Result<Zeroizing<String>, Failure> {
    // Large enough at once: growing the buffer would leave copies of the value in memory.
    let mut text = Zeroizing::new(String::with_capacity(MAX_BYTES));
    let read = reader.take(MAX_BYTES as u64).read_to_string(&mut text);
    read.map_err(|error| Failure::new(format!("cannot read the value from {name}")).caused_by(&error))?;
    Ok(text)
}

/// Reads a line from the terminal without echo.
fn prompt(secret: &str) -> Result<Zeroizing<String>, Failure> {
    let failed = |error: &dyn std::error::Error| Failure::new("cannot read from the terminal").caused_by(error);
    let terminal = QuietTerminal::enter().map_err(|errno| failed(&errno))?;
    let mut stderr = std::io::stderr();
    let _ = write!(stderr, "value of {secret} (not shown): ").and_then(|()| stderr.flush());
    let line = read_line(std::io::stdin().lock());
    drop(terminal);
    let _ = writeln!(stderr);
    let line = line.map_err(|error| failed(&error))?;
    line.ok_or_else(|| Failure::new("cancelled").hint("nothing was stored"))
}

/// Reads up to the end of the line. Interprets the keys that the terminal does not interpret without echo and line
/// editing: with these, a line would be limited to 4095 bytes, and Ctrl-C would leave the terminal without echo.
fn read_line(reader: impl BufRead) -> std::io::Result<Option<Zeroizing<String>>> {
    const CANCEL: u8 = 0x03;
    const END: u8 = 0x04;
    const DELETE_LINE: u8 = 0x15;
    const BACKSPACES: [u8; 2] = [0x08, 0x7f];
    let mut line = Zeroizing::new(Vec::with_capacity(MAX_BYTES));
    for byte in reader.bytes().take(MAX_BYTES) {
        match byte? {
            b'\n' | b'\r' | END => break,
            CANCEL => return Ok(None),
            DELETE_LINE => line.clear(),
            byte if BACKSPACES.contains(&byte) => drop(line.pop()),
            byte => line.push(byte),
        }
    }
    let text = str::from_utf8(&line).map_err(|_| std::io::Error::other("the value is not UTF-8"))?;
    Ok(Some(Zeroizing::new(text.to_owned())))
}

/// The terminal without echo and line editing. Its previous mode is restored when this value is dropped.
struct QuietTerminal(Termios);

impl QuietTerminal {
    fn enter() -> rustix::io::Result<Self> {
        let before = tcgetattr(rustix::stdio::stdin())?;
        let mut quiet = before.clone();
        quiet.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
        quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
        // Input that was typed before the prompt stays, so that a program can type ahead.
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &quiet)?;
        Ok(Self(before))
    }
}

impl Drop for QuietTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_terminal_edit_the_line() {
        let read = |keys: &[u8]| read_line(keys).unwrap().map(|line| line.as_str().to_owned());
        assert_eq!(read(b"abc\nrest").as_deref(), Some("abc"));
        assert_eq!(read(b"abx\x7f\x08bc\r").as_deref(), Some("abc"));
        assert_eq!(read(b"wrong\x15abc\x04").as_deref(), Some("abc"));
        assert_eq!(read(b"abc\x03"), None);
        assert!(read_line(&b"\xff\n"[..]).is_err());
    }
}
