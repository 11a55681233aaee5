//! The MCP server proper: what every transport hands its requests to.

use std::sync::Arc;

use ringfence_runtime::audit::{Audit, AuditEvent};
use ringfence_runtime::session::{Failure, Kind, Principal, Sessions};
use serde_json::{Value, json};

use crate::arguments::Call;
use crate::client::Context;
use crate::era::{self, Era, SERVER_INFO_KEY, VERSIONS};
use crate::http::Clients;
use crate::rpc::{INVALID_PARAMS, Outcome, RESOURCE_NOT_FOUND, RpcError};
use crate::{failure, resource, tools};

const INSTRUCTIONS: &str = "Runs code in isolated sandboxes. Pass the session_id of an answer to keep its state.";

/// Where calls go.
#[derive(Clone)]
enum Backend {
    Ready(Sessions),
    /// The server answers, so that a client can be told why nothing runs.
    Down(Arc<str>),
}

/// Offers sandbox sessions as MCP tools. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Gateway {
    backend: Backend,
    tools: Arc<[Value]>,
    clients: Clients,
}

impl Gateway {
    pub fn new(sessions: Sessions) -> Self {
        Self::on(Backend::Ready(sessions))
    }

    /// A gateway that refuses every call, for a host on which no sandbox can be made.
    pub fn without_backend(reason: impl Into<Arc<str>>) -> Self {
        Self::on(Backend::Down(reason.into()))
    }

    fn on(backend: Backend) -> Self {
        let tools = tools::all().into_iter().map(|tool| json!(tool)).collect();
        Self { backend, tools, clients: Clients::default() }
    }

    /// Why no session could be started now, if so.
    pub fn health(&self) -> Result<(), String> {
        match &self.backend {
            Backend::Ready(sessions) => sessions.health(),
            Backend::Down(reason) => Err(reason.to_string()),
        }
    }

    /// Where what happens before a session is told of.
    pub(crate) fn audit(&self) -> Audit {
        match &self.backend {
            Backend::Ready(sessions) => sessions.audit().clone(),
            Backend::Down(_) => Audit::nowhere(),
        }
    }

    pub(crate) fn clients(&self) -> &Clients {
        &self.clients
    }

    pub(crate) fn with_profile(&self, _name: &str) -> Option<Self> {
        None
    }

    pub(crate) fn sessions(&self) -> Result<&Sessions, Failure> {
        match &self.backend {
            Backend::Ready(sessions) => Ok(sessions),
            Backend::Down(reason) => {
                Err(Failure::new(Kind::Connection, format!("the sandbox backend is down: {reason}"))
                    .suggest("`ringfence doctor` on the server's host says what is missing"))
            }
        }
    }

    /// What a tool takes.
    pub(crate) fn input_schema(&self, tool: &str) -> Option<Value> {
        let listed = self.tools.iter().find(|listed| listed["name"] == tool)?;
        Some(listed["inputSchema"].clone())
    }

    /// Hears what needs no answer.
    pub(crate) fn hear(&self, _principal: &Principal, _method: &str, _params: Value) {}

    /// Answers one request.
    pub(crate) async fn serve(&self, method: &str, params: Value, context: &Context) -> Outcome {
        match self.dispatch(method, params, context).await {
            Ok(mut result) => {
                era::dress(&mut result, method, context.era);
                Ok(result)
            }
            Err(mut error) => {
                if context.era == Era::Newer && error.code == RESOURCE_NOT_FOUND {
                    error.code = INVALID_PARAMS;
                }
                Err(error)
            }
        }
    }

    async fn dispatch(&self, method: &str, params: Value, context: &Context) -> Outcome {
        match (method, context.era) {
            ("initialize", Era::Older) => self.open(&params, context),
            ("server/discover", Era::Newer) => Ok(self.describe()),
            ("ping", Era::Older) => Ok(json!({})),
            ("tools/list", _) => Ok(json!({"tools": *self.tools})),
            ("tools/call", _) => self.call_tool(params, context).await,
            ("resources/list", _) => Ok(json!({"resources": []})),
            ("resources/templates/list", _) => Ok(json!({"resourceTemplates": [resource::template()]})),
            ("resources/read", _) => self.read_resource(&params, context).await,
            // There are no prompts; but clients ask, and what is answered is declared.
            ("prompts/list", _) => Ok(json!({"prompts": []})),
            ("prompts/get", _) => Err(RpcError::new(INVALID_PARAMS, "there is no such prompt")),
            ("completion/complete", _) => Ok(json!({"completion": {"values": []}})),
            _ => Err(RpcError::method_not_found(method)),
        }
    }

    fn open(&self, params: &Value, context: &Context) -> Outcome {
        let invalid = |what: &str| RpcError::new(INVALID_PARAMS, format!("initialize takes {what}"));
        let requested = params["protocolVersion"].as_str().ok_or_else(|| invalid("a `protocolVersion`"))?;
        if !params["capabilities"].is_object() {
            return Err(invalid("an object of `capabilities`"));
        }
        if !params["clientInfo"].is_object() {
            return Err(invalid("an object `clientInfo`"));
        }
        if let Some(client) = &context.client {
            client.introduce(params["capabilities"].clone());
        }
        Ok(json!({
            "protocolVersion": era::negotiate(requested),
            "capabilities": self.capabilities(),
            "serverInfo": server_info(),
            "instructions": INSTRUCTIONS,
        }))
    }

    fn describe(&self) -> Value {
        json!({
            "resultType": "complete",
            "supportedVersions": VERSIONS,
            "capabilities": self.capabilities(),
            "instructions": INSTRUCTIONS,
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {SERVER_INFO_KEY: server_info()},
        })
    }

    fn capabilities(&self) -> Value {
        json!({"tools": {}, "resources": {}, "prompts": {}})
    }

    async fn call_tool(&self, mut params: Value, context: &Context) -> Outcome {
        let token = params["_meta"].get("progressToken").cloned();
        let arguments = match params.get_mut("arguments").map(Value::take) {
            None | Some(Value::Null) => None,
            Some(Value::Object(arguments)) => Some(arguments),
            Some(_) => return Err(not_a_call()),
        };
        let Some(name) = params["name"].as_str() else { return Err(not_a_call()) };
        let call = Call::parse(name, arguments).map_err(|refusal| {
            self.audit().record(AuditEvent::refusal(&refusal).of(&context.principal, None));
            failure::render(refusal)
        })?;
        self.answer(call, token, context).await.map(|result| json!(result)).map_err(failure::render)
    }

    async fn read_resource(&self, params: &Value, context: &Context) -> Outcome {
        let uri =
            params["uri"].as_str().ok_or_else(|| RpcError::new(INVALID_PARAMS, "resources/read takes a `uri`"))?;
        let sessions = self.sessions().map_err(failure::render)?;
        let read = resource::read(sessions, &context.principal, uri).await;
        read.map(|contents| json!(contents)).map_err(failure::render)
    }
}

fn server_info() -> Value {
    json!({"name": "ringfence", "version": env!("CARGO_PKG_VERSION")})
}

fn not_a_call() -> RpcError {
    failure::render(
        Failure::new(Kind::Validation, "tools/call takes a `name` and an object of `arguments`")
            .suggest("tools/list names the tools and their arguments"),
    )
}
