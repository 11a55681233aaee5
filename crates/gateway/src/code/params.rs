//! The parameters of requests from code.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::call_error::{CallError, ErrorKind};
use crate::tools::DEFAULT_FOUND_TOOLS;

#[derive(Deserialize)]
pub(super) struct ToolCallParams<'a> {
    pub(super) server: String,
    pub(super) tool: String,
    #[serde(borrow)]
    pub(super) arguments: Option<&'a RawValue>,
    pub(super) timeout: Option<f64>,
}

#[derive(Deserialize)]
pub(super) struct ServerParams {
    pub(super) server: String,
}

#[derive(Deserialize)]
pub(super) struct SearchParams {
    pub(super) query: String,
    #[serde(default = "default_limit")]
    pub(super) limit: usize,
    #[serde(default)]
    pub(super) detail: Detail,
}

fn default_limit() -> usize {
    DEFAULT_FOUND_TOOLS
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Detail {
    #[default]
    Summary,
    Full,
}

#[derive(Deserialize)]
pub(super) struct SaveToolParams {
    pub(super) name: String,
    pub(super) source: String,
    #[serde(default)]
    pub(super) doc: String,
}

#[derive(Deserialize)]
pub(super) struct SavedToolParams {
    pub(super) name: String,
    pub(super) version: Option<u64>,
}

#[derive(Deserialize)]
pub(super) struct SaveMemoryParams {
    pub(super) key: String,
    /// The JSON as the guest wrote it, so that numbers are not rounded.
    pub(super) value: Box<RawValue>,
    pub(super) metadata: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
pub(super) struct MemoryParams {
    pub(super) key: String,
}

pub(super) fn parse<T: DeserializeOwned>(params: &str) -> Result<T, CallError> {
    serde_json::from_str(params).map_err(|error| invalid(&error))
}

pub(super) fn invalid(error: &serde_json::Error) -> CallError {
    CallError::new(ErrorKind::Invalid, format!("invalid arguments: {error}"))
}
