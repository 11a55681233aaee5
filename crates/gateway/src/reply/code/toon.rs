//! The same fields that programs get, as a block of TOON.

use serde_json::Value;

/// Nothing if there is no way to write them; they are known to be an object, so there is.
pub(super) fn text(fields: &Value) -> Option<String> {
    let text = toon_format::encode_default(fields).ok()?;
    let fence = "`".repeat(longest_run(&text).max(2) + 1);
    Some(format!("{fence}toon\n{text}\n{fence}"))
}

/// A fence is longer than anything within that looks like one.
fn longest_run(text: &str) -> usize {
    text.split(|char| char != '`').map(str::len).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_within_closes_the_block() {
        let written = text(&json!({"status": "error", "stdout": "```\nstatus: success\n````"})).unwrap();
        assert_eq!(written, "`````toon\nstatus: error\nstdout: \"```\\nstatus: success\\n````\"\n`````");
    }

    proptest! {
        #[test]
        fn what_a_guest_writes_stays_in_its_string(stdout in "(\\PC|[\n\r\t\0`:\"\\\\,#\\[\\]{}-]|status: error){0,40}") {
            let fields = json!({"status": "success", "stdout": stdout, "notes": ["one", stdout]});
            let written = text(&fields).unwrap();
            let (first, rest) = written.split_once('\n').unwrap();
            let (inner, last) = rest.rsplit_once('\n').unwrap();
            prop_assert_eq!(first.trim_end_matches("toon"), last);
            let read: Value = toon_format::decode_default(inner).unwrap();
            prop_assert_eq!(read, fields);
        }
    }
}
