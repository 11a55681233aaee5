//! What a client is told of the server when it opens a conversation, or asks.

use ringfence_entries::ProfileMode;
use serde_json::{Value, json};

use super::Gateway;
use crate::client::Context;
use crate::era;
use crate::era::{Era, SERVER_INFO_KEY, VERSIONS};
use crate::rpc::{Outcome, RpcError};

const INSTRUCTIONS: &str = "Runs code in isolated sandboxes. Pass the session_id of an answer to keep its state.";

const CODE_INSTRUCTIONS: &str = "Runs Python in an isolated sandbox, where MCP servers are there as async functions.";

/// Of the servers, in what clients are told at first.
const SHOWN_SERVERS: usize = 50;

struct About {
    capabilities: Value,
    server_info: Value,
    instructions: Option<Value>,
}

impl Gateway {
    /// Whoever has no list of tools must be told what there is to name.
    async fn code_instructions(&self) -> String {
        let Some(hosting) = self.servers() else { return CODE_INSTRUCTIONS.into() };
        let known = hosting.known_servers(&self.profile).await;
        let names: Vec<&str> = known.servers().iter().take(SHOWN_SERVERS).map(|server| server.name.as_str()).collect();
        if names.is_empty() {
            return CODE_INSTRUCTIONS.into();
        }
        format!("{CODE_INSTRUCTIONS} Servers: {}.", names.join(", "))
    }

    pub(super) async fn open(&self, params: &Value, context: &Context) -> Outcome {
        let invalid = |what: &str| RpcError::new(RpcError::INVALID_PARAMS, format!("initialize takes {what}"));
        let requested = params["protocolVersion"].as_str().ok_or_else(|| invalid("a `protocolVersion`"))?;
        if !params["capabilities"].is_object() {
            return Err(invalid("an object of `capabilities`"));
        }
        if !params["clientInfo"].is_object() {
            return Err(invalid("an object `clientInfo`"));
        }
        if let Some(client) = &context.client {
            client.introduce(params["capabilities"].clone(), era::negotiate(requested));
        }
        let About { capabilities, server_info, instructions } = self.about(Era::Legacy).await?;
        let mut result = json!({
            "protocolVersion": era::negotiate(requested),
            "capabilities": capabilities,
            "serverInfo": server_info,
        });
        if let Some(instructions) = instructions {
            result["instructions"] = instructions;
        }
        Ok(result)
    }

    pub(super) async fn describe(&self) -> Outcome {
        let About { capabilities, server_info, instructions } = self.about(Era::Modern).await?;
        let mut result = json!({"resultType": "complete", "supportedVersions": VERSIONS, "capabilities": capabilities});
        if let Some(instructions) = instructions {
            result["instructions"] = instructions;
        }
        result["ttlMs"] = 0.into();
        result["cacheScope"] = "private".into();
        result["_meta"] = json!({SERVER_INFO_KEY: server_info});
        Ok(result)
    }

    /// What is said of the server: of the one that is offered as itself, or of this one.
    async fn about(&self, era: Era) -> Result<About, RpcError> {
        let own = json!({"name": "ringfence", "version": env!("CARGO_PKG_VERSION")});
        let (hosting, sole) = (self.servers(), self.profile.sole_server());
        if let (Some(hosting), Some(server)) = (hosting, sole) {
            let Some(about) = hosting.about(server, era).await else {
                // What is asked of it later says why; that this server answers must not hang on that one.
                let instructions = format!("The server {server} is not there just now. Calls of its tools say why.");
                let capabilities = capabilities_of_any();
                return Ok(About { capabilities, server_info: own, instructions: Some(instructions.into()) });
            };
            let info = about.get("serverInfo").or_else(|| about["_meta"].get(SERVER_INFO_KEY)).cloned();
            return Ok(About {
                capabilities: about["capabilities"].clone(),
                server_info: info.unwrap_or(own),
                instructions: about.get("instructions").cloned(),
            });
        }
        let capabilities = if hosting.is_some_and(|hosting| !hosting.is_empty()) {
            capabilities_of_any()
        } else {
            json!({"tools": {}, "resources": {}, "prompts": {}})
        };
        let instructions = match self.profile.mode {
            ProfileMode::Code => Some(self.code_instructions().await.into()),
            ProfileMode::Direct => self.profile.builtin_tools.then(|| INSTRUCTIONS.into()),
        };
        Ok(About { capabilities, server_info: own, instructions })
    }
}

/// Servers come and go, and clients read this once: all that any of them may have.
fn capabilities_of_any() -> Value {
    json!({
        "tools": {"listChanged": true},
        "resources": {"subscribe": true, "listChanged": true},
        "prompts": {"listChanged": true},
        "completions": {},
        "logging": {},
    })
}
