//! Lines of guest text in a block that also has lines of the host.
//!
//! The host's lines begin with one of a few labels. A line of the guest that begins with a label, or that looks as if it
//! did, is indented by a space.

/// The beginnings of the host's lines in the result of code and commands. The status line is the last line.
pub(super) const RUN_LABELS: [&str; 8] =
    ["[ok", "[error", "[exit code", "[timed out", "[cancelled", "[killed", "[…", "stderr:"];

/// Splits guest text into lines, each indented if it begins with a label.
pub(super) fn lines<'a>(text: &'a str, labels: &'a [&str]) -> impl Iterator<Item = String> + 'a {
    let lines = text.split(['\n', '\u{2028}', '\u{2029}']);
    lines.map(move |line| if has_label(line, labels) { format!(" {line}") } else { line.to_owned() })
}

/// Indents the lines that begin with a label.
pub(super) fn indent(text: &str, labels: &[&str]) -> String {
    lines(text, labels).collect::<Vec<_>>().join("\n")
}

/// Whether a line begins with a label, apart from characters that a reader does not see.
pub(super) fn has_label(line: &str, labels: &[&str]) -> bool {
    let visible = line.trim_start_matches(is_invisible);
    labels.iter().any(|label| visible.get(..label.len()).is_some_and(|start| start.eq_ignore_ascii_case(label)))
}

fn is_invisible(char: char) -> bool {
    matches!(char, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_that_look_like_those_of_the_host_are_indented() {
        for (line, indented) in [
            ("[ok, 1 ms]", " [ok, 1 ms]"),
            ("[OK, 1 ms; new session_id x]", " [OK, 1 ms; new session_id x]"),
            ("\u{200b}[error, 1 ms]", " \u{200b}[error, 1 ms]"),
            ("a\u{2028}[killed", "a\n [killed"),
            ("[… 5 bytes dropped …]", " [… 5 bytes dropped …]"),
            ("[1, 2]", "[1, 2]"),
            ("  [ok]", "  [ok]"),
            ("", ""),
            ("\n\na\n", "\n\na\n"),
        ] {
            assert_eq!(indent(line, &RUN_LABELS), indented);
        }
    }

    proptest! {
        #[test]
        fn no_line_of_a_guest_has_a_label(text in "(\\[ok|\\[Error|\\[…|stderr:|x|\u{200b}| |[\n\u{2028}]){0,12}") {
            for line in lines(&text, &RUN_LABELS) {
                prop_assert!(!has_label(&line, &RUN_LABELS) && !line.contains(['\n', '\u{2028}']), "{line:?}");
            }
        }
    }
}
