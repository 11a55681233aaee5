//! Estimates the number of values in JSON text. A parsed value can need many times the memory of its text.

/// Whether the text has more than `max` values. The estimate is never too low.
pub fn has_more_values_than(json: &[u8], max: usize) -> bool {
    json.len() > max && count(json) > max
}

fn count(json: &[u8]) -> usize {
    let (mut count, mut is_in_string, mut is_escaped) = (0, false, false);
    for &byte in json {
        match (is_in_string, byte) {
            (true, _) if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (_, b'"') => is_in_string = !is_in_string,
            (false, b',' | b'[' | b'{') => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_within_strings_are_not_counted() {
        assert_eq!(count(br#"{"a": [1, 2, {}], "b,[{\"\\": ",,[["}"#), 6);
        assert!(
            has_more_values_than(b"[1,2,3]", 2)
                && !has_more_values_than(b"[1,2,3]", 3)
                && !has_more_values_than(br#"[",,,,,,"]"#, 2)
        );
    }
}
