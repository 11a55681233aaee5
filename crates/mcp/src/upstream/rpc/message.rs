//! JSON-RPC messages: read without looking into them further than needed, written without copying.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::json_size;
use crate::upstream::error::RpcError;

/// The largest message in either direction.
pub(crate) const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// Parsed JSON takes many times the memory of its text: values of a message that is worth a count.
const MAX_VALUES: usize = 1_000_000;

/// One message from a server.
#[derive(Debug)]
pub(super) enum Message {
    Response { id: AnswerId, outcome: Result<Value, RpcError> },
    Request { id: Value, method: String, params: Option<Value> },
    Notification { method: String, params: Option<Value> },
}

/// Whose answer it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerId {
    Ours(u64),
    /// `null`, none, or a text of the server's own: it could not tell which request it answers.
    Unnamed,
}

/// It is not JSON-RPC.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    id: Option<Value>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    result: Option<Value>,
    #[serde(default)]
    error: Option<Value>,
}

/// Tells `null` from nothing.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Reads a message, or the messages of a batch; an element that is no message is left out, and counted.
pub(super) fn read(bytes: &[u8]) -> Result<(Vec<Message>, usize), Malformed> {
    if json_size::exceed(bytes, MAX_VALUES) {
        return Err(Malformed);
    }
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
        let batch: Vec<Value> = serde_json::from_slice(bytes).map_err(|_| Malformed)?;
        let total = batch.len();
        let wires = batch.into_iter().filter_map(|value| serde_json::from_value::<Wire>(value).ok());
        let messages: Vec<_> = wires.filter_map(|wire| classify(wire).ok()).collect();
        if messages.is_empty() {
            return Err(Malformed);
        }
        let left_out = total - messages.len();
        return Ok((messages, left_out));
    }
    let wire: Wire = serde_json::from_slice(bytes).map_err(|_| Malformed)?;
    Ok((vec![classify(wire)?], 0))
}

fn classify(wire: Wire) -> Result<Message, Malformed> {
    if let Some(method) = wire.method {
        return match wire.id {
            Some(id @ (Value::String(_) | Value::Number(_))) => {
                Ok(Message::Request { id, method, params: wire.params })
            }
            Some(Value::Null) | None => Ok(Message::Notification { method, params: wire.params }),
            Some(_) => Err(Malformed),
        };
    }
    let outcome = match (wire.result, wire.error) {
        (_, Some(error)) => Err(lenient(&error)),
        (Some(result), None) => Ok(result),
        (None, None) => return Err(Malformed),
    };
    Ok(Message::Response { id: answer_id(wire.id.as_ref()), outcome })
}

/// An error is an error however it is spelt: a call must not wait for a better one.
fn lenient(error: &Value) -> RpcError {
    RpcError::deserialize(error).unwrap_or_else(|_| RpcError::new(RpcError::INTERNAL_ERROR, error.to_string()))
}

fn answer_id(id: Option<&Value>) -> AnswerId {
    id.and_then(own_number).map_or(AnswerId::Unnamed, AnswerId::Ours)
}

/// One of our numbers, as number or as text: some servers make texts of all ids.
pub(super) fn own_number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) if text.len() <= 20 => text.parse().ok(),
        _ => None,
    }
}

/// Which of our calls a message answers that is too large to be read: its first and last bytes tell.
pub(super) fn id_of_oversized(head: &[u8], tail: &[u8]) -> Option<u64> {
    id_at_start(head).or_else(|| id_at_end(tail))
}

/// The `id` among the leading members, up to the first that is an object or a list.
fn id_at_start(head: &[u8]) -> Option<u64> {
    let head = String::from_utf8_lossy(head);
    let members = head.trim_start().strip_prefix('{')?;
    let leading = members.split(['{', '[']).next()?;
    leading.split(',').find_map(id_member)
}

/// The `id` among the trailing members, after the last that is an object or a list.
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
struct Sent<'a> {
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

const EMPTY: Sent<'_> = Sent { jsonrpc: "2.0", id: None, method: None, params: None, result: None, error: None };

pub(super) fn request(id: u64, method: &str, params: Option<&Value>) -> Vec<u8> {
    write(&Sent { id: Some(&id.into()), method: Some(method), params, ..EMPTY })
}

pub(super) fn notification(method: &str, params: Option<&Value>) -> Vec<u8> {
    write(&Sent { method: Some(method), params, ..EMPTY })
}

pub(super) fn answer(id: &Value, outcome: &Result<Value, RpcError>) -> Vec<u8> {
    let (result, error) = (outcome.as_ref().ok(), outcome.as_ref().err());
    write(&Sent { id: Some(id), result, error, ..EMPTY })
}

fn write(message: &Sent<'_>) -> Vec<u8> {
    // Values have text keys only, so that writing them cannot fail.
    serde_json::to_vec(message).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(text: &str) -> Message {
        let (mut messages, left_out) = read(text.as_bytes()).unwrap();
        assert_eq!((messages.len(), left_out), (1, 0));
        messages.remove(0)
    }

    #[test]
    fn kinds_of_messages_are_told_apart() {
        assert!(matches!(one(r#"{"jsonrpc":"2.0","id":"a","method":"m"}"#), Message::Request { .. }));
        assert!(matches!(one(r#"{"jsonrpc":"2.0","method":"m"}"#), Message::Notification { .. }));
        let Message::Response { id, outcome } = one(r#"{"result":null,"id":"7"}"#) else { panic!() };
        assert_eq!((id, outcome), (AnswerId::Ours(7), Ok(Value::Null)));
        let Message::Response { id, outcome } = one(r#"{"id":null,"error":{"code":-1,"message":"x"}}"#) else {
            panic!()
        };
        assert_eq!((id, outcome.unwrap_err().code), (AnswerId::Unnamed, -1));
        for bad in ["", "3", "{}", "[]", r#"{"id":1}"#, r#"{"id":{},"method":"m"}"#, "{", "[3]"] {
            assert!(read(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_batch_gives_each_of_its_messages() {
        let (messages, left_out) = read(br#" [{"id":1,"result":{}},7,{"method":"m"}]"#).unwrap();
        assert_eq!((messages.len(), left_out), (2, 1));
    }

    #[test]
    fn a_message_of_too_many_values_is_not_read() {
        let zeros = format!(r#"{{"id":1,"result":[{}0]}}"#, "0,".repeat(MAX_VALUES));
        assert!(read(zeros.as_bytes()).is_err());
        let text = format!(r#"{{"id":1,"result":"{}"}}"#, ",".repeat(2 * MAX_VALUES));
        assert!(read(text.as_bytes()).is_ok());
    }

    #[test]
    fn the_id_of_an_oversized_answer_is_found_at_either_end() {
        assert_eq!(id_of_oversized(br#"{"jsonrpc":"2.0", "id": 12 ,"result":{"a":"#, b"xxxx"), Some(12));
        assert_eq!(id_of_oversized(br#"{"result":{"id":3,"#, br#""id":4}]},"jsonrpc":"2.0","id":13}"#), Some(13));
        assert_eq!(id_of_oversized(br#"{"result":{"id":3,"#, br#""id":4}]}}"#), None);
        assert_eq!(id_of_oversized(b"\xff\xfe", b"\xff}"), None);
    }

    #[test]
    fn messages_are_written_with_what_they_have_only() {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        assert_eq!(text(request(4, "m", None)), r#"{"jsonrpc":"2.0","id":4,"method":"m"}"#);
        assert_eq!(
            text(notification("n", Some(&json!({"z":1,"a":2})))),
            r#"{"jsonrpc":"2.0","method":"n","params":{"z":1,"a":2}}"#
        );
        assert_eq!(text(answer(&json!("q"), &Ok(json!({})))), r#"{"jsonrpc":"2.0","id":"q","result":{}}"#);
        let error = Err(RpcError::new(-1, "no"));
        assert_eq!(text(answer(&json!(3), &error)), r#"{"jsonrpc":"2.0","id":3,"error":{"code":-1,"message":"no"}}"#);
    }
}
