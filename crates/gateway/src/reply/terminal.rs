//! Turns what was written for a terminal into plain text.

use std::borrow::Cow;
use std::iter::Peekable;
use std::str::Chars;

use ringfence_core::hidden_text::escape_content;

const ESCAPE: char = '\u{1b}';

/// Leaves out escape sequences and control characters, and of a line that was overwritten (as progress
/// bars do) keeps what a person would still see. Bidirectional controls and tag characters are escaped.
pub(super) fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut line_start = 0;
    let mut returned = false;
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            ESCAPE => skip_escape(&mut chars),
            // The one-character form of `ESC [`.
            '\u{9b}' => skip_control_sequence(&mut chars),
            '\r' => returned = true,
            '\n' => {
                shown.push('\n');
                line_start = shown.len();
                returned = false;
            }
            _ if char.is_control() && char != '\t' => {}
            _ => {
                if returned {
                    shown.truncate(line_start);
                    returned = false;
                }
                shown.push(char);
            }
        }
    }
    match escape_content(&shown) {
        Cow::Owned(escaped) => escaped,
        Cow::Borrowed(_) => shown,
    }
}

/// ECMA-48: CSI, the string sequences (OSC, DCS, SOS, PM, APC) and the short ones.
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

/// Up to BEL or `ESC \`. One that is never closed ends with its line, so that it hides no more than that.
fn skip_string(chars: &mut Peekable<Chars>) {
    while let Some(char) = chars.next_if(|char| *char != '\n') {
        if char == '\u{7}' || (char == ESCAPE && chars.next_if_eq(&'\\').is_some()) {
            return;
        }
    }
}

/// A text that somebody else may have had a hand in, without line breaks.
pub(super) fn one_line(text: &str) -> String {
    plain(text).split(['\n', '\u{2028}', '\u{2029}']).map(str::trim).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_is_left() {
        for (written, shown) in [
            ("a\tb\nc", "a\tb\nc"),
            ("\u{1b}[1;31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}x\u{1b}]8;;http://a\u{1b}\\link", "xlink"),
            ("\u{1b}(Bx\u{1b}=y\u{9b}2Kz", "xyz"),
            ("a\0b\u{8}c\u{7f}", "abc"),
            ("10%\r50%\r100%\n", "100%\n"),
            ("dos\r\nlines\r\n", "dos\nlines\n"),
            ("kept\r", "kept"),
            ("\u{1b}]open\nnext", "\nnext"),
            ("\u{1b}", ""),
            ("\u{1b}[31", ""),
            ("a\u{202e}b\u{e0041}c\u{200b}", "a\\u{202e}b\\u{e0041}c\u{200b}"),
        ] {
            assert_eq!(plain(written), shown, "{written:?}");
        }
    }
}
