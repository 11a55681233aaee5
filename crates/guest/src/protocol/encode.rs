//! Frames from the host to a kernel.

use ringfence_core::Language;
use serde_json::json;

use crate::host_call::{HostResponse, JsonBytes};

/// Bit in a Python frame's number: the frame is the response to the call of that number.
const RESPONSE_BIT: u64 = 1 << 63;

/// Bit in a Python frame's number: the cell may display HTML copies of values that have a text too.
const HTML_BIT: u64 = 1 << 60;

/// Bit in a Python frame's number: the frame names modules to import, and that number identifies its `done`.
const PRELOAD_BIT: u64 = 1 << 61;

/// Number of a Python frame that is a preface.
const PREFACE_NUMBER: u64 = 1 << 62;

/// Maximum size of a response that is copied into one piece.
const MAX_COPIED_BYTES: usize = 64 << 10;

/// Returns a frame of the concatenated parts.
pub fn encode_frame(parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    [&[encode_length(length).as_slice()], parts].concat().concat()
}

fn encode_length(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

/// Encodes the preface of the cells that follow: a JSON object. Bash has none.
pub fn encode_preface(language: Language, json: &str) -> Vec<u8> {
    match language {
        Language::Bash => Vec::new(),
        Language::Python => encode_frame(&[&PREFACE_NUMBER.to_be_bytes(), json.as_bytes()]),
        Language::Node => encode_frame(&[br#"{"type":"preface","#, json.as_bytes().strip_prefix(b"{").unwrap_or(b"}")]),
    }
}

/// Encodes the request to import modules before the first cell. Only Python has it.
pub fn encode_preload(id: u64, modules: &[String]) -> Vec<u8> {
    encode_frame(&[&(PRELOAD_BIT | id).to_be_bytes(), modules.join(" ").as_bytes()])
}

/// Encodes the response to a call, in the pieces in which it is sent: a large result is not copied.
pub fn encode_response(language: Language, number: u64, response: HostResponse) -> Vec<JsonBytes> {
    let start = match language {
        Language::Python => [(RESPONSE_BIT | number).to_be_bytes().as_slice(), b"{"].concat(),
        Language::Bash | Language::Node => format!(r#"{{"type":"answer","call":{number},"#).into_bytes(),
    };
    let (key, body) = match response {
        HostResponse::Result(json) => (r#""result":"#, json),
        HostResponse::Error(error) => (r#""error":"#, Box::new(error.to_string().into_bytes()) as JsonBytes),
    };
    let json = (*body).as_ref();
    if json.len() <= MAX_COPIED_BYTES {
        return vec![Box::new(encode_frame(&[&start, key.as_bytes(), json, b"}"]))];
    }
    let length = start.len() + key.len() + json.len() + 1;
    let before = [encode_length(length).as_slice(), &start, key.as_bytes()].concat();
    vec![Box::new(before), body, Box::new(b"}".to_vec())]
}

/// Encodes the request to run a cell that may display HTML copies of values that have a text too. Only Python has copies.
pub fn encode_rich_cell(language: Language, id: u64, code: &str) -> Vec<u8> {
    encode_cell(language, if language == Language::Python { HTML_BIT | id } else { id }, code)
}

/// Encodes the request to run a cell.
pub fn encode_cell(language: Language, id: u64, code: &str) -> Vec<u8> {
    match language {
        Language::Bash => {
            // bash drops zero bytes when it reads, and would wait for as many bytes more.
            let code = code.replace('\0', "");
            format!("{id} {}\n{code}", code.len()).into_bytes()
        }
        Language::Python => encode_frame(&[&id.to_be_bytes(), code.as_bytes()]),
        Language::Node => encode_frame(&[json!({ "type": "execute", "id": id, "code": code }).to_string().as_bytes()]),
    }
}

/// Returns code that does nothing.
pub fn noop_code(language: Language) -> &'static str {
    if language == Language::Bash { ":" } else { "" }
}
