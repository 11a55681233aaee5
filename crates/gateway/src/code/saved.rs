//! Tools (functions) and values that code saves for later sessions of its caller.

use ringfence_guest::HostResponse;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::call_error::{CallError, ErrorKind};
use super::host_calls::{CodeRun, result};
use super::params::{MemoryParams, SaveMemoryParams, SaveToolParams, SavedToolParams, parse};

type CallResult = Result<HostResponse, CallError>;

impl CodeRun {
    fn owner(&self) -> &str {
        self.caller.principal.name()
    }

    pub(super) async fn save_tool(&self, params: &str) -> CallResult {
        let SaveToolParams { name, source, doc } = parse(params)?;
        let (store, language) = (self.mode.store(), self.target.language);
        let version = store.save_tool(self.owner(), language, &name, source, &doc).await?;
        self.mode.0.saved_tools.invalidate(&self.caller.principal, language);
        Ok(result(&json!({"name": name, "version": version})))
    }

    pub(super) async fn list_saved(&self) -> CallResult {
        let tools = self.mode.store().saved_tools(self.owner(), self.target.language).await?;
        Ok(result(&json!({"tools": tools})))
    }

    pub(super) async fn load_saved(&self, params: &str) -> CallResult {
        let SavedToolParams { name, version } = parse(params)?;
        let found = self.mode.store().saved_tool(self.owner(), self.target.language, &name, version).await?;
        let found =
            found.ok_or_else(|| CallError::new(ErrorKind::NotFound, "no saved tool has this name and version"))?;
        Ok(result(&json!(found)))
    }

    pub(super) async fn delete_saved(&self, params: &str) -> CallResult {
        let SavedToolParams { name, .. } = parse(params)?;
        let language = self.target.language;
        let deleted = self.mode.store().delete_saved_tool(self.owner(), language, &name).await?;
        self.mode.0.saved_tools.invalidate(&self.caller.principal, language);
        Ok(result(&json!({"deleted": deleted})))
    }

    pub(super) async fn save_memory(&self, params: &str) -> CallResult {
        let SaveMemoryParams { key, value, metadata } = parse(params)?;
        let value = String::from(Box::<str>::from(value));
        let saved = self.mode.store().save_memory(self.owner(), &key, value, metadata).await?;
        Ok(result(&json!({"key": key, "created": saved.created, "updated": saved.updated})))
    }

    pub(super) async fn load_memory(&self, params: &str) -> CallResult {
        let MemoryParams { key } = parse(params)?;
        let Some(memory) = self.mode.store().load_memory(self.owner(), &key).await? else {
            return Ok(result(&json!({"key": key, "found": false})));
        };
        // Sent as it was saved, so that numbers are not rounded.
        let value = RawValue::from_string(memory.value)
            .map_err(|_| CallError::new(ErrorKind::Internal, format!("the saved value of `{key}` is not JSON")))?;
        let text = format!(
            r#"{{"key":{},"found":true,"value":{},"metadata":{}}}"#,
            json!(key),
            value.get(),
            Value::Object(memory.metadata)
        );
        Ok(HostResponse::Result(Box::new(text.into_bytes())))
    }

    pub(super) async fn delete_memory(&self, params: &str) -> CallResult {
        let MemoryParams { key } = parse(params)?;
        let deleted = self.mode.store().delete_memory(self.owner(), &key).await?;
        Ok(result(&json!({"deleted": deleted})))
    }

    pub(super) async fn list_memories(&self) -> CallResult {
        Ok(result(&json!({"memories": self.mode.store().memories(self.owner()).await?})))
    }

    pub(super) async fn memory_info(&self, params: &str) -> CallResult {
        let MemoryParams { key } = parse(params)?;
        let Some(info) = self.mode.store().memory_info(self.owner(), &key).await? else {
            return Ok(result(&json!({"key": key, "found": false})));
        };
        let mut response = json!(info);
        response["found"] = true.into();
        Ok(result(&response))
    }
}
