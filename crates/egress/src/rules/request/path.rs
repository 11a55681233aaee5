//! Patterns for the paths of requests, and the decoded form of a path that they are compared with.
//!
//! A pattern is a path in which `*` stands for any characters within one segment. If the last segment is `*` alone, the
//! pattern matches everything beneath. Servers disagree on the meaning of `..`, `//`, `;`, backslashes and encoded
//! separators, so a path with one of these matches no pattern.

use std::fmt;
use std::str::FromStr;

const MAX_PATTERN_BYTES: usize = 1024;

/// Reason why a text is not a path pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("path pattern {pattern:?} {problem}")]
pub struct PathPatternError {
    pattern: String,
    problem: &'static str,
}

/// A path, or all paths that match a pattern with `*`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PathPattern {
    text: String,
    /// The decoded segments, each split at its wildcards.
    segments: Vec<Vec<Vec<u8>>>,
    /// Whether further segments may follow.
    is_prefix: bool,
}

impl PathPattern {
    pub(super) fn matches(&self, path: &RequestPath) -> bool {
        let fixed = self.segments.len();
        let has_length = if self.is_prefix { path.segments.len() > fixed } else { path.segments.len() == fixed };
        has_length && self.segments.iter().zip(&path.segments).all(|(parts, segment)| matches_segment(parts, segment))
    }
}

fn matches_segment(parts: &[Vec<u8>], segment: &[u8]) -> bool {
    let [first, rest @ ..] = parts else { return false };
    let Some((last, middle)) = rest.split_last() else { return first == segment };
    let Some(mut remaining) = segment.strip_prefix(first.as_slice()) else { return false };
    for part in middle {
        // The leftmost occurrence leaves the most bytes for the parts that follow.
        let found = remaining.windows(part.len().max(1)).position(|window| window == part.as_slice());
        match found {
            _ if part.is_empty() => {}
            Some(start) => remaining = &remaining[start + part.len()..],
            None => return false,
        }
    }
    remaining.ends_with(last)
}

impl FromStr for PathPattern {
    type Err = PathPatternError;

    fn from_str(text: &str) -> Result<Self, PathPatternError> {
        let invalid = |problem| PathPatternError { pattern: text.to_owned(), problem };
        if text.len() > MAX_PATTERN_BYTES {
            return Err(invalid("is too long"));
        }
        if text.contains(['?', '#']) {
            return Err(invalid("must not have a query or a fragment"));
        }
        let path = RequestPath::parse(text).ok_or_else(|| {
            invalid("must start with `/` and have no empty segment, `.`, `..`, `;`, backslash or encoded separator")
        })?;
        // An encoded star would be a wildcard after decoding.
        if text.to_ascii_lowercase().contains("%2a") {
            return Err(invalid("must not have an encoded `*`"));
        }
        let mut segments: Vec<Vec<Vec<u8>>> = path
            .segments
            .iter()
            .map(|segment| segment.split(|byte| *byte == b'*').map(<[u8]>::to_vec).collect())
            .collect();
        let is_prefix = path.segments.last().is_some_and(|last| last == b"*");
        if is_prefix {
            segments.pop();
        }
        Ok(Self { text: text.to_owned(), segments, is_prefix })
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PathPattern({:?})", self.text)
    }
}

/// The path of a request, decoded, if all servers read it in the same way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestPath {
    segments: Vec<Vec<u8>>,
}

impl RequestPath {
    /// Decodes a path without its query; `None` if it is ambiguous.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let segments = path.strip_prefix('/')?.split('/').map(decode_segment).collect::<Option<Vec<_>>>()?;
        let (_, others) = segments.split_last()?;
        let is_dots = |segment: &Vec<u8>| segment == b"." || segment == b"..";
        if others.iter().any(Vec::is_empty) || segments.iter().any(is_dots) {
            return None;
        }
        Some(Self { segments })
    }
}

fn decode_segment(segment: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                let is_hexadecimal = digits.iter().all(u8::is_ascii_hexdigit);
                let value = u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?;
                // A second decoding would change the path, and an encoded separator splits it only for some servers.
                let is_ambiguous = value.is_ascii_control() || b"/\\;%?#".contains(&value);
                (is_hexadecimal && !is_ambiguous).then_some(value)?
            }
            b';' | b'\\' | b'?' | b'#' => return None,
            byte => byte.is_ascii_graphic().then_some(byte)?,
        };
        decoded.push(byte);
    }
    // Overlong encodings of separators are not UTF-8.
    std::str::from_utf8(&decoded).ok()?;
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        let pattern: PathPattern = pattern.parse().unwrap();
        RequestPath::parse(path).is_some_and(|path| pattern.matches(&path))
    }

    #[test]
    fn patterns_match_literals_segments_and_subtrees() {
        for (pattern, path, expected) in [
            ("/user", "/user", true),
            ("/user", "/user/", false),
            ("/user", "/users", false),
            ("/user", "/User", false),
            ("/repos/me/*", "/repos/me/a", true),
            ("/repos/me/*", "/repos/me/a/b/c", true),
            ("/repos/me/*", "/repos/me/", true),
            ("/repos/me/*", "/repos/me", false),
            ("/repos/me/*", "/repos/men/a", false),
            ("/*", "/", true),
            ("/*", "/a/b", true),
            ("/repos/*/issues", "/repos/a/issues", true),
            ("/repos/*/issues", "/repos/a/b/issues", false),
            ("/repos/my-*", "/repos/my-x", true),
            ("/repos/my-*", "/repos/my-x/y", false),
            ("/a*b*c", "/aXbYc", true),
            ("/a*b*c", "/abc", true),
            ("/a*b*c", "/acb", false),
            ("/ab*b", "/ab", false),
            ("/**", "/anything", true),
            ("/a b".replace(' ', "%20").as_str(), "/a%20b", true),
            ("/%61", "/a", true),
            ("/a", "/%61", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn ambiguous_paths_match_nothing() {
        for path in [
            "",
            "*",
            "a",
            "//",
            "//a",
            "/a//b",
            "/a/../b",
            "/a/..",
            "/.",
            "/./a",
            "/%2e%2e/a",
            "/.%2E/a",
            "/a;b",
            "/a%3bb",
            "/a%2fb",
            "/a%2Fb",
            "/a\\b",
            "/a%5cb",
            "/a%00b",
            "/a%0ab",
            "/a%252fb",
            "/a%",
            "/a%2",
            "/a%zz",
            "/a%+1",
            "/a?b",
            "/a%3fb",
            "/a#b",
            "/a%23b",
            "/a b",
            "/ä",
            "/%c0%af",
            "/%ff",
        ] {
            assert!(!matches("/*", path), "{path:?}");
        }
    }

    #[test]
    fn invalid_patterns_are_refused() {
        for pattern in ["", "a", "*", "//", "/a/../b", "/a?b", "/a;b", "/%2a", "/a b", "/%", "/%2f"] {
            assert!(pattern.parse::<PathPattern>().is_err(), "{pattern:?}");
        }
    }

    /// Decodes and normalizes a path as a lenient server does: repeatedly, with `..`, `//` and parameters.
    fn read_leniently(path: &str) -> Vec<String> {
        let mut text = path.to_owned();
        for _ in 0..3 {
            let mut decoded = Vec::new();
            let mut rest = text.as_bytes();
            while let [byte, after @ ..] = rest {
                let encoded = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
                let digits = encoded.filter(|_| *byte == b'%');
                let value = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                decoded.push(value.unwrap_or(*byte));
                rest = if value.is_some() { &after[2..] } else { after };
            }
            text = String::from_utf8_lossy(&decoded).into_owned();
        }
        let mut segments = Vec::new();
        for segment in text.split(['/', '\\']) {
            match segment.split(';').next().unwrap_or_default() {
                "" | "." => {}
                ".." => drop(segments.pop()),
                segment => segments.push(segment.to_owned()),
            }
        }
        segments
    }

    proptest! {
        #[test]
        fn no_spelling_leaves_the_allowed_subtree(
            parts in proptest::collection::vec(
                proptest::sample::select(vec![
                    "/", "/pub", "pub", "secret", ".", "..", "%2e", "%2E%2e", "%2f", "%252f", ";", "%3b", "\\", "%5c", "//", "a",
                    "%70ub", "%", "%25", "%00", "*",
                ]),
                0..10,
            )
        ) {
            let path = parts.concat();
            if matches("/pub/*", &path) {
                let read = read_leniently(&path);
                prop_assert_eq!(read.first().map(String::as_str), Some("pub"), "{}", path);
            }
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,40}") {
            let _ = RequestPath::parse(&text);
            if let Ok(pattern) = text.parse::<PathPattern>() {
                prop_assert_eq!(pattern.to_string().parse::<PathPattern>().unwrap(), pattern);
            }
        }

        #[test]
        fn pattern_without_wildcard_matches_itself(path in "(/[a-z0-9._~!$&'()+,=:@-]{1,8}){1,4}") {
            prop_assume!(RequestPath::parse(&path).is_some());
            prop_assert!(matches(&path, &path));
        }
    }
}
