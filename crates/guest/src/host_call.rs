//! What code in a guest asks of the host, and what it gets back.

use std::fmt;

use serde_json::Value;
use serde_json::value::RawValue;

/// JSON that lives as long as it is needed.
pub type Json = Box<dyn AsRef<[u8]> + Send + Sync>;

/// What a call is answered with.
pub enum HostAnswer {
    Result(Json),
    Error(Value),
}

impl HostAnswer {
    pub fn result(value: &Value) -> Self {
        Self::Result(Box::new(value.to_string().into_bytes()))
    }
}

impl fmt::Debug for HostAnswer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Result(json) => write!(formatter, "Result({} bytes)", json.as_ref().as_ref().len()),
            Self::Error(error) => write!(formatter, "Error({error})"),
        }
    }
}

/// A call as the kernel put it.
#[derive(Debug)]
pub struct Request {
    pub cell: u64,
    pub number: u64,
    pub method: String,
    pub params: Box<RawValue>,
}

#[cfg(test)]
impl PartialEq for Request {
    fn eq(&self, other: &Self) -> bool {
        let key = |it: &Self| (it.cell, it.number, it.method.clone(), it.params.get().to_owned());
        key(self) == key(other)
    }
}
