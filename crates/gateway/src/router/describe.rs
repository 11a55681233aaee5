//! Describes this server to clients, in the results of `initialize` and `server/discover`.

use ringfence_entries::ProfileMode;
use ringfence_mcp::client::Context;
use ringfence_mcp::era::{self, Era, SERVER_INFO_KEY, VERSIONS};
use ringfence_mcp::rpc::{Outcome, RpcError};
use serde_json::{Value, json};

use super::Gateway;

const INSTRUCTIONS: &str =
    "Runs code in isolated sandboxes. If a result asks for it, pass its session_id to keep the state.";

const CODE_INSTRUCTIONS: &str =
    "Runs Python in an isolated sandbox, where the tools of MCP servers are async functions.";

/// Maximum number of servers in the instructions.
const MAX_SHOWN_SERVERS: usize = 50;

struct Description {
    capabilities: Value,
    server_info: Value,
    instructions: Option<Value>,
}

impl Gateway {
    /// Returns the instructions of code mode. They name the servers, because clients get no list of the servers' tools.
    async fn code_instructions(&self) -> String {
        let Some(hosting) = self.servers() else { return CODE_INSTRUCTIONS.into() };
        let known = hosting.known_servers(&self.profile).await;
        let names: Vec<&str> =
            known.servers().iter().take(MAX_SHOWN_SERVERS).map(|server| server.name.as_str()).collect();
        if names.is_empty() {
            return CODE_INSTRUCTIONS.into();
        }
        format!("{CODE_INSTRUCTIONS} Servers: {}.", names.join(", "))
    }

    pub(super) async fn initialize(&self, params: &Value, context: &Context) -> Outcome {
        let invalid = |field: &str| RpcError::new(RpcError::INVALID_PARAMS, format!("initialize needs {field}"));
        let requested = params["protocolVersion"].as_str().ok_or_else(|| invalid("a `protocolVersion`"))?;
        if !params["capabilities"].is_object() {
            return Err(invalid("an object `capabilities`"));
        }
        if !params["clientInfo"].is_object() {
            return Err(invalid("an object `clientInfo`"));
        }
        if let Some(client) = &context.client {
            client.initialize(params["capabilities"].clone(), era::negotiate(requested));
        }
        let Description { capabilities, server_info, instructions } = self.description(Era::Legacy).await?;
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

    pub(super) async fn discover(&self) -> Outcome {
        let Description { capabilities, server_info, instructions } = self.description(Era::Modern).await?;
        let mut result = json!({"resultType": "complete", "supportedVersions": VERSIONS, "capabilities": capabilities});
        if let Some(instructions) = instructions {
            result["instructions"] = instructions;
        }
        result["ttlMs"] = 0.into();
        result["cacheScope"] = "private".into();
        result["_meta"] = json!({SERVER_INFO_KEY: server_info});
        Ok(result)
    }

    /// Describes this server, or the single server of the profile.
    async fn description(&self, era: Era) -> Result<Description, RpcError> {
        let ringfence = json!({"name": "ringfence", "version": env!("CARGO_PKG_VERSION")});
        let (hosting, sole) = (self.servers(), self.profile.sole_server());
        if let (Some(hosting), Some(server)) = (hosting, sole) {
            let Some(about) = hosting.describe(server, era).await else {
                // The response must not depend on the state of the server. Later calls report why it is not connected.
                let instructions =
                    format!("The server {server} is not connected now. Calls of its tools report the reason.");
                let capabilities = capabilities_of_any();
                return Ok(Description {
                    capabilities,
                    server_info: ringfence,
                    instructions: Some(instructions.into()),
                });
            };
            let info = about.get("serverInfo").or_else(|| about["_meta"].get(SERVER_INFO_KEY)).cloned();
            return Ok(Description {
                capabilities: about["capabilities"].clone(),
                server_info: info.unwrap_or(ringfence),
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
        Ok(Description { capabilities, server_info: ringfence, instructions })
    }
}

/// Returns all capabilities that any server may have, because servers can be added and removed later, but clients read
/// the capabilities only once.
fn capabilities_of_any() -> Value {
    json!({
        "tools": {"listChanged": true},
        "resources": {"subscribe": true, "listChanged": true},
        "prompts": {"listChanged": true},
        "completions": {},
        "logging": {},
    })
}
