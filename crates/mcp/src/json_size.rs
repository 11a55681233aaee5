//! How many values a text of JSON has: read into memory, each takes many times the byte or two that it may have there.

/// Whether it has more than `most`. Roughly, and never too few.
pub fn exceed(json: &[u8], most: usize) -> bool {
    json.len() > most && count(json) > most
}

fn count(json: &[u8]) -> usize {
    let (mut count, mut in_text, mut escaped) = (0, false, false);
    for &byte in json {
        match (in_text, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_text = !in_text,
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
    fn values_are_counted_and_text_is_not() {
        assert_eq!(count(br#"{"a": [1, 2, {}], "b,[{\"\\": ",,[["}"#), 6);
        assert!(exceed(b"[1,2,3]", 2) && !exceed(b"[1,2,3]", 3) && !exceed(br#"[",,,,,,"]"#, 2));
    }
}
