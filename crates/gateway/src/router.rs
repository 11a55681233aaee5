//! Routes MCP requests: to the built-in tools, to code mode, or to the servers behind this one.

mod builtin_tools;
mod call_session;
mod describe;
mod questions;
mod resources;
mod running_calls;
mod service;
#[cfg(test)]
mod stdio_tests;
mod subscriptions;
mod tool_calls;

use std::sync::Arc;
use std::time::Duration;

use ringfence_config::{CodeSettings, Scope};
use ringfence_core::{Failure, Kind, SessionId};
use ringfence_entries::{Profile, ProfileMode};
use ringfence_mcp::client::Context;
use ringfence_mcp::clients::Clients;
use ringfence_mcp::era::Era;
use ringfence_mcp::failure;
use ringfence_mcp::rpc::{Outcome, RpcError};
use ringfence_session::{SessionOptions, Sessions};
use ringfence_store::{Audit, PinKind};
use serde_json::{Value, json};

use crate::authorize::{Action, Authorizer, Object, Subject};
use crate::catalogue::{Route, View};
use crate::code::{Caller, CodeMode};
use crate::default_sessions::DefaultSessions;
use crate::hosting::Hosting;
use crate::relay::{Call, Deadline};
use crate::{builtin_resources, tools};
use running_calls::RunningCalls;

/// The sessions behind the gateway.
#[derive(Clone)]
enum Backend {
    Ready(Sessions),
    /// No sandbox can be created, for this reason. The server still responds, so that clients learn it.
    Down(Arc<str>),
}

/// A built-in tool, with its entry in `tools/list`.
#[derive(Clone)]
struct BuiltinTool {
    name: Arc<str>,
    listed: Value,
}

impl BuiltinTool {
    fn new(listed: Value) -> Self {
        Self { name: listed["name"].as_str().unwrap_or_default().into(), listed }
    }
}

/// Offers sandbox sessions and the tools of other servers over MCP. Clones share their state.
#[derive(Clone)]
pub struct Gateway {
    backend: Backend,
    tools: Arc<[BuiltinTool]>,
    /// The tools of code mode, which are also the last ones of `tools`.
    code_tools: Arc<[BuiltinTool]>,
    code: Option<CodeMode>,
    clients: Clients,
    default_sessions: DefaultSessions,
    hosting: Option<Hosting>,
    profile: Arc<Profile>,
    /// The key of the cached view of the profile, and of default sessions.
    profile_name: Arc<str>,
    authorizer: Authorizer,
    running_calls: Arc<RunningCalls>,
    request_timeout: Duration,
}

const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(150);

impl Gateway {
    pub fn new(sessions: Sessions) -> Self {
        Self::with_backend(Backend::Ready(sessions))
    }

    /// Creates a gateway that refuses every call, for a host on which no sandbox can be created.
    pub fn without_backend(reason: impl Into<Arc<str>>) -> Self {
        Self::with_backend(Backend::Down(reason.into()))
    }

    fn with_backend(backend: Backend) -> Self {
        let (choice, audit, asks) = match &backend {
            Backend::Ready(sessions) => (sessions.options(), sessions.audit().clone(), sessions.network().ask),
            Backend::Down(_) => (SessionOptions::default(), Audit::disabled(), false),
        };
        let tools = tools::session_tools(&choice).into_iter().map(BuiltinTool::new).collect();
        Self {
            backend,
            tools,
            code_tools: Arc::new([]),
            code: None,
            clients: Clients::default(),
            default_sessions: DefaultSessions::default(),
            hosting: None,
            profile: Arc::default(),
            profile_name: "".into(),
            authorizer: Authorizer::new(audit).with_tokens_may_allow(asks),
            running_calls: Arc::default(),
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
        }
    }

    /// Sets the maximum duration of a request.
    #[must_use]
    pub fn with_request_timeout(self, request_timeout: Duration) -> Self {
        Self { request_timeout, ..self }
    }

    /// Offers the tools of servers too.
    #[must_use]
    pub fn with_hosting(self, hosting: Hosting) -> Self {
        let authorizer = self.authorizer.with_pins(Arc::clone(hosting.pins()));
        let default_sessions = DefaultSessions::in_store(hosting.store().clone());
        Self { clients: hosting.clients().clone(), default_sessions, hosting: Some(hosting), authorizer, ..self }
    }

    /// Lets code in the sandboxes call the servers.
    #[must_use]
    pub fn with_code(self, settings: CodeSettings) -> Self {
        let (Some(hosting), Backend::Ready(sessions)) = (&self.hosting, &self.backend) else { return self };
        let code = CodeMode::new(hosting.clone(), sessions.clone(), settings);
        let code_tools: Arc<[BuiltinTool]> =
            tools::code_mode_tools(&sessions.options().network).into_iter().map(BuiltinTool::new).collect();
        let tools = self.tools.iter().chain(&*code_tools).cloned().collect();
        Self { tools, code_tools, code: Some(code), ..self }
    }

    /// Restricts all principals but the operator to a scope.
    #[must_use]
    pub fn with_scope(self, scope: Arc<Scope>) -> Self {
        Self { authorizer: self.authorizer.with_scope(scope), ..self }
    }

    /// Returns the gateway of a profile, or None if there is no such profile.
    pub fn with_profile(&self, name: &str) -> Option<Self> {
        let profile = self.hosting.as_ref()?.profile(name).filter(|_| self.authorizer.allows_profile(name))?;
        let authorizer = self.authorizer.clone().with_profile(Arc::clone(&profile));
        Some(Self { profile, profile_name: name.into(), authorizer, ..self.clone() })
    }

    pub(crate) fn authorizer(&self) -> &Authorizer {
        &self.authorizer
    }

    /// The caller of code mode.
    fn caller(&self, context: &Context) -> Caller {
        Caller {
            principal: context.principal.clone(),
            profile: Arc::clone(&self.profile),
            authorizer: self.authorizer.clone(),
            questions: None,
        }
    }

    /// The servers, if callers may use them.
    fn servers(&self) -> Option<&Hosting> {
        self.hosting.as_ref().filter(|_| self.authorizer.allows_action(Action::UseServers))
    }

    pub(crate) fn hosting(&self) -> Option<&Hosting> {
        self.hosting.as_ref()
    }

    /// The default sessions of connections with a name.
    pub async fn sessions_of_named_connections(&self) -> Vec<SessionId> {
        self.default_sessions.of_named_connections().await
    }

    /// Waits a limited time for tool calls of code that are in progress.
    pub async fn finish_calls(&self) {
        if let Some(code) = &self.code {
            code.finish_calls().await;
        }
    }

    /// Whether sessions can be started, and the reason if not.
    pub fn health(&self) -> Result<(), String> {
        match &self.backend {
            Backend::Ready(sessions) => sessions.health(),
            Backend::Down(reason) => Err(reason.to_string()),
        }
    }

    /// Like [`Self::health`], but includes the failure of the last sandbox launch.
    pub(crate) fn backend_state(&self) -> Result<(), String> {
        self.health()?;
        match &self.backend {
            Backend::Ready(sessions) => sessions.sandbox_failure().map_or(Ok(()), Err),
            Backend::Down(_) => Ok(()),
        }
    }

    /// Whether sandboxes can be created and state can be written. A part that failed is tried again.
    pub(crate) async fn check_health(&self) -> Result<(), String> {
        match &self.backend {
            Backend::Ready(sessions) => sessions.check_health().await,
            Backend::Down(_) => self.health(),
        }
    }

    pub(crate) fn audit(&self) -> Audit {
        match &self.backend {
            Backend::Ready(sessions) => sessions.audit().clone(),
            Backend::Down(_) => Audit::disabled(),
        }
    }

    /// The tools, prompts and resources of the servers; None in code mode, where only code calls them.
    fn view(&self) -> Option<Arc<View>> {
        if self.profile.mode == ProfileMode::Code {
            return None;
        }
        // Includes tools that the scope hides: no tool of a server may have the name of a built-in one.
        let reserved = self.builtin_tools().iter().map(|tool| &*tool.name).collect();
        Some(self.servers()?.view(&self.profile_name, &self.profile, &reserved))
    }

    fn builtin_tools(&self) -> &[BuiltinTool] {
        match self.profile.mode {
            ProfileMode::Code => &self.code_tools,
            ProfileMode::Direct if self.profile.builtin_tools => &self.tools,
            ProfileMode::Direct => &[],
        }
    }

    /// The built-in tools that the scope allows.
    fn allowed_tools(&self) -> impl Iterator<Item = &Value> {
        let is_allowed =
            |tool: &&BuiltinTool| self.authorizer.allows_action(tools::action(&tool.name).unwrap_or(Action::Other));
        self.builtin_tools().iter().filter(is_allowed).map(|tool| &tool.listed)
    }

    fn has_builtin_tools(&self) -> bool {
        self.profile.builtin_tools || self.profile.mode == ProfileMode::Code
    }

    fn is_builtin_tool(&self, name: &str) -> bool {
        self.builtin_tools().iter().any(|tool| *tool.name == *name)
    }

    pub(crate) fn sessions(&self) -> Result<&Sessions, Failure> {
        match &self.backend {
            Backend::Ready(sessions) => Ok(sessions),
            Backend::Down(reason) => {
                Err(Failure::new(Kind::Connection, format!("the sandbox backend is down: {reason}"))
                    .hint("run `ringfence doctor` on the host of the server"))
            }
        }
    }

    async fn dispatch(&self, method: &str, params: Value, context: &Context) -> Outcome {
        match (method, context.era) {
            ("initialize", Era::Legacy) => self.initialize(&params, context).await,
            ("server/discover", Era::Modern) => self.discover().await,
            ("ping", Era::Legacy) => Ok(json!({})),
            ("tools/list" | "prompts/list" | "resources/list" | "resources/templates/list", _) => {
                Ok(self.list(method).await)
            }
            ("resources/read", _) => self.read_resource(params, context).await,
            ("prompts/get", _) => self.get_prompt(params, context).await,
            ("completion/complete", _) => self.complete(params, context).await,
            ("resources/subscribe" | "resources/unsubscribe", Era::Legacy) => {
                self.subscribe(method, params, context).await
            }
            ("logging/setLevel", Era::Legacy) => self.set_log_level(params, context).await,
            ("subscriptions/listen", Era::Modern) => self.listen(&params, context).await,
            // A profile with a single server offers all its methods.
            _ => match (self.servers(), self.profile.sole_server()) {
                (Some(hosting), Some(server)) => {
                    let route = server_route(hosting, server, String::new());
                    self.relay(hosting, (None, &route), method, params, self.deadline(), context).await
                }
                _ => Err(RpcError::method_not_found(method)),
            },
        }
    }

    /// Lists the built-in items and those of the servers.
    async fn list(&self, method: &str) -> Value {
        if let Some(hosting) = self.servers() {
            hosting.wait_for_first_starts().await;
        }
        let view = self.view();
        let of_servers = |list: fn(&View) -> &Vec<Value>| view.iter().flat_map(move |view| list(view)).cloned();
        match method {
            "tools/list" => {
                let tools: Vec<Value> = self.allowed_tools().cloned().chain(of_servers(|view| &view.tools)).collect();
                json!({"tools": tools})
            }
            // There are no built-in prompts, but the capability is declared for those of the servers.
            "prompts/list" => json!({"prompts": of_servers(|view| &view.prompts).collect::<Vec<_>>()}),
            "resources/list" => {
                let is_offered = self.has_builtin_tools() && self.authorizer.allows_action(Action::RunCode);
                let builtin = self.code.as_ref().filter(|_| is_offered).map(|_| builtin_resources::capabilities());
                let resources: Vec<Value> = builtin.into_iter().chain(of_servers(|view| &view.resources)).collect();
                json!({"resources": resources})
            }
            _ => {
                let builtin = builtin_resources::templates(|action| {
                    self.has_builtin_tools() && self.authorizer.allows_action(action)
                });
                let templates: Vec<Value> = builtin.into_iter().chain(of_servers(|view| &view.templates)).collect();
                json!({"resourceTemplates": templates})
            }
        }
    }

    /// The deadline of a call that begins now.
    fn deadline(&self) -> Deadline {
        Deadline::after(self.request_timeout)
    }

    /// Relays a request to a server. Without a kind, the request uses no item.
    async fn relay(
        &self,
        hosting: &Hosting,
        (item, route): (Option<PinKind>, &Route),
        method: &str,
        params: Value,
        deadline: Deadline,
        context: &Context,
    ) -> Outcome {
        let (authorizer, subject) = (&self.authorizer, Subject::principal(&context.principal));
        hosting.relay().call(Call { authorizer, subject, context, item, route, method, params, deadline }).await
    }

    fn authorize(&self, action: Action, context: &Context) -> Result<(), RpcError> {
        let subject = Subject::principal(&context.principal);
        self.authorizer.authorize(subject, action, Object::Endpoint).map_err(failure::render)
    }

    /// Records and renders a refusal.
    fn refuse(&self, context: &Context, refusal: Failure) -> RpcError {
        failure::render(self.authorizer.refuse(Subject::principal(&context.principal), refusal))
    }
}

fn server_route(hosting: &Hosting, server: &str, name: String) -> Route {
    Route { server: server.to_owned(), uuid: hosting.uuid(server), name }
}

fn unknown_resource(uri: &str) -> RpcError {
    RpcError::new(RpcError::RESOURCE_NOT_FOUND, "unknown resource").with_data(json!({"uri": uri}))
}
