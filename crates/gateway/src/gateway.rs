//! The MCP server proper: what every transport hands its requests to.

mod about;
mod resources;
mod subscriptions;
mod tool_calls;

use std::sync::Arc;
use std::time::Duration;

use ringfence_config::CodeSettings;
use ringfence_config::Scope;
use ringfence_core::AuditEvent;
use ringfence_core::{Failure, Kind, Principal};
use ringfence_entries::{Profile, ProfileMode};
use ringfence_session::{Choice, Sessions};
use ringfence_store::Audit;
use serde_json::{Value, json};

use crate::client::Context;
use crate::code::{Caller, CodeMode};
use crate::era;
use crate::era::Era;
use crate::hosting::{Hosting, View, Within};
use crate::http::Clients;
use crate::policy::{Action, Policy};
use crate::rpc::{Outcome, RpcError};
use crate::{failure, resource, tools};

/// Where calls go.
#[derive(Clone)]
enum Backend {
    Ready(Sessions),
    /// The server answers, so that a client can be told why nothing runs.
    Down(Arc<str>),
}

/// A tool of our own, and how it is listed.
#[derive(Clone)]
struct OwnTool {
    name: Arc<str>,
    listed: Value,
}

impl OwnTool {
    fn new(listed: Value) -> Self {
        Self { name: listed["name"].as_str().unwrap_or_default().into(), listed }
    }
}

/// Offers sandbox sessions as MCP tools. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Gateway {
    backend: Backend,
    tools: Arc<[OwnTool]>,
    /// Those of code mode, which are also the last of all.
    code_tools: Arc<[OwnTool]>,
    code: Option<CodeMode>,
    clients: Clients,
    hosting: Option<Hosting>,
    profile: Arc<Profile>,
    /// By which what the profile offers is remembered.
    profile_name: Arc<str>,
    policy: Policy,
    /// How long a call may take in all.
    patience: Duration,
}

/// Where nothing else is said.
const PATIENCE: Duration = Duration::from_secs(150);

impl Gateway {
    pub fn new(sessions: Sessions) -> Self {
        Self::on(Backend::Ready(sessions))
    }

    /// A gateway that refuses every call, for a host on which no sandbox can be made.
    pub fn without_backend(reason: impl Into<Arc<str>>) -> Self {
        Self::on(Backend::Down(reason.into()))
    }

    fn on(backend: Backend) -> Self {
        let choice = match &backend {
            Backend::Ready(sessions) => sessions.choice(),
            Backend::Down(_) => Choice::default(),
        };
        let tools = tools::all(&choice).into_iter().map(|tool| OwnTool::new(json!(tool))).collect();
        let (clients, profile) = (Clients::default(), Arc::default());
        Self {
            backend,
            tools,
            code_tools: Arc::new([]),
            code: None,
            clients,
            hosting: None,
            profile,
            profile_name: "".into(),
            policy: Policy::default(),
            patience: PATIENCE,
        }
    }

    /// Answers no call later than so.
    #[must_use]
    pub fn with_request_timeout(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Offers servers beside the sandboxes.
    #[must_use]
    pub fn with_hosting(self, hosting: Hosting) -> Self {
        Self { clients: hosting.clients().clone(), hosting: Some(hosting), ..self }
    }

    /// Lets code in the sandboxes call the servers.
    #[must_use]
    pub fn with_code(self, settings: CodeSettings) -> Self {
        let (Some(hosting), Backend::Ready(sessions)) = (&self.hosting, &self.backend) else { return self };
        let code = CodeMode::new(hosting.clone(), sessions.clone(), settings);
        let code_tools: Arc<[OwnTool]> = tools::code_mode_tools().into_iter().map(OwnTool::new).collect();
        let tools = self.tools.iter().chain(&*code_tools).cloned().collect();
        Self { tools, code_tools, code: Some(code), ..self }
    }

    /// Allows what a scope allows, and nothing else.
    #[must_use]
    pub fn within(self, scope: Arc<Scope>) -> Self {
        Self { policy: Policy::of(scope), ..self }
    }

    /// Offers a profile where none is asked for.
    pub fn offering(self, profile: &str) -> Option<Self> {
        self.with_profile(profile)
    }

    pub(crate) fn code_mode(&self) -> Option<&CodeMode> {
        self.code.as_ref()
    }

    /// Who calls, and what is offered here.
    pub(crate) fn caller(&self, context: &Context) -> Caller {
        let (profile, profile_name) = (Arc::clone(&self.profile), Arc::clone(&self.profile_name));
        Caller { principal: context.principal.clone(), profile, profile_name, policy: self.policy.clone() }
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The servers, where callers may use them.
    fn servers(&self) -> Option<&Hosting> {
        self.hosting.as_ref().filter(|_| self.policy.allows(Action::UseServers))
    }

    /// Whether somebody may see a server.
    pub(crate) fn shows_server(&self, principal: &Principal, name: &str, uuid: &str) -> bool {
        !self.policy.is_scoped() || principal.is_operator() || self.profile.has_server(name, uuid)
    }

    /// The same of one of its tools.
    pub(crate) fn shows_tool_of(&self, principal: &Principal, server: &str, tool: &str) -> bool {
        !self.policy.is_scoped() || principal.is_operator() || self.profile.has_tool(server, tool)
    }

    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// What a call that begins now has.
    fn time(&self) -> Within {
        Within::from_now(self.patience)
    }

    /// Waits a little for what code has asked.
    pub async fn end(&self) {
        if let Some(code) = &self.code {
            code.end().await;
        }
    }

    /// Why no session could be started now, if so.
    pub fn health(&self) -> Result<(), String> {
        match &self.backend {
            Backend::Ready(sessions) => sessions.health(),
            Backend::Down(reason) => Err(reason.to_string()),
        }
    }

    /// Why no session can be started, or the last sandbox could not be made, if so.
    pub(crate) fn backend_state(&self) -> Result<(), String> {
        self.health()?;
        match &self.backend {
            Backend::Ready(sessions) => sessions.trouble().map_or(Ok(()), Err),
            Backend::Down(_) => Ok(()),
        }
    }

    /// Whether sandboxes can be made and what happens be written down: tried again where it failed.
    pub(crate) async fn check_health(&self) -> Result<(), String> {
        match &self.backend {
            Backend::Ready(sessions) => sessions.check_health().await,
            Backend::Down(_) => self.health(),
        }
    }

    /// Where what happens before a session is told of.
    pub(crate) fn audit(&self) -> Audit {
        match &self.backend {
            Backend::Ready(sessions) => sessions.audit().clone(),
            Backend::Down(_) => Audit::disabled(),
        }
    }

    pub(crate) fn clients(&self) -> &Clients {
        &self.clients
    }

    /// The same, offering what a profile says.
    pub(crate) fn with_profile(&self, name: &str) -> Option<Self> {
        let profile = self.hosting.as_ref()?.profile(name).filter(|_| self.policy.allows_profile(name))?;
        Some(Self { profile, profile_name: name.into(), ..self.clone() })
    }

    /// Whether it stands for one server, and so answers as servers do.
    pub(crate) fn is_sole(&self) -> bool {
        self.profile.sole_server().is_some()
    }

    pub(crate) fn hosting(&self) -> Option<&Hosting> {
        self.hosting.as_ref()
    }

    /// What servers add to what is offered; nothing where code calls them.
    fn view(&self) -> Option<Arc<View>> {
        if self.profile.mode == ProfileMode::Code {
            return None;
        }
        let own = self.own_tools().iter().map(|tool| &*tool.name).collect();
        // Also what is not shown: a server's tool must not pass for it.
        Some(self.servers()?.view(&self.profile_name, &self.profile, &own))
    }

    fn own_tools(&self) -> &[OwnTool] {
        match self.profile.mode {
            ProfileMode::Code => &self.code_tools,
            ProfileMode::Direct if self.profile.builtin_tools => &self.tools,
            ProfileMode::Direct => &[],
        }
    }

    /// Those that callers may use.
    fn shown_tools(&self) -> impl Iterator<Item = &Value> {
        self.own_tools().iter().filter(|tool| self.policy.shows_tool(&tool.name)).map(|tool| &tool.listed)
    }

    fn is_own_offered(&self) -> bool {
        self.profile.builtin_tools || self.profile.mode == ProfileMode::Code
    }

    pub(crate) fn sessions(&self) -> Result<&Sessions, Failure> {
        match &self.backend {
            Backend::Ready(sessions) => Ok(sessions),
            Backend::Down(reason) => {
                Err(Failure::new(Kind::Connection, format!("the sandbox backend is down: {reason}"))
                    .hint("`ringfence doctor` on the server's host says what is missing"))
            }
        }
    }

    /// What a tool takes.
    pub(crate) fn input_schema(&self, tool: &str) -> Option<Value> {
        match self.shown_tools().find(|listed| listed["name"] == tool) {
            Some(listed) => Some(listed["inputSchema"].clone()),
            None => self.view()?.input_schema(tool).cloned(),
        }
    }

    /// Hears what needs no answer.
    pub(crate) fn hear(&self, method: &str, params: &Value) {
        if let Some(hosting) = self.servers().filter(|_| method == "notifications/roots/list_changed") {
            hosting.tell_servers(method, params);
        }
    }

    /// Answers one request.
    pub(crate) async fn serve(&self, method: &str, params: Value, context: &Context) -> Outcome {
        let outcome = match method {
            "tools/call" => self.call_tool(params, context).await,
            // Boxed, or every call would have room for what these need.
            _ => Box::pin(self.dispatch(method, params, context)).await,
        };
        match outcome {
            Ok(mut result) => {
                era::dress(&mut result, method, context.era);
                Ok(result)
            }
            Err(mut error) => {
                if context.era == Era::Modern && error.code == RpcError::RESOURCE_NOT_FOUND {
                    error.code = RpcError::INVALID_PARAMS;
                }
                Err(error)
            }
        }
    }

    async fn dispatch(&self, method: &str, params: Value, context: &Context) -> Outcome {
        match (method, context.era) {
            ("initialize", Era::Legacy) => self.open(&params, context).await,
            ("server/discover", Era::Modern) => self.describe().await,
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
            _ => match (self.servers(), self.profile.sole_server()) {
                (Some(hosting), Some(server)) => hosting.pass(server, method, params, self.time(), context).await,
                _ => Err(RpcError::method_not_found(method)),
            },
        }
    }

    /// Whatever the servers and the sandboxes have of something.
    async fn list(&self, method: &str) -> Value {
        if let Some(hosting) = self.servers() {
            hosting.settle().await;
        }
        let view = self.view();
        let hosted = |list: fn(&View) -> &Vec<Value>| view.iter().flat_map(move |view| list(view)).cloned();
        match method {
            "tools/list" => {
                let tools: Vec<Value> = self.shown_tools().cloned().chain(hosted(|view| &view.tools)).collect();
                json!({"tools": tools})
            }
            // There are no prompts of our own; but clients ask, and what is answered is declared.
            "prompts/list" => json!({"prompts": hosted(|view| &view.prompts).collect::<Vec<_>>()}),
            "resources/list" => {
                let is_offered = self.is_own_offered() && self.policy.allows(Action::RunCode);
                let own = self.code.as_ref().filter(|_| is_offered).map(|_| json!(resource::capabilities()));
                let resources: Vec<Value> = own.into_iter().chain(hosted(|view| &view.resources)).collect();
                json!({"resources": resources})
            }
            _ => {
                let is_offered = self.is_own_offered() && self.policy.allows(Action::ReadOutput);
                let own = is_offered.then(|| json!(resource::template()));
                let templates: Vec<Value> = own.into_iter().chain(hosted(|view| &view.templates)).collect();
                json!({"resourceTemplates": templates})
            }
        }
    }

    /// Whether a client may be told something before the answer. Of our own tools it is how they get on, if it asks.
    pub(crate) fn tells_before_answer(&self, method: &str, params: &Value) -> bool {
        let is_own = || params["name"].as_str().is_some_and(|name| self.has_own_tool(name));
        method != "tools/call" || params["_meta"].get("progressToken").is_some() || !is_own()
    }

    fn has_own_tool(&self, name: &str) -> bool {
        self.own_tools().iter().any(|tool| *tool.name == *name)
    }

    /// Lets through what the policy allows.
    fn permit(&self, action: Action, context: &Context) -> Result<(), RpcError> {
        self.policy.check(action).map_err(|refusal| self.refuse(context, refusal))
    }

    fn refuse(&self, context: &Context, refusal: Failure) -> RpcError {
        self.audit().record(AuditEvent::refusal(&refusal).by(&context.principal, None));
        failure::render(refusal)
    }
}

fn hosting_view(gateway: &Gateway) -> Arc<View> {
    gateway.view().unwrap_or_default()
}

pub(crate) fn too_long(patience: Duration) -> Failure {
    let message =
        format!("the call took longer than {} s in all, and was given up; it may have run", patience.as_secs());
    Failure::new(Kind::ResourceLimit, message)
        .with("rule", "server.request_timeout_s")
        .with("may_have_run", "true")
        .hint("look whether it has had an effect before you call again")
        .hint("calls of one session wait for each other: use another session for what need not wait")
}

fn no_resource(uri: &str) -> RpcError {
    RpcError::new(RpcError::RESOURCE_NOT_FOUND, "there is no such resource").with_data(json!({"uri": uri}))
}
