//! The `Range` field of a request, as far as clients of package registries use it: one range of bytes.

use std::ops::Range;

/// The part of a file that a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestedRange {
    Whole,
    Part(Range<u64>),
    /// The range starts behind the end of the file.
    Unsatisfiable,
}

impl RequestedRange {
    /// Parses the field for a file of this length. Several ranges, and other units, request the whole file.
    pub(super) fn parse(field: Option<&str>, length: u64) -> Self {
        let Some(range) = field.and_then(|field| field.trim().strip_prefix("bytes=")) else { return Self::Whole };
        let Some((first, last)) = range.trim().split_once('-') else { return Self::Whole };
        let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok())?;
        match (first.is_empty(), number(first), last.is_empty(), number(last)) {
            (true, _, false, Some(suffix)) => Self::part(length.saturating_sub(suffix)..length, length),
            (false, Some(start), true, _) => Self::part(start..length, length),
            (false, Some(start), false, Some(end)) if end >= start => {
                Self::part(start..end.saturating_add(1).min(length), length)
            }
            _ => Self::Whole,
        }
    }

    fn part(range: Range<u64>, length: u64) -> Self {
        if range.start < length && range.start < range.end { Self::Part(range) } else { Self::Unsatisfiable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_served_and_anything_else_is_the_whole_file() {
        use RequestedRange::{Part, Unsatisfiable, Whole};
        for (field, expected) in [
            ("bytes=0-0", Part(0..1)),
            ("bytes=2-", Part(2..10)),
            ("bytes=-3", Part(7..10)),
            ("bytes=-30", Part(0..10)),
            ("bytes=5-99999999999999999999", Whole),
            ("bytes=5-18446744073709551615", Part(5..10)),
            ("bytes=10-", Unsatisfiable),
            ("bytes=-0", Unsatisfiable),
            ("bytes=0-1,3-4", Whole),
            ("bytes=4-2", Whole),
            ("bytes=-", Whole),
            ("bytes=+1-2", Whole),
            ("lines=1-2", Whole),
        ] {
            assert_eq!(RequestedRange::parse(Some(field), 10), expected, "{field}");
        }
        assert_eq!(RequestedRange::parse(None, 10), Whole);
        assert_eq!(RequestedRange::parse(Some("bytes=0-5"), 0), Unsatisfiable);
    }
}
