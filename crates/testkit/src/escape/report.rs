//! Output of an attack script: one JSON line for each attempt (see `tests/escape/attempt.py`).

use std::collections::BTreeMap;

use serde::Deserialize;

/// The result of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    Contained(String),
    Escaped(String),
    /// The host lacks what the attempt needs.
    Unsupported(String),
    /// The script left something behind, and the harness has to check whether it is still there.
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

/// Parses the output of a script. If an attempt is reported twice, the last report counts.
pub fn parse(text: &str) -> BTreeMap<String, Finding> {
    let parse = |line: &str| -> Line {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("invalid line of a report ({error}): {line}"))
    };
    text.lines().map(parse).map(|line| (line.attempt.clone(), line.finding())).collect()
}

impl Line {
    fn finding(self) -> Finding {
        let saw = self.saw.unwrap_or_default();
        match (self.contained, self.unsupported, self.judged_by.as_deref()) {
            (Some(true), None, None) => Finding::Contained(saw),
            (Some(false), None, None) => Finding::Escaped(saw),
            (None, Some(reason), None) => Finding::Unsupported(reason),
            (None, None, Some("harness")) => Finding::LeftBehind,
            _ => panic!("the report of {} has no result or more than one", self.attempt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_report_of_an_attempt_counts() {
        let text = r#"{"attempt": "a", "judged_by": "harness", "saw": "x"}
{"attempt": "b", "unsupported": "no such device"}
{"attempt": "a", "contained": false, "saw": "still running"}"#;
        let found = parse(text);
        assert_eq!(found["a"], Finding::Escaped("still running".into()));
        assert_eq!(found["b"], Finding::Unsupported("no such device".into()));
    }
}
