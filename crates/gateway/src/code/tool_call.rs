//! A tool of a server, called by code.

use std::sync::Arc;
use std::time::Duration;

use ringfence_guest::HostResponse;
use ringfence_session::CallNote;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::cell::{Cell, told};
use super::failure::{CallError, ErrorKind};
use super::requests::{ServerParams, ToolCallParams, invalid, read};
use crate::client::{Context, Outlet};
use crate::era::Era;
use crate::hosting::{CallFailure, KnownServer, KnownServers, Route};
use crate::json_values;
use crate::rpc::Id;

/// Parsed JSON takes many times the memory of its text: values that the arguments of one call may have.
const MOST_VALUES: usize = 100_000;

/// Of the servers that there are, in an error.
const SHOWN_NAMES: usize = 20;

impl Cell {
    /// The servers that the caller may know of.
    pub(super) async fn servers(&self) -> Arc<KnownServers> {
        self.mode.0.hosting.known_servers(&self.caller.profile).await
    }

    /// Whether the code may call it: it was named for this session, or the profile is bound to it.
    fn may_call(&self, server: &KnownServer) -> bool {
        self.granted.has(&server.uuid) || self.caller.profile.grants_servers_to_code()
    }

    pub(super) async fn call_tool(
        &self,
        params: &str,
        cancel: &CancellationToken,
        note: &CallNote,
    ) -> Result<HostResponse, CallError> {
        let ToolCallParams { server, tool, arguments, timeout } =
            serde_json::from_str(params).map_err(|error| invalid(&error))?;
        let server = find(&*self.servers().await, &server)?.clone();
        if !self.may_call(&server) {
            let message = format!("server `{0}` is not loaded here; name it in `servers` of the call", server.name);
            return Err(CallError::new(ErrorKind::Refused, message).with("server", server.name));
        }
        // Until its list is known, the server itself says what it has; but no more than the profile offers.
        if server.tool(&tool).is_none()
            && !(server.tools.is_empty() && self.caller.profile.has_tool(&server.name, &tool))
        {
            let tool: String = tool.chars().take(64).collect();
            let message = format!("server `{}` has no tool `{tool}`", server.name);
            return Err(CallError::new(ErrorKind::NotFound, message).with("server", server.name).with("tool", tool));
        }
        let deadline = self.deadline(timeout)?;
        let text = arguments.map_or("{}", |arguments| arguments.get());
        if json_values::exceed(text.as_bytes(), MOST_VALUES) {
            return Err(CallError::new(ErrorKind::Limit, format!("the arguments have more than {MOST_VALUES} values")));
        }
        note.describe(&server.name, &tool);
        let place = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            place = self.mode.0.places.take(&self.caller.principal, &server.uuid) => place,
        };
        let Some(_place) = place else { return Err(cancelled()) };
        let arguments: Value = serde_json::from_str(text).map_err(|error| invalid(&error))?;
        if !arguments.is_object() {
            return Err(CallError::new(ErrorKind::Invalid, "the arguments of a tool are an object"));
        }
        let route = Route { server: server.name.clone(), uuid: server.uuid.clone(), name: tool };
        note.start();
        let (context, session) = (self.context(cancel), self.room.session.as_ref());
        let answer = self.mode.0.hosting.pass_raw(&route, arguments, deadline, &context, session).await;
        answer.map(|answer| HostResponse::Result(Box::new(answer))).map_err(|failure| explain(&server, failure))
    }

    /// Of a request without a client that could be asked, or told of progress.
    fn context(&self, cancel: &CancellationToken) -> Context {
        Context {
            principal: self.caller.principal.clone(),
            era: Era::Modern,
            capabilities: Arc::default(),
            outlet: Outlet::closed(),
            client: None,
            cancel: cancel.clone(),
            request: Id::Number(0),
        }
    }

    fn deadline(&self, timeout: Option<f64>) -> Result<Duration, CallError> {
        let settings = self.mode.settings();
        let Some(seconds) = timeout else { return Ok(settings.call_timeout) };
        let given = Duration::try_from_secs_f64(seconds).ok();
        given.filter(|timeout| !timeout.is_zero() && *timeout <= settings.most_timeout).ok_or_else(|| {
            let most = settings.most_timeout.as_secs();
            CallError::new(ErrorKind::Invalid, format!("a timeout is between 0 and {most} seconds"))
        })
    }

    pub(super) async fn list_tools(&self, params: &str) -> Result<HostResponse, CallError> {
        let ServerParams { server } = read(params)?;
        let servers = self.servers().await;
        let server = find(&servers, &server)?;
        let tools: Vec<Value> = server
            .tools
            .iter()
            .zip(server.tool_aliases.iter())
            .map(|(tool, alias)| {
                let mut tool = tool.clone();
                if let Some(fields) = tool.as_object_mut() {
                    fields.insert("alias".into(), json!(alias));
                }
                tool
            })
            .collect();
        Ok(told(&json!({"server": self.describe(server), "tools": tools})))
    }

    pub(super) async fn list_servers(&self) -> HostResponse {
        let servers: Vec<Value> = self.servers().await.servers().iter().map(|server| self.describe(server)).collect();
        told(&json!({"servers": servers}))
    }

    fn describe(&self, server: &KnownServer) -> Value {
        json!({
            "name": server.name,
            "alias": server.alias,
            "description": server.description,
            "version": server.version,
            "status": server.status,
            "tool_count": server.tools.len(),
            "loaded": self.may_call(server),
        })
    }
}

/// By name or alias; what a caller may not see is not there.
pub(super) fn find<'a>(known: &'a KnownServers, name: &str) -> Result<&'a KnownServer, CallError> {
    known.find(name).ok_or_else(|| {
        let names: Vec<&str> = known.servers().iter().take(SHOWN_NAMES).map(|server| server.name.as_str()).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let name: String = name.chars().take(64).collect();
        CallError::new(ErrorKind::NotFound, format!("there is no server `{name}`; there are: {names}"))
    })
}

fn explain(server: &KnownServer, failure: CallFailure) -> CallError {
    let kind = failure.kind();
    let ran = match (kind, failure.may_have_run()) {
        // It says itself what became of the call.
        (ErrorKind::Upstream | ErrorKind::Refused | ErrorKind::NotFound, _) => "",
        (_, true) => "; the call may have run",
        (_, false) => "; the call has not run",
    };
    let said = [format!("{failure}{ran}").as_str()]
        .into_iter()
        .chain(failure.hints().iter().map(String::as_str))
        .collect::<Vec<_>>()
        .join("; ");
    let error =
        CallError::new(kind, said).with("server", server.name.clone()).with("may_have_run", failure.may_have_run());
    match failure {
        CallFailure::Upstream(upstream) => {
            error.with("code", upstream.code).with("data", upstream.data.unwrap_or_default())
        }
        CallFailure::NotThere { phase: Some(phase), .. } => error.with("phase", phase),
        _ => error,
    }
}

fn cancelled() -> CallError {
    CallError::new(ErrorKind::Cancelled, "the call was cancelled")
}
