//! Text without anything that needs no saying.

use std::fmt::Write as _;

use super::super::terminal::one_line;
use super::{SUCCESS, Said};

/// What the host's own lines begin with.
const LABELS: [&str; 5] = ["status:", "exit:", "stderr:", "error:", "note:"];

pub(super) fn text(said: &Said) -> String {
    let mut text = String::new();
    if said.status != SUCCESS {
        let _ = writeln!(text, "status: {}", said.status);
    }
    if let Some(code) = said.exit_code {
        let _ = writeln!(text, "exit: {code}");
    }
    for output in [&said.stdout, &said.result].into_iter().flatten() {
        for line in lines(output) {
            let _ = writeln!(text, "{line}");
        }
    }
    for (label, output) in [("stderr", &said.stderr), ("error", &said.error)] {
        let lines: Vec<String> = output.iter().flat_map(|output| lines(output)).collect();
        match lines.as_slice() {
            [] => {}
            [only] => {
                let _ = writeln!(text, "{label}: {only}");
            }
            several => {
                let _ = writeln!(text, "{label}:\n{}", several.join("\n"));
            }
        }
    }
    for note in said.notes.iter().cloned().chain(said.unfinished.notes()) {
        let _ = writeln!(text, "note: {}", one_line(&note));
    }
    // Nothing at all would look like something that was lost.
    if text.is_empty() { format!("status: {SUCCESS}") } else { text.trim_end().to_owned() }
}

pub(super) fn of_guest(text: &str) -> String {
    lines(text).collect::<Vec<_>>().join("\n")
}

/// What a guest wrote, without blank lines and lone `()`, and with no line that could pass for the host's.
fn lines(text: &str) -> impl Iterator<Item = String> {
    let lines = text.split(['\n', '\u{2028}', '\u{2029}']).map(str::trim_end);
    lines
        .filter(|line| !matches!(line.trim_start(), "" | "()"))
        .map(|line| if begins_like_ours(line) { format!(" {line}") } else { line.to_owned() })
}

fn begins_like_ours(line: &str) -> bool {
    LABELS.iter().any(|label| line.get(..label.len()).is_some_and(|start| start.eq_ignore_ascii_case(label)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_line_of_a_guest_begins_with_a_label(text in "((status|exit|STDERR|error|note|x|é| )?(:| )?[\n\r\u{2028}]?){0,12}") {
            for line in lines(&text) {
                prop_assert!(!begins_like_ours(&line) && !line.contains(['\n', '\u{2028}']), "{line:?}");
            }
        }
    }

    #[test]
    fn only_what_says_something_is_left() {
        let left: Vec<String> =
            lines("a\n\n  \n()\n () \nb ()\n  indented\nerror: mine\nError: too\nerrors: no").collect();
        assert_eq!(left, ["a", "b ()", "  indented", " error: mine", " Error: too", "errors: no"]);
    }
}
