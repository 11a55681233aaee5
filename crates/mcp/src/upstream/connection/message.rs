//! JSON-RPC messages of a server: parsing, and serialization without copies of the values.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::json_size;
use crate::upstream::error::RpcError;

/// Maximum size of a message in either direction, except for raw results.
pub(crate) const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// Maximum number of values in a message, since parsed JSON needs many times the memory of its text.
const MAX_VALUES: usize = 1_000_000;

/// One message from a server.
#[derive(Debug)]
pub(super) enum Message {
    Response { id: ResponseId, outcome: Result<Value, RpcError> },
    Request { id: Value, method: String, params: Option<Value> },
    Notification { method: String, params: Option<Value> },
}

/// The call that a response belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseId {
    Call(u64),
    /// The id is `null`, missing or not one of this side: the server did not recognize the request.
    Unknown,
}

/// The text is not a valid JSON-RPC message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

#[derive(Deserialize)]
struct RawMessage {
    #[serde(default)]
    id: Option<Value>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Option<Value>,
    #[serde(default, deserialize_with = "some_value")]
    result: Option<Value>,
    #[serde(default)]
    error: Option<Value>,
}

/// Distinguishes `null` from a missing member.
fn some_value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Parses a message or a batch. Returns the messages, and the number of invalid elements that were left out.
pub(super) fn read(bytes: &[u8]) -> Result<(Vec<Message>, usize), Malformed> {
    if json_size::has_more_values_than(bytes, MAX_VALUES) {
        return Err(Malformed);
    }
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
        let batch: Vec<Value> = serde_json::from_slice(bytes).map_err(|_| Malformed)?;
        let total = batch.len();
        let raws = batch.into_iter().filter_map(|value| serde_json::from_value::<RawMessage>(value).ok());
        let messages: Vec<_> = raws.filter_map(|raw| classify(raw).ok()).collect();
        if messages.is_empty() {
            return Err(Malformed);
        }
        let left_out = total - messages.len();
        return Ok((messages, left_out));
    }
    let raw: RawMessage = serde_json::from_slice(bytes).map_err(|_| Malformed)?;
    Ok((vec![classify(raw)?], 0))
}

fn classify(raw: RawMessage) -> Result<Message, Malformed> {
    if let Some(method) = raw.method {
        return match raw.id {
            Some(id @ (Value::String(_) | Value::Number(_))) => Ok(Message::Request { id, method, params: raw.params }),
            Some(Value::Null) | None => Ok(Message::Notification { method, params: raw.params }),
            Some(_) => Err(Malformed),
        };
    }
    let outcome = match (raw.result, raw.error) {
        (_, Some(error)) => Err(parse_error(&error)),
        (Some(result), None) => Ok(result),
        (None, None) => return Err(Malformed),
    };
    Ok(Message::Response { id: response_id(raw.id.as_ref()), outcome })
}

/// Accepts a malformed error object too: the call would otherwise wait for another response.
fn parse_error(error: &Value) -> RpcError {
    RpcError::deserialize(error).unwrap_or_else(|_| RpcError::new(RpcError::INTERNAL_ERROR, error.to_string()))
}

fn response_id(id: Option<&Value>) -> ResponseId {
    id.and_then(call_id).map_or(ResponseId::Unknown, ResponseId::Call)
}

/// Returns the id of a call. Some servers turn numeric ids into strings.
pub(super) fn call_id(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) if text.len() <= 20 => text.parse().ok(),
        _ => None,
    }
}

/// Finds the call of a response that is too large to be read, from its first and last bytes.
pub(super) fn oversized_call_id(head: &[u8], tail: &[u8]) -> Option<u64> {
    id_at_start(head).or_else(|| id_at_end(tail))
}

/// Finds the `id` among the leading members, up to the first object or array.
fn id_at_start(head: &[u8]) -> Option<u64> {
    let head = String::from_utf8_lossy(head);
    let members = head.trim_start().strip_prefix('{')?;
    let leading = members.split(['{', '[']).next()?;
    leading.split(',').find_map(id_member)
}

/// Finds the `id` among the trailing members, after the last object or array.
fn id_at_end(tail: &[u8]) -> Option<u64> {
    let tail = String::from_utf8_lossy(tail);
    let members = tail.trim_end().strip_suffix('}')?;
    let trailing = members.rsplit(['}', ']']).next()?;
    trailing.split(',').find_map(id_member)
}

fn id_member(member: &str) -> Option<u64> {
    let value = member.trim().strip_prefix("\"id\"")?.trim_start().strip_prefix(':')?;
    value.trim().parse().ok()
}

#[derive(Serialize)]
struct OutgoingMessage<'a> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RpcError>,
}

const EMPTY: OutgoingMessage<'_> =
    OutgoingMessage { jsonrpc: "2.0", id: None, method: None, params: None, result: None, error: None };

pub(super) fn request(id: u64, method: &str, params: Option<&Value>) -> Vec<u8> {
    write(&OutgoingMessage { id: Some(&id.into()), method: Some(method), params, ..EMPTY })
}

pub(super) fn notification(method: &str, params: Option<&Value>) -> Vec<u8> {
    write(&OutgoingMessage { method: Some(method), params, ..EMPTY })
}

pub(super) fn response(id: &Value, outcome: &Result<Value, RpcError>) -> Vec<u8> {
    let (result, error) = (outcome.as_ref().ok(), outcome.as_ref().err());
    write(&OutgoingMessage { id: Some(id), result, error, ..EMPTY })
}

fn write(message: &OutgoingMessage<'_>) -> Vec<u8> {
    // Serialization cannot fail: all keys are strings.
    serde_json::to_vec(message).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse_one(text: &str) -> Message {
        let (mut messages, left_out) = read(text.as_bytes()).unwrap();
        assert_eq!((messages.len(), left_out), (1, 0));
        messages.remove(0)
    }

    #[test]
    fn kinds_of_messages_are_distinguished() {
        assert!(matches!(parse_one(r#"{"jsonrpc":"2.0","id":"a","method":"m"}"#), Message::Request { .. }));
        assert!(matches!(parse_one(r#"{"jsonrpc":"2.0","method":"m"}"#), Message::Notification { .. }));
        let Message::Response { id, outcome } = parse_one(r#"{"result":null,"id":"7"}"#) else { panic!() };
        assert_eq!((id, outcome), (ResponseId::Call(7), Ok(Value::Null)));
        let Message::Response { id, outcome } = parse_one(r#"{"id":null,"error":{"code":-1,"message":"x"}}"#) else {
            panic!()
        };
        assert_eq!((id, outcome.unwrap_err().code), (ResponseId::Unknown, -1));
        for bad in ["", "3", "{}", "[]", r#"{"id":1}"#, r#"{"id":{},"method":"m"}"#, "{", "[3]"] {
            assert!(read(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn batch_returns_each_valid_message() {
        let (messages, left_out) = read(br#" [{"id":1,"result":{}},7,{"method":"m"}]"#).unwrap();
        assert_eq!((messages.len(), left_out), (2, 1));
    }

    #[test]
    fn message_with_too_many_values_is_rejected() {
        let zeros = format!(r#"{{"id":1,"result":[{}0]}}"#, "0,".repeat(MAX_VALUES));
        assert!(read(zeros.as_bytes()).is_err());
        let text = format!(r#"{{"id":1,"result":"{}"}}"#, ",".repeat(2 * MAX_VALUES));
        assert!(read(text.as_bytes()).is_ok());
    }

    #[test]
    fn id_of_oversized_response_is_found_at_either_end() {
        assert_eq!(oversized_call_id(br#"{"jsonrpc":"2.0", "id": 12 ,"result":{"a":"#, b"xxxx"), Some(12));
        assert_eq!(oversized_call_id(br#"{"result":{"id":3,"#, br#""id":4}]},"jsonrpc":"2.0","id":13}"#), Some(13));
        assert_eq!(oversized_call_id(br#"{"result":{"id":3,"#, br#""id":4}]}}"#), None);
        assert_eq!(oversized_call_id(b"\xff\xfe", b"\xff}"), None);
    }

    #[test]
    fn absent_members_are_not_serialized() {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        assert_eq!(text(request(4, "m", None)), r#"{"jsonrpc":"2.0","id":4,"method":"m"}"#);
        assert_eq!(
            text(notification("n", Some(&json!({"z":1,"a":2})))),
            r#"{"jsonrpc":"2.0","method":"n","params":{"z":1,"a":2}}"#
        );
        assert_eq!(text(response(&json!("q"), &Ok(json!({})))), r#"{"jsonrpc":"2.0","id":"q","result":{}}"#);
        let error = Err(RpcError::new(-1, "no"));
        assert_eq!(text(response(&json!(3), &error)), r#"{"jsonrpc":"2.0","id":3,"error":{"code":-1,"message":"no"}}"#);
    }
}
