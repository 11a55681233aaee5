//! Classifies a message and finds its result without parsing it into values.
//!
//! The whole text is checked to be valid JSON with limited nesting. Nothing is copied, so that a large message needs no
//! further memory.

use std::fmt;

use serde::Deserializer;
use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::message::{Malformed, ResponseId, call_id};

/// Maximum nesting, the same as `serde_json` allows when it parses into values.
const MAX_DEPTH: usize = 127;
/// Maximum size of a member name or id that can match, in escaped form.
const MAX_NAME_BYTES: usize = 64;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Envelope<'a> {
    Result(ResponseId, &'a [u8]),
    Error(ResponseId),
    /// A request or a notification.
    Other,
}

/// Handling of a member that occurs twice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Duplicates {
    Rejected,
    LastWins,
}

/// Returns the text of a message, or of each message of a batch.
pub(super) fn messages(bytes: &[u8]) -> Result<Vec<&[u8]>, Malformed> {
    if is_too_deep(bytes) {
        return Err(Malformed);
    }
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'[') {
        return Ok(vec![bytes]);
    }
    let batch: Vec<&RawValue> = serde_json::from_slice(bytes).map_err(|_| Malformed)?;
    Ok(batch.into_iter().map(|message| message.get().as_bytes()).collect())
}

/// Classifies one message.
pub(super) fn read(text: &[u8]) -> Result<Envelope<'_>, Malformed> {
    let [id, method, result, error] = select_members(text, ["id", "method", "result", "error"], Duplicates::Rejected)?;
    let is_present = |member: &RawValue| member.get() != "null";
    if method.is_some_and(is_present) {
        return Ok(Envelope::Other);
    }
    let id = id.filter(|id| id.get().len() <= MAX_NAME_BYTES);
    let id = id.and_then(|id| call_id(&serde_json::from_str::<Value>(id.get()).ok()?));
    let id = id.map_or(ResponseId::Unknown, ResponseId::Call);
    match (result, error.filter(|error| is_present(error))) {
        (_, Some(_)) => Ok(Envelope::Error(id)),
        (Some(result), None) => Ok(Envelope::Result(id, result.get().as_bytes())),
        (None, None) => Err(Malformed),
    }
}

/// Members of a tool result that decide how it is handled.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ResultFlags {
    pub is_error: bool,
    pub is_input_required: bool,
}

pub(crate) fn result_flags(result: &[u8]) -> ResultFlags {
    // A result that is not an object sets no flags.
    let members = select_members(result, ["isError", "resultType"], Duplicates::LastWins);
    let [is_error, kind] = members.unwrap_or_default().map(|member| {
        let text = member.map(RawValue::get).filter(|text| text.len() <= MAX_NAME_BYTES);
        text.and_then(|text| serde_json::from_str::<Value>(text).ok()).unwrap_or_default()
    });
    ResultFlags { is_error: is_error == true, is_input_required: kind == "input_required" }
}

/// Returns the values of the named members of an object.
fn select_members<'a, const N: usize>(
    text: &'a [u8],
    names: [&str; N],
    duplicates: Duplicates,
) -> Result<[Option<&'a RawValue>; N], Malformed> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let selected = reader.deserialize_map(MemberSelector { names, duplicates }).map_err(|_| Malformed)?;
    reader.end().map_err(|_| Malformed)?;
    Ok(selected)
}

struct MemberSelector<'n, const N: usize> {
    names: [&'n str; N],
    duplicates: Duplicates,
}

impl<'de, const N: usize> Visitor<'de> for MemberSelector<'_, N> {
    type Value = [Option<&'de RawValue>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut selected = [None; N];
        // Raw text: a very long name must not be unescaped into another buffer.
        while let Some(name) = map.next_key::<&RawValue>()? {
            match self.names.iter().position(|expected| is_name(name.get(), expected)) {
                Some(at) if selected[at].is_some() && self.duplicates == Duplicates::Rejected => {
                    return Err(A::Error::custom("a duplicate member"));
                }
                Some(at) => selected[at] = Some(map.next_value()?),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(selected)
    }
}

fn is_name(text: &str, expected: &str) -> bool {
    let plain = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    plain == Some(expected)
        || (text.len() <= MAX_NAME_BYTES
            && text.contains('\\')
            && serde_json::from_str::<String>(text).is_ok_and(|name| name == expected))
}

fn is_too_deep(bytes: &[u8]) -> bool {
    let (mut depth, mut rest) = (0_usize, bytes);
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'[' | b'{' | b']' | b'}')) {
        let found = rest[at];
        rest = &rest[at + 1..];
        match found {
            b'"' => rest = after_string(rest),
            b'[' | b'{' => depth += 1,
            _ => depth = depth.saturating_sub(1),
        }
        if depth > MAX_DEPTH {
            return true;
        }
    }
    false
}

fn after_string(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')) {
        if rest[at] == b'"' {
            return &rest[at + 1..];
        }
        rest = rest.get(at + 2..).unwrap_or_default();
    }
    &[]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::upstream::connection::message;
    use crate::upstream::connection::message::Message;

    fn result(text: &str) -> Option<(ResponseId, &str)> {
        match read(text.as_bytes()) {
            Ok(Envelope::Result(id, result)) => Some((id, std::str::from_utf8(result).unwrap())),
            _ => None,
        }
    }

    #[test]
    fn result_is_found_at_any_position_and_returned_verbatim() {
        let odd = r#"{ "b" : 1.50, "a":[1e5, "\u00e4\/"] }"#;
        for text in [
            format!(r#"{{"jsonrpc":"2.0","id":7,"result":{odd}}}"#),
            format!(r#" {{"result": {odd} , "x":{{"id":8,"error":1}},"error":null,"id":"7"}} "#),
            format!(r#"{{"method":null,"res\u0075lt":{odd},"i\u0064":7}}"#),
        ] {
            assert_eq!(result(&text), Some((ResponseId::Call(7), odd)), "{text}");
        }
        assert_eq!(result(r#"{"id":7,"result":null}"#), Some((ResponseId::Call(7), "null")));
        assert_eq!(result(r#"{"id":{"a":[]},"result":1}"#), Some((ResponseId::Unknown, "1")));
    }

    #[test]
    fn results_errors_and_requests_are_distinguished() {
        assert_eq!(read(br#"{"id":3,"error":{"code":1},"result":{}}"#), Ok(Envelope::Error(ResponseId::Call(3))));
        assert_eq!(read(br#"{"id":3,"method":"m"}"#), Ok(Envelope::Other));
        for bad in [
            "",
            "7",
            "[]",
            "{}",
            r#"{"id":1}"#,
            r#"{"id":1,"result":{}"#,
            r#"{"id":1,"result":{}}}"#,
            r#"{"id":1,"result":NaN}"#,
            r#"{"id":1,"result":{},"id":2}"#,
            r#"{"id":1,"result":{},"res\u0075lt":{}}"#,
            "{\"id\":1,\"result\":\"a\nb\"}",
        ] {
            assert_eq!(read(bad.as_bytes()), Err(Malformed), "{bad}");
        }
        assert_eq!(read(b"{\"id\":1,\"result\":\"\xff\"}"), Err(Malformed));
    }

    #[test]
    fn nesting_limit_equals_the_limit_of_the_value_parser() {
        for depth in [1, 126, 127, 128, 100_000] {
            let text = format!(r#"{{"id":1,"result":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
            assert_eq!(messages(text.as_bytes()).is_ok(), message::read(text.as_bytes()).is_ok(), "{depth}");
            assert_eq!(messages(text.as_bytes()).is_ok(), depth <= 126, "{depth}");
        }
        // Brackets within strings do not count.
        let text = format!(r#"{{"id":1,"result":"{}\"{}\\"}}"#, "[".repeat(500), "{".repeat(500));
        assert!(messages(text.as_bytes()).is_ok());
    }

    #[test]
    fn flags_of_result_are_read() {
        let flags = |text: &str| {
            let ResultFlags { is_error, is_input_required } = result_flags(text.as_bytes());
            (is_error, is_input_required)
        };
        assert_eq!(flags(r#"{"content":[{"isError":true,"resultType":"input_required"}]}"#), (false, false));
        assert_eq!(flags(r#"{"isError":false,"content":[],"isError":true}"#), (true, false));
        assert_eq!(flags(r#"{"resultType":"input_required","isError":"true"}"#), (false, true));
        assert_eq!(flags(r#"{"result\u0054ype":"input\u005frequired"}"#), (false, true));
        assert_eq!((flags("[true]"), flags("null")), ((false, false), (false, false)));
    }

    proptest! {
        #[test]
        fn envelope_and_value_parser_agree(text in r#"[\[\]{}",:\\ 0-9a]{0,40}"#, wrap in any::<bool>()) {
            let text = if wrap { format!(r#"{{"id":5,"result":{text}}}"#) } else { text };
            let values = match message::read(text.as_bytes()) {
                Ok((mut messages, 0)) if messages.len() == 1 => messages.pop(),
                _ => None,
            };
            if let Some(Message::Response { outcome: Ok(value), .. }) = values
                && !text.trim_start().starts_with('[')
            {
                let (_, raw) = result(&text).expect("the text is a response");
                prop_assert_eq!(serde_json::from_str::<Value>(raw).unwrap(), value);
            } else if let Some((_, raw)) = result(&text) {
                // They differ only for half of a surrogate pair and for numbers that are too large.
                prop_assert!(serde_json::from_str::<Value>(raw).is_err());
            }
        }
    }
}
