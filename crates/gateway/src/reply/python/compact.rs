//! The compact text format: omits empty lines and the status of a success.

use std::fmt::Write as _;

use super::super::guest_lines;
use super::super::terminal::to_one_line;
use super::{Reply, SUCCESS};

/// The beginnings of the host's lines.
const LABELS: [&str; 5] = ["status:", "exit:", "stderr:", "error:", "note:"];

pub(super) fn text(reply: &Reply) -> String {
    let mut text = String::new();
    if reply.status != SUCCESS {
        let _ = writeln!(text, "status: {}", reply.status);
    }
    if let Some(code) = reply.exit_code {
        let _ = writeln!(text, "exit: {code}");
    }
    for output in [&reply.stdout, &reply.result].into_iter().flatten() {
        for line in lines(&output.text) {
            let _ = writeln!(text, "{line}");
        }
    }
    for (label, output) in [("stderr", &reply.stderr), ("error", &reply.error)] {
        let lines: Vec<String> = output.iter().flat_map(|output| lines(&output.text)).collect();
        match lines.as_slice() {
            [] => {}
            [line] => {
                let _ = writeln!(text, "{label}: {line}");
            }
            lines => {
                let _ = writeln!(text, "{label}:\n{}", lines.join("\n"));
            }
        }
    }
    for note in reply.notes.iter().cloned().chain(reply.unfinished_calls.notes()) {
        let _ = writeln!(text, "note: {}", to_one_line(&note));
    }
    // An empty text would look like a lost one.
    if text.is_empty() { format!("status: {SUCCESS}") } else { text.trim_end().to_owned() }
}

/// Converts guest text to the lines that it has in a reply.
pub(super) fn guest_text(text: &str) -> String {
    lines(text).collect::<Vec<_>>().join("\n")
}

/// The lines of guest text, without blank ones and lone `()`. A line that begins with a label is indented.
fn lines(text: &str) -> impl Iterator<Item = String> {
    let lines = guest_lines::lines(text, &LABELS).map(|line| line.trim_end().to_owned());
    lines.filter(|line| !matches!(line.trim_start(), "" | "()"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_guest_line_begins_with_a_label(text in "((status|exit|STDERR|error|note|x|é| )?(:| )?[\n\r\u{2028}]?){0,12}") {
            for line in lines(&text) {
                prop_assert!(!guest_lines::has_label(&line, &LABELS) && !line.contains(['\n', '\u{2028}']), "{line:?}");
            }
        }
    }

    #[test]
    fn blank_lines_and_units_are_removed() {
        let lines: Vec<String> =
            lines("a\n\n  \n()\n () \nb ()\n  indented\nerror: mine\nError: too\nerrors: no").collect();
        assert_eq!(lines, ["a", "b ()", "  indented", " error: mine", " Error: too", "errors: no"]);
    }
}
