//! JSON-RPC messages of clients: parsed as far as routing needs, the rest unchanged.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::json_size;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Id {
    Number(i64),
    Text(String),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RpcError {
    pub code: i64,
    #[serde(default)]
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// The error was created here because a limit is reached. Not part of the wire format, since the same code of another
    /// server has another meaning.
    #[serde(skip)]
    pub is_busy: bool,
}

pub type Outcome = Result<Value, RpcError>;

/// One message of a client.
#[derive(Debug)]
pub enum Message {
    Request {
        id: Id,
        method: String,
        params: Value,
    },
    Notification {
        method: String,
        params: Value,
    },
    /// The response to a request of the server.
    Response {
        id: Id,
        outcome: Outcome,
    },
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Envelope {
    #[serde(default)]
    jsonrpc: Value,
    #[serde(default)]
    id: GivenId,
    method: Option<String>,
    #[serde(default)]
    params: Value,
    result: Option<Value>,
    error: Option<RpcError>,
}

#[derive(Default, Deserialize)]
#[serde(untagged, expecting = "`id` is neither an integer nor a string")]
enum GivenId {
    Id(Id),
    Null,
    #[default]
    #[serde(skip)]
    Missing,
}

impl RpcError {
    pub const PARSE_ERROR: i64 = -32700;
    pub const INVALID_REQUEST: i64 = -32600;
    pub const METHOD_NOT_FOUND: i64 = -32601;
    pub const INVALID_PARAMS: i64 = -32602;
    pub const INTERNAL_ERROR: i64 = -32603;
    /// A limit is reached; `data` says when to retry.
    pub const BUSY: i64 = -32001;
    pub const RESOURCE_NOT_FOUND: i64 = -32002;
    /// Headers and body of a modern request differ.
    pub const HEADER_MISMATCH: i64 = -32020;
    /// A modern server requires a capability that the client lacks.
    pub const MISSING_CLIENT_CAPABILITY: i64 = -32021;
    /// A modern server does not support the requested version.
    pub const UNSUPPORTED_PROTOCOL_VERSION: i64 = -32022;

    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None, is_busy: false }
    }

    #[must_use]
    pub fn with_data(self, data: Value) -> Self {
        Self { data: Some(data), ..self }
    }

    pub fn method_not_found(method: &str) -> Self {
        Self::new(RpcError::METHOD_NOT_FOUND, format!("unknown method `{method}`"))
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

/// Maximum size of a message of a client: a file of maximum size in Base64, and some more.
pub const MAX_MESSAGE_BYTES: usize = 24 << 20;

pub fn too_large() -> RpcError {
    let max = MAX_MESSAGE_BYTES >> 20;
    RpcError::new(RpcError::INVALID_REQUEST, format!("the message is larger than {max} MiB; send less at a time"))
}

/// Maximum number of values in a message. Large messages consist of few long strings.
const MAX_VALUES: usize = 200_000;

/// Maximum number of messages in a batch.
const MAX_BATCH: usize = 16;

/// The content of one line or one POST.
#[derive(Debug)]
pub enum Payload {
    Single(Message),
    /// A batch, with an error for each element that is not a message.
    Batch(Vec<Result<Message, RpcError>>),
}

/// Parses a message or a batch.
pub fn parse_all(bytes: &[u8]) -> Result<Payload, RpcError> {
    if bytes.trim_ascii_start().first() != Some(&b'[') {
        return parse(bytes).map(Payload::Single);
    }
    check_values(bytes)?;
    let parts: Vec<&RawValue> = serde_json::from_slice(bytes)
        .map_err(|error| RpcError::new(RpcError::PARSE_ERROR, format!("the request is not JSON: {error}")))?;
    match parts.len() {
        0 => Err(invalid("the batch is empty")),
        1..=MAX_BATCH => Ok(Payload::Batch(parts.iter().map(|part| parse(part.get().as_bytes())).collect())),
        _ => Err(invalid(&format!("the batch has more than {MAX_BATCH} messages"))),
    }
}

fn check_values(bytes: &[u8]) -> Result<(), RpcError> {
    if json_size::has_more_values_than(bytes, MAX_VALUES) {
        let message = format!("the message has more than {MAX_VALUES} values; send data as a file with write_file");
        return Err(RpcError::new(RpcError::INVALID_REQUEST, message));
    }
    Ok(())
}

pub fn parse(bytes: &[u8]) -> Result<Message, RpcError> {
    check_values(bytes)?;
    let envelope: Envelope =
        serde_json::from_slice(bytes).map_err(|error| match serde_json::from_slice::<Value>(bytes) {
            Err(_) => RpcError::new(RpcError::PARSE_ERROR, format!("the request is not JSON: {error}")),
            Ok(Value::Array(_)) => invalid("a batch within a batch"),
            Ok(_) => invalid(&error.to_string()),
        })?;
    if envelope.jsonrpc != "2.0" {
        return Err(invalid("`jsonrpc` is not \"2.0\""));
    }
    // Some clients send `null` in notifications; in a request it would leave the client without a response.
    let is_request = envelope.method.as_ref().is_some_and(|method| !method.starts_with("notifications/"));
    let id = match envelope.id {
        GivenId::Id(id) => Some(id),
        GivenId::Null if is_request => return Err(invalid("`id` is null")),
        GivenId::Null | GivenId::Missing => None,
    };
    match (envelope.method, id) {
        (Some(method), Some(id)) => Ok(Message::Request { id, method, params: envelope.params }),
        (Some(method), None) => Ok(Message::Notification { method, params: envelope.params }),
        (None, Some(id)) => match (envelope.result, envelope.error) {
            (Some(result), None) => Ok(Message::Response { id, outcome: Ok(result) }),
            (None, Some(error)) => Ok(Message::Response { id, outcome: Err(error) }),
            _ => Err(invalid("`method` and `result` are missing")),
        },
        (None, None) => Err(invalid("`method` is missing")),
    }
}

fn invalid(reason: &str) -> RpcError {
    RpcError::new(RpcError::INVALID_REQUEST, format!("the request is not a JSON-RPC message: {reason}"))
}

/// Returns the response to a request.
pub fn response(id: Option<&Id>, outcome: Outcome) -> Value {
    let (key, value) = match outcome {
        // Moved, since it may be large.
        Ok(result) => ("result", result),
        Err(error) => ("error", json!(error)),
    };
    let mut message = Map::with_capacity(3);
    message.insert("jsonrpc".into(), "2.0".into());
    message.insert("id".into(), json!(id));
    message.insert(key.into(), value);
    Value::Object(message)
}

pub fn request(id: &Id, method: &str, params: Option<Value>) -> Value {
    let mut message = Map::new();
    message.insert("jsonrpc".into(), "2.0".into());
    message.insert("id".into(), json!(id));
    message.insert("method".into(), method.into());
    message.extend(params.map(|params| ("params".to_owned(), params)));
    Value::Object(message)
}

pub fn notification(method: &str, params: Option<Value>) -> Value {
    let mut message = Map::new();
    message.insert("jsonrpc".into(), "2.0".into());
    message.insert("method".into(), method.into());
    message.extend(params.map(|params| ("params".to_owned(), params)));
    Value::Object(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_message_is_rejected_with_reason() {
        let errors = [
            "{",
            "[]",
            "7",
            "{}",
            r#"{"jsonrpc":"2.0"}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"method":"x"}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
        ]
        .map(|text| parse(text.as_bytes()).map_err(|error| format!("{} {}", error.code, error.message)).unwrap_err());
        insta::assert_snapshot!(errors.join("\n"));
    }

    #[test]
    fn number_of_values_is_limited_and_length_of_text_is_not() {
        let params = |json: String| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":[{json}]}}"#);
        let error = parse(params(vec!["0"; MAX_VALUES + 1].join(",")).as_bytes()).unwrap_err();
        assert_eq!(error.code, RpcError::INVALID_REQUEST);
        assert!(parse(params(format!("{:?}", ",".repeat(2 * MAX_VALUES))).as_bytes()).is_ok());
    }

    #[test]
    fn each_message_of_batch_is_parsed() {
        let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        let Ok(Payload::Batch(batch)) = parse_all(format!(" [{ping}, 7, {ping}]").as_bytes()) else { panic!() };
        assert!(matches!(batch[..], [Ok(Message::Request { .. }), Err(_), Ok(Message::Request { .. })]));
        let refused = |text: &str| parse_all(text.as_bytes()).unwrap_err().code;
        assert_eq!(refused("[]"), RpcError::INVALID_REQUEST);
        assert_eq!(refused(&format!("[{}]", [ping; MAX_BATCH + 1].join(","))), RpcError::INVALID_REQUEST);
        assert_eq!(refused(&format!("[{ping}")), RpcError::PARSE_ERROR);
        assert_eq!(refused(&format!("[{}]", vec!["0"; MAX_VALUES + 1].join(","))), RpcError::INVALID_REQUEST);
        assert!(matches!(parse_all(ping.as_bytes()), Ok(Payload::Single(_))));
    }

    #[test]
    fn three_kinds_of_messages_are_distinguished() {
        let kind = |text: &str| parse(text.as_bytes()).unwrap();
        assert!(matches!(
            kind(r#"{"jsonrpc":"2.0","id":"a","method":"ping"}"#),
            Message::Request { id: Id::Text(_), params: Value::Null, .. }
        ));
        assert!(matches!(kind(r#"{"jsonrpc":"2.0","method":"x"}"#), Message::Notification { .. }));
        assert!(matches!(
            kind(r#"{"jsonrpc":"2.0","id":null,"method":"notifications/x"}"#),
            Message::Notification { .. }
        ));
        assert!(matches!(
            kind(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}"#),
            Message::Response { outcome: Err(RpcError { code: -1, .. }), .. }
        ));
    }
}
