//! What code keeps for later sessions of its caller: functions, and values.

use ringfence_guest::HostResponse;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::failure::{CallError, ErrorKind};
use super::host_calls::{CodeRun, result};
use super::requests::{MemoryParams, SaveMemoryParams, SaveToolParams, SavedToolParams, read};

type Answered = Result<HostResponse, CallError>;

impl CodeRun {
    fn owner(&self) -> &str {
        self.caller.principal.name()
    }

    pub(super) async fn save_tool(&self, params: &str) -> Answered {
        let SaveToolParams { name, source, doc } = read(params)?;
        let (store, language) = (self.mode.store(), self.target.language);
        let version = store.save_tool(self.owner(), language, &name, source, &doc).await?;
        self.mode.0.prefaces.forget(&self.caller.principal, language);
        Ok(result(&json!({"name": name, "version": version})))
    }

    pub(super) async fn list_saved(&self) -> Answered {
        let tools = self.mode.store().saved_tools(self.owner(), self.target.language).await?;
        Ok(result(&json!({"tools": tools})))
    }

    pub(super) async fn load_saved(&self, params: &str) -> Answered {
        let SavedToolParams { name, version } = read(params)?;
        let found = self.mode.store().saved_tool(self.owner(), self.target.language, &name, version).await?;
        let found = found.ok_or_else(|| CallError::new(ErrorKind::NotFound, "no such tool has been saved"))?;
        Ok(result(&json!(found)))
    }

    pub(super) async fn delete_saved(&self, params: &str) -> Answered {
        let SavedToolParams { name, .. } = read(params)?;
        let language = self.target.language;
        let deleted = self.mode.store().delete_saved_tool(self.owner(), language, &name).await?;
        self.mode.0.prefaces.forget(&self.caller.principal, language);
        Ok(result(&json!({"deleted": deleted})))
    }

    pub(super) async fn save_memory(&self, params: &str) -> Answered {
        let SaveMemoryParams { key, value, metadata } = read(params)?;
        let value = String::from(Box::<str>::from(value));
        let saved = self.mode.store().save_memory(self.owner(), &key, value, metadata).await?;
        Ok(result(&json!({"key": key, "created": saved.created, "updated": saved.updated})))
    }

    pub(super) async fn load_memory(&self, params: &str) -> Answered {
        let MemoryParams { key } = read(params)?;
        let Some(memory) = self.mode.store().load_memory(self.owner(), &key).await? else {
            return Ok(result(&json!({"key": key, "found": false})));
        };
        // As it was saved, without being read.
        let value =
            RawValue::from_string(memory.value).map_err(|_| CallError::new(ErrorKind::Internal, "it is broken"))?;
        let text = format!(
            r#"{{"key":{},"found":true,"value":{},"metadata":{}}}"#,
            json!(key),
            value.get(),
            Value::Object(memory.metadata)
        );
        Ok(HostResponse::Result(Box::new(text.into_bytes())))
    }

    pub(super) async fn delete_memory(&self, params: &str) -> Answered {
        let MemoryParams { key } = read(params)?;
        let deleted = self.mode.store().delete_memory(self.owner(), &key).await?;
        Ok(result(&json!({"deleted": deleted})))
    }

    pub(super) async fn list_memories(&self) -> Answered {
        Ok(result(&json!({"memories": self.mode.store().memories(self.owner()).await?})))
    }

    pub(super) async fn memory_info(&self, params: &str) -> Answered {
        let MemoryParams { key } = read(params)?;
        let Some(info) = self.mode.store().memory_info(self.owner(), &key).await? else {
            return Ok(result(&json!({"key": key, "found": false})));
        };
        let mut answer = json!(info);
        answer["found"] = true.into();
        Ok(result(&answer))
    }
}
