//! The MCP server proper: what every transport hands its requests to.

use std::sync::Arc;

use axum::http::request::Parts;
use ringfence_runtime::audit::{Audit, AuditEvent};
use ringfence_runtime::session::{Failure, Kind, Principal, Sessions};
use rmcp::model::{
    CallToolRequestMethod, CallToolRequestParams, CallToolResponse, ConstString, CustomRequest, CustomResult,
    ErrorCode, GetPromptRequestParams, GetPromptResponse, Implementation, ListResourceTemplatesResult, ListToolsResult,
    PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};

use crate::arguments::Call;
use crate::{failure, resource, tools};

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

    /// Where what happens before a session is told of.
    pub(crate) fn audit(&self) -> Audit {
        match &self.backend {
            Backend::Ready(sessions) => sessions.audit().clone(),
            Backend::Down(_) => Audit::nowhere(),
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
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().enable_prompts();
        ServerConfig::new(capabilities.build())
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

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(vec![resource::template()]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let principal = principal(&context).map_err(failure::render)?;
        let sessions = self.sessions().map_err(failure::render)?;
        resource::read(sessions, &principal, &request.uri).await.map(Into::into).map_err(failure::render)
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
        let call = Call::parse(&request.name, request.arguments).map_err(|refusal| {
            self.audit().record(AuditEvent::refusal(&refusal).of(&principal, None));
            failure::render(refusal)
        })?;
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
