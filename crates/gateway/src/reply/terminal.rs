//! Converts terminal output to plain text.

use std::borrow::Cow;
use std::iter::Peekable;
use std::str::Chars;

use ringfence_core::hidden_text::escape_content;

const ESCAPE: char = '\u{1b}';

/// Removes escape sequences and control characters. Of a line that was overwritten, as by a progress bar, the last
/// version is left. Bidirectional controls and tag characters are escaped.
pub(super) fn to_plain_text(text: &str) -> String {
    let mut output = String::with_capacity(text.len());
    let mut line_start = 0;
    let mut is_overwriting = false;
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            ESCAPE => skip_escape(&mut chars),
            // The one-character form of `ESC [`.
            '\u{9b}' => skip_control_sequence(&mut chars),
            '\r' => is_overwriting = true,
            '\n' => {
                output.push('\n');
                line_start = output.len();
                is_overwriting = false;
            }
            _ if char.is_control() && char != '\t' => {}
            _ => {
                if is_overwriting {
                    output.truncate(line_start);
                    is_overwriting = false;
                }
                output.push(char);
            }
        }
    }
    match escape_content(&output) {
        Cow::Owned(escaped) => escaped,
        Cow::Borrowed(_) => output,
    }
}

/// Skips an escape sequence of ECMA-48: CSI, the string sequences (OSC, DCS, SOS, PM, APC) and the short ones.
fn skip_escape(chars: &mut Peekable<Chars>) {
    match chars.peek().copied() {
        Some('[') => {
            chars.next();
            skip_control_sequence(chars);
        }
        Some(']' | 'P' | 'X' | '^' | '_') => {
            chars.next();
            skip_string(chars);
        }
        Some(' '..='/') => {
            while chars.next_if(|char| matches!(char, ' '..='/')).is_some() {}
            chars.next_if(|char| matches!(char, '0'..='~'));
        }
        Some('0'..='~') => {
            chars.next();
        }
        _ => {}
    }
}

fn skip_control_sequence(chars: &mut Peekable<Chars>) {
    while chars.next_if(|char| matches!(char, ' '..='?')).is_some() {}
    chars.next_if(|char| matches!(char, '@'..='~'));
}

/// Skips a string sequence up to BEL or `ESC \`. An unterminated one ends with its line, so that it cannot hide more.
fn skip_string(chars: &mut Peekable<Chars>) {
    while let Some(char) = chars.next_if(|char| *char != '\n') {
        if char == '\u{7}' || (char == ESCAPE && chars.next_if_eq(&'\\').is_some()) {
            return;
        }
    }
}

/// Converts untrusted text to plain text without line breaks.
pub(super) fn to_one_line(text: &str) -> String {
    to_plain_text(text).split(['\n', '\u{2028}', '\u{2029}']).map(str::trim).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_are_removed() {
        for (input, expected) in [
            ("a\tb\nc", "a\tb\nc"),
            ("\u{1b}[1;31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}x\u{1b}]8;;http://a\u{1b}\\link", "xlink"),
            ("\u{1b}(Bx\u{1b}=y\u{9b}2Kz", "xyz"),
            ("a\0b\u{8}c\u{7f}", "abc"),
            ("10%\r50%\r100%\n", "100%\n"),
            ("dos\r\nlines\r\n", "dos\nlines\n"),
            ("unchanged\r", "unchanged"),
            ("\u{1b}]open\nnext", "\nnext"),
            ("\u{1b}", ""),
            ("\u{1b}[31", ""),
            ("a\u{202e}b\u{e0041}c\u{200b}", "a\\u{202e}b\\u{e0041}c\u{200b}"),
        ] {
            assert_eq!(to_plain_text(input), expected, "{input:?}");
        }
    }
}
