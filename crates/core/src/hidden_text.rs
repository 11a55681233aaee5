//! Escapes characters that a terminal interprets or that a reader does not see.
//!
//! Texts of guests and of MCP servers can hide instructions from a person while a model reads them (tag characters, runs
//! of variation selectors or zero-width characters), reorder what is shown (bidirectional controls) or control a terminal
//! (escape sequences). Such characters are replaced by their escape, such as `\u{202e}`; everything else is unchanged.
//! Emoji sequences and scripts that need joiners are unchanged.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The set of characters to escape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// For unsolicited text (names, descriptions, instructions) and for terminals: every hidden character.
    Label,
    /// For requested data, where zero-width spaces and direction marks are common: control characters,
    /// explicit bidirectional formatting, tag characters and runs of variation selectors.
    Content,
}

/// Escapes every hidden character. Line breaks and tabs are unchanged.
pub fn escape(text: &str) -> Cow<'_, str> {
    escape_at(Level::Label, text)
}

/// Escapes only the characters that are not acceptable in data either.
pub fn escape_content(text: &str) -> Cow<'_, str> {
    escape_at(Level::Content, text)
}

/// Escapes like [`escape`], and also line breaks and tabs, for text that must be one line.
pub fn escape_line(text: &str) -> Cow<'_, str> {
    match escape(text) {
        text if !text.contains(['\n', '\t', '\r', '\u{2028}', '\u{2029}']) => text,
        text => Cow::Owned(text.replace('\n', "\\n").replace('\t', "\\t").replace('\r', "\\r")),
    }
}

/// Escapes hidden characters in a JSON document with JSON escapes, so that its value does not change.
pub fn escape_json(json: &str) -> Cow<'_, str> {
    if !may_have_hidden(json) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len());
    let mut units = [0; 2];
    // The context of a joiner is not checked: an allowed joiner has the same value if it is escaped.
    for char in json.chars() {
        if char.is_ascii_control() && char != '\x7f' || !is_special(char) {
            escaped.push(char);
        } else {
            for unit in char.encode_utf16(&mut units) {
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        }
    }
    Cow::Owned(escaped)
}

fn escape_at(level: Level, text: &str) -> Cow<'_, str> {
    if !may_have_hidden(text) {
        return Cow::Borrowed(text);
    }
    let mut escaped: Option<String> = None;
    let mut before = None;
    for (at, char) in text.char_indices() {
        if is_hidden(level, char, before, &text[at + char.len_utf8()..]) {
            let escaped = escaped.get_or_insert_with(|| text[..at].to_owned());
            match char {
                '\r' => escaped.push_str("\\r"),
                char => escaped.extend(char.escape_unicode()),
            }
            // The next character follows the escape, not the escaped character.
            before = None;
            continue;
        }
        if let Some(escaped) = &mut escaped {
            escaped.push(char);
        }
        before = Some(char);
    }
    escaped.map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Scans quickly for bytes other than printable ASCII, because most texts have none.
fn may_have_hidden(text: &str) -> bool {
    // No early exit within a chunk, so that the compiler can vectorise the loop.
    let is_plain = |byte: &u8| (b' '..=b'~').contains(byte) | matches!(byte, b'\n' | b'\t');
    !text.as_bytes().chunks(256).all(|chunk| chunk.iter().fold(true, |plain, byte| plain & is_plain(byte)))
}

fn is_hidden(level: Level, char: char, before: Option<char>, after: &str) -> bool {
    match char {
        '\n' | '\t' => false,
        '\r' => !after.starts_with('\n'),
        // Variation selectors: one after a visible character selects its form; several in a row can carry hidden data.
        '\u{fe00}'..='\u{fe0f}' => !before.is_some_and(accepts_selector),
        '\u{e0100}'..='\u{e01ef}' => !before.is_some_and(is_ideograph),
        // Joiners are visible within emoji and in scripts that need them.
        '\u{200c}' | '\u{200d}' => level == Level::Label && !before.is_some_and(accepts_joiner),
        char if is_explicit(char) => true,
        char => level == Level::Label && is_special(char),
    }
}

/// Characters that are escaped in data too.
fn is_explicit(char: char) -> bool {
    char.is_control() || matches!(char, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns whether a character is hidden in some context.
fn is_special(char: char) -> bool {
    is_explicit(char)
        || matches!(char,
            '\u{ad}' | '\u{34f}' | '\u{61c}'
            // invisible fillers
            | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{3164}' | '\u{ffa0}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}' | '\u{2029}'
            | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0080}'..='\u{e0fff}')
}

fn is_selector(char: char) -> bool {
    matches!(char, '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}')
}

/// Returns whether a variation selector may follow a character: a visible non-ASCII one, or the base of a keycap emoji.
fn accepts_selector(char: char) -> bool {
    matches!(char, '0'..='9' | '#' | '*') || !char.is_ascii() && !is_special(char)
}

fn is_ideograph(char: char) -> bool {
    matches!(char, '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// Returns whether a joiner may follow a character: a non-ASCII letter, a symbol, or the variation selector of an emoji.
fn accepts_joiner(char: char) -> bool {
    !char.is_ascii() && (is_selector(char) || !is_special(char))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hidden_characters_become_visible() {
        for (text, escaped) in [
            ("a\u{202e}b\u{2066}c\u{200f}", "a\\u{202e}b\\u{2066}c\\u{200f}"),
            ("x\u{e0041}\u{e007f}", "x\\u{e0041}\\u{e007f}"),
            ("\u{1b}[31mred\u{9b}0m\u{7}\u{0}\u{7f}", "\\u{1b}[31mred\\u{9b}0m\\u{7}\\u{0}\\u{7f}"),
            ("10%\r20%\r\n", "10%\\r20%\r\n"),
            ("a\u{200b}b\u{2060}c\u{feff}d\u{3164}", "a\\u{200b}b\\u{2060}c\\u{feff}d\\u{3164}"),
            ("a\u{200d}b", "a\\u{200d}b"),
            ("\u{645}\u{200c}\u{200c}\u{200d}", "\u{645}\u{200c}\\u{200c}\\u{200d}"),
            ("\u{1f600}\u{fe01}\u{fe02}\u{e0101}\u{fe03}", "\u{1f600}\u{fe01}\\u{fe02}\\u{e0101}\\u{fe03}"),
        ] {
            assert_eq!(escape(text), escaped, "{text:?}");
        }
    }

    #[test]
    fn texts_of_all_scripts_are_unchanged() {
        for text in [
            "plain\n\ttext\r\nlines",
            "Grüße, Привет, 你好, 안녕하세요",
            "\u{645}\u{6cc}\u{200c}\u{62e}\u{648}\u{627}\u{647}\u{645}",
            "\u{915}\u{94d}\u{200d}\u{937}",
            "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{2764}\u{fe0f}\u{200d}\u{1f525} 1\u{fe0f}\u{20e3}",
            "\u{845b}\u{e0100}",
        ] {
            assert!(matches!(escape(text), Cow::Borrowed(_)), "{text:?}");
            assert!(matches!(escape_content(text), Cow::Borrowed(_)), "{text:?}");
        }
    }

    #[test]
    fn content_retains_common_marks() {
        let text = "a\u{200b}b\u{200e}\u{ad}\u{feff}\u{2028}";
        assert_eq!(escape_content(text), text);
        assert_eq!(escape_content("\u{202e}\u{1b}\u{e0041}\u{2069}"), "\\u{202e}\\u{1b}\\u{e0041}\\u{2069}");
        assert_eq!(escape_content("\u{2764}\u{fe0f}\u{fe01}"), "\u{2764}\u{fe0f}\\u{fe01}");
    }

    #[test]
    fn escaped_line_has_no_line_break() {
        assert_eq!(escape_line("a\nb\tc\u{2028}d\r\n"), "a\\nb\\tc\\u{2028}d\\r\\n");
        assert_eq!(escape_line("abc"), "abc");
    }

    proptest! {
        #[test]
        fn escaped_json_has_the_same_value(text: String, hidden in "[\u{202a}-\u{202e}\u{e0000}-\u{e007f}\u{7f}-\u{9f}a]{0,8}") {
            let value = serde_json::json!({ (text.clone()): hidden, "b": [text] });
            let escaped = escape_json(&value.to_string()).into_owned();
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
            prop_assert!(!escaped.chars().any(is_special));
        }

        #[test]
        fn no_hidden_character_remains(text in "[\u{0}-\u{ff}\u{200b}-\u{206f}\u{fe00}-\u{feff}\u{e0000}-\u{e01ef}]{0,64}") {
            let once = escape(&text).into_owned();
            prop_assert!(matches!(escape(&once), Cow::Borrowed(_)));
            prop_assert!(!escape_content(&text).chars().any(|char| is_explicit(char) && !"\r\n\t".contains(char)));
        }
    }
}
