//! Entry point of the fuzz target `rpc_front`.

use serde_json::Value;

use crate::rpc::{Message, Payload, RpcError};
use crate::{era, http, json_size, rpc, upstream};

/// Reads what a hostile client or server sends. The first byte selects the reader.
pub fn rpc_front(data: &[u8]) {
    let [reader, rest @ ..] = data else { return };
    match reader % 5 {
        0 => messages(rest),
        1 => http::fuzzing::headers(rest),
        2 => upstream::fuzzing::events(rest),
        3 => upstream::fuzzing::readers(rest),
        _ => upstream::fuzzing::connection(rest),
    }
}

fn messages(bytes: &[u8]) {
    match rpc::parse_all(bytes) {
        Ok(Payload::Single(message)) => check(message),
        Ok(Payload::Batch(batch)) => {
            assert!((1..=16).contains(&batch.len()));
            batch.into_iter().flatten().for_each(check);
        }
        Err(error) => {
            assert!([RpcError::PARSE_ERROR, RpcError::INVALID_REQUEST].contains(&error.code));
            serde_json::to_vec(&rpc::response(None, Err(error))).expect("JSON");
        }
    }
    assert!(!json_size::has_more_values_than(bytes, bytes.len()), "more values than bytes");
}

/// A message that is written again is read as the same.
fn check(message: Message) {
    match message {
        Message::Request { id, method, params } => {
            let written = rpc::request(&id, &method, Some(params.clone())).to_string();
            let Ok(Message::Request { id: again, method: name, .. }) = rpc::parse(written.as_bytes()) else {
                panic!("{written}");
            };
            assert_eq!((again, &name), (id.clone(), &method));
            request(&method, &params);
            let mut result = params;
            era::mark_result(&mut result, &method, era::Era::Modern);
            assert!(!result.is_object() || result.get("resultType").is_some());
            rpc::response(Some(&id), Ok(result)).to_string();
        }
        Message::Notification { method, params } => {
            let written = rpc::notification(&method, Some(params)).to_string();
            assert!(matches!(rpc::parse(written.as_bytes()), Ok(Message::Notification { .. })), "{written}");
        }
        Message::Response { id, outcome } => {
            let written = rpc::response(Some(&id), outcome).to_string();
            let Ok(Message::Response { id: again, .. }) = rpc::parse(written.as_bytes()) else { panic!("{written}") };
            assert_eq!(again, id);
        }
    }
}

fn request(method: &str, params: &Value) {
    match era::of_request(method, params) {
        Ok(era::Era::Modern) => assert!(era::declared_version(params).is_some()),
        Ok(era::Era::Legacy) => assert_ne!(method, "server/discover"),
        Err(error) => {
            assert!([RpcError::INVALID_PARAMS, RpcError::UNSUPPORTED_PROTOCOL_VERSION].contains(&error.code));
        }
    }
    let version = era::negotiate(era::declared_version(params).unwrap_or_default());
    assert!(version < era::MODERN_VERSION && era::VERSIONS.contains(&version));
}
