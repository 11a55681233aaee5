//! The MCP server proper: what every transport hands its requests to.

use std::sync::Arc;

use axum::http::request::Parts;
use ringfence_runtime::session::{Failure, Kind, Principal, Sessions};
use rmcp::model::{
    CallToolRequestMethod, CallToolRequestParams, CallToolResponse, ConstString, CustomRequest, CustomResult,
    ErrorCode, GetPromptRequestParams, GetPromptResponse, Implementation, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};

use crate::arguments::Call;
use crate::{failure, tools};

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
    tools: Arc<[Tool]>,
}

impl Gateway {
    pub fn new(sessions: Sessions) -> Self {
        Self { backend: Backend::Ready(sessions), tools: tools::all().into() }
    }

    /// A gateway that refuses every call, for a host on which no sandbox can be made.
    pub fn without_backend(reason: impl Into<Arc<str>>) -> Self {
        Self { backend: Backend::Down(reason.into()), tools: tools::all().into() }
    }

    /// Why no session could be started now, if so.
    pub fn health(&self) -> Result<(), String> {
        match &self.backend {
            Backend::Ready(sessions) => sessions.health(),
            Backend::Down(reason) => Err(reason.to_string()),
        }
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
}

impl ServerHandler for Gateway {
    fn get_info(&self) -> ServerConfig {
        // There are no prompts; but `prompts/list` is answered, with none, and what is answered must be declared.
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_prompts().build())
            .with_server_info(Implementation::new("ringfence", env!("CARGO_PKG_VERSION")))
            .with_instructions("Runs code in isolated sandboxes. Pass the session_id of an answer to keep its state.")
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.to_vec()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let principal = principal(&context).map_err(failure::render)?;
        let call = Call::parse(&request.name, request.arguments).map_err(failure::render)?;
        self.answer(principal, call, context).await.map(Into::into).map_err(failure::render)
    }

    async fn get_prompt(
        &self,
        _request: GetPromptRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        Err(ErrorData::invalid_params("there is no such prompt", None))
    }

    /// Takes what fits no request of the protocol, such as a `tools/call` whose arguments are a list.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        if request.method == CallToolRequestMethod::VALUE {
            return Err(failure::render(
                Failure::new(Kind::Validation, "tools/call takes a `name` and an object of `arguments`")
                    .suggest("tools/list names the tools and their arguments"),
            ));
        }
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, request.method, None))
    }
}

/// Whoever the transport says is asking. Over HTTP its absence is our mistake and no reason to trust.
fn principal(context: &RequestContext<RoleServer>) -> Result<Principal, Failure> {
    match context.extensions.get::<Parts>() {
        None => Ok(Principal::local()),
        Some(parts) => parts
            .extensions
            .get::<Principal>()
            .cloned()
            .ok_or_else(|| Failure::new(Kind::Internal, "an HTTP request came without a principal")),
    }
}
