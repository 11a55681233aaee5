//! What kind of message a text is, found without building its values.
//!
//! It is checked as a whole to be JSON that is not nested deeper than a parser with a stack can follow. Nothing of it
//! is copied, so that a large message costs no more than itself.

use std::fmt;

use serde::Deserializer;
use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::message::{AnswerId, Malformed, own_number};

/// The same as where values are built.
const MAX_DEPTH: usize = 127;
/// Longer names and ids are none that we look for, however they are spelt.
const MAX_NAME_BYTES: usize = 64;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Envelope<'a> {
    Result(AnswerId, &'a [u8]),
    Error(AnswerId),
    /// A request or a notification.
    Other,
}

/// What to make of a name that comes twice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeats {
    Refused,
    LastCounts,
}

/// The texts of a message, or of the messages of a batch.
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

pub(super) fn read(text: &[u8]) -> Result<Envelope<'_>, Malformed> {
    let [id, method, result, error] = pick(text, ["id", "method", "result", "error"], Repeats::Refused)?;
    let is_given = |member: &RawValue| member.get() != "null";
    if method.is_some_and(is_given) {
        return Ok(Envelope::Other);
    }
    let id = id.filter(|id| id.get().len() <= MAX_NAME_BYTES);
    let id = id.and_then(|id| own_number(&serde_json::from_str::<Value>(id.get()).ok()?));
    let id = id.map_or(AnswerId::Unnamed, AnswerId::Ours);
    match (result, error.filter(|error| is_given(error))) {
        (_, Some(_)) => Ok(Envelope::Error(id)),
        (Some(result), None) => Ok(Envelope::Result(id, result.get().as_bytes())),
        (None, None) => Err(Malformed),
    }
}

/// What the result of a tool says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ResultHead {
    pub is_error: bool,
    pub asks_for_input: bool,
}

pub(crate) fn head_of(result: &[u8]) -> ResultHead {
    // What is no object says nothing.
    let members = pick(result, ["isError", "resultType"], Repeats::LastCounts);
    let [is_error, kind] = members.unwrap_or_default().map(|member| {
        let text = member.map(RawValue::get).filter(|text| text.len() <= MAX_NAME_BYTES);
        text.and_then(|text| serde_json::from_str::<Value>(text).ok()).unwrap_or_default()
    });
    ResultHead { is_error: is_error == true, asks_for_input: kind == "input_required" }
}

/// The values of an object that have one of these names.
fn pick<'a, const N: usize>(
    text: &'a [u8],
    names: [&str; N],
    repeats: Repeats,
) -> Result<[Option<&'a RawValue>; N], Malformed> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let picked = reader.deserialize_map(Pick { names, repeats }).map_err(|_| Malformed)?;
    reader.end().map_err(|_| Malformed)?;
    Ok(picked)
}

struct Pick<'n, const N: usize> {
    names: [&'n str; N],
    repeats: Repeats,
}

impl<'de, const N: usize> Visitor<'de> for Pick<'_, N> {
    type Value = [Option<&'de RawValue>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut picked = [None; N];
        // As text: a name that is as long as the message is not unescaped into another buffer.
        while let Some(name) = map.next_key::<&RawValue>()? {
            match self.names.iter().position(|wanted| is_name(name.get(), wanted)) {
                Some(at) if picked[at].is_some() && self.repeats == Repeats::Refused => {
                    return Err(A::Error::custom("a member that comes twice"));
                }
                Some(at) => picked[at] = Some(map.next_value()?),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(picked)
    }
}

fn is_name(text: &str, wanted: &str) -> bool {
    let plain = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    plain == Some(wanted)
        || (text.len() <= MAX_NAME_BYTES
            && text.contains('\\')
            && serde_json::from_str::<String>(text).is_ok_and(|name| name == wanted))
}

fn is_too_deep(bytes: &[u8]) -> bool {
    let (mut depth, mut rest) = (0_usize, bytes);
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'[' | b'{' | b']' | b'}')) {
        let found = rest[at];
        rest = &rest[at + 1..];
        match found {
            b'"' => rest = after_text(rest),
            b'[' | b'{' => depth += 1,
            _ => depth = depth.saturating_sub(1),
        }
        if depth > MAX_DEPTH {
            return true;
        }
    }
    false
}

fn after_text(mut rest: &[u8]) -> &[u8] {
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
    use crate::upstream::rpc::message;
    use crate::upstream::rpc::message::Message;

    fn result(text: &str) -> Option<(AnswerId, &str)> {
        match read(text.as_bytes()) {
            Ok(Envelope::Result(id, result)) => Some((id, std::str::from_utf8(result).unwrap())),
            _ => None,
        }
    }

    #[test]
    fn the_result_is_found_wherever_it_stands_and_kept_as_it_is_written() {
        let odd = r#"{ "b" : 1.50, "a":[1e5, "\u00e4\/"] }"#;
        for text in [
            format!(r#"{{"jsonrpc":"2.0","id":7,"result":{odd}}}"#),
            format!(r#" {{"result": {odd} , "x":{{"id":8,"error":1}},"error":null,"id":"7"}} "#),
            format!(r#"{{"method":null,"res\u0075lt":{odd},"i\u0064":7}}"#),
        ] {
            assert_eq!(result(&text), Some((AnswerId::Ours(7), odd)), "{text}");
        }
        assert_eq!(result(r#"{"id":7,"result":null}"#), Some((AnswerId::Ours(7), "null")));
        assert_eq!(result(r#"{"id":{"a":[]},"result":1}"#), Some((AnswerId::Unnamed, "1")));
    }

    #[test]
    fn errors_and_what_the_server_asks_are_told_apart() {
        assert_eq!(read(br#"{"id":3,"error":{"code":1},"result":{}}"#), Ok(Envelope::Error(AnswerId::Ours(3))));
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
    fn nesting_is_bounded_as_it_is_where_values_are_built() {
        for depth in [1, 126, 127, 128, 100_000] {
            let text = format!(r#"{{"id":1,"result":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
            assert_eq!(messages(text.as_bytes()).is_ok(), message::read(text.as_bytes()).is_ok(), "{depth}");
            assert_eq!(messages(text.as_bytes()).is_ok(), depth <= 126, "{depth}");
        }
        // Brackets in texts are none.
        let text = format!(r#"{{"id":1,"result":"{}\"{}\\"}}"#, "[".repeat(500), "{".repeat(500));
        assert!(messages(text.as_bytes()).is_ok());
    }

    #[test]
    fn a_result_says_whether_it_is_an_error_or_a_question() {
        let head = |text: &str| {
            let ResultHead { is_error, asks_for_input } = head_of(text.as_bytes());
            (is_error, asks_for_input)
        };
        assert_eq!(head(r#"{"content":[{"isError":true,"resultType":"input_required"}]}"#), (false, false));
        assert_eq!(head(r#"{"isError":false,"content":[],"isError":true}"#), (true, false));
        assert_eq!(head(r#"{"resultType":"input_required","isError":"true"}"#), (false, true));
        assert_eq!(head(r#"{"result\u0054ype":"input\u005frequired"}"#), (false, true));
        assert_eq!((head("[true]"), head("null")), ((false, false), (false, false)));
    }

    proptest! {
        /// What is read here and what is read with values agree.
        #[test]
        fn both_readers_agree(text in r#"[\[\]{}",:\\ 0-9a]{0,40}"#, wrap in any::<bool>()) {
            let text = if wrap { format!(r#"{{"id":5,"result":{text}}}"#) } else { text };
            let values = match message::read(text.as_bytes()) {
                Ok((mut messages, 0)) if messages.len() == 1 => messages.pop(),
                _ => None,
            };
            if let Some(Message::Response { outcome: Ok(value), .. }) = values
                && !text.trim_start().starts_with('[')
            {
                let (_, raw) = result(&text).expect("it is an answer");
                prop_assert_eq!(serde_json::from_str::<Value>(raw).unwrap(), value);
            } else if let Some((_, raw)) = result(&text) {
                // Only half of a surrogate pair, or a number that is too large, tells them apart.
                prop_assert!(serde_json::from_str::<Value>(raw).is_err());
            }
        }
    }
}
