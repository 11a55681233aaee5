//! What an attack script says: one JSON line an attempt (see `tests/escape/attempt.py`).

use std::collections::BTreeMap;

use serde::Deserialize;

/// How one attempt went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Finding {
    Contained(String),
    Escaped(String),
    /// The host lacks what the attempt needs.
    Unsupported(String),
    /// Something was left behind, and only the host's side can tell whether it still lives.
    LeftBehind,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    attempt: String,
    contained: Option<bool>,
    saw: Option<String>,
    unsupported: Option<String>,
    judged_by: Option<String>,
}

/// Reads a report; the last word on an attempt counts.
pub(super) fn parse(text: &str) -> BTreeMap<String, Finding> {
    let parse = |line: &str| -> Line {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("not a line of a report ({error}): {line}"))
    };
    text.lines().map(parse).map(|line| (line.attempt.clone(), line.finding())).collect()
}

impl Line {
    fn finding(self) -> Finding {
        let saw = self.saw.unwrap_or_default();
        match (self.contained, self.unsupported, self.judged_by.as_deref()) {
            (Some(true), None, None) => Finding::Contained(saw),
            (Some(false), None, None) => Finding::Escaped(saw),
            (None, Some(why), None) => Finding::Unsupported(why),
            (None, None, Some("harness")) => Finding::LeftBehind,
            _ => panic!("a line that says nothing, or two things, about {}", self.attempt),
        }
    }
}

#[test]
fn the_last_word_counts() {
    let text = r#"{"attempt": "a", "judged_by": "harness", "saw": "x"}
{"attempt": "b", "unsupported": "no such thing"}
{"attempt": "a", "contained": false, "saw": "it lived on"}"#;
    let found = parse(text);
    assert_eq!(found["a"], Finding::Escaped("it lived on".into()));
    assert_eq!(found["b"], Finding::Unsupported("no such thing".into()));
}
