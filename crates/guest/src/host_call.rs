//! Calls from code in a guest to the host: request and response.

use std::fmt;

use serde_json::Value;
use serde_json::value::RawValue;

/// Bytes of a JSON text, owned by whatever produced them.
pub type JsonBytes = Box<dyn AsRef<[u8]> + Send + Sync>;

/// The host's response to a call.
pub enum HostResponse {
    Result(JsonBytes),
    Error(Value),
}

impl HostResponse {
    pub fn result(value: &Value) -> Self {
        Self::Result(Box::new(value.to_string().into_bytes()))
    }
}

impl fmt::Debug for HostResponse {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Result(json) => write!(formatter, "Result({} bytes)", json.as_ref().as_ref().len()),
            Self::Error(error) => write!(formatter, "Error({error})"),
        }
    }
}

/// A call as the kernel sent it.
#[derive(Debug)]
pub struct HostRequest {
    pub cell: u64,
    pub number: u64,
    pub method: String,
    pub params: Box<RawValue>,
}

#[cfg(test)]
impl PartialEq for HostRequest {
    fn eq(&self, other: &Self) -> bool {
        let key =
            |request: &Self| (request.cell, request.number, request.method.clone(), request.params.get().to_owned());
        key(self) == key(other)
    }
}
