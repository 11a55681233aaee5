//! Tool calls of code, and the lists of servers and tools that code sees.

use std::sync::Arc;
use std::time::Duration;

use ringfence_guest::HostResponse;
use ringfence_mcp::client::{Context, MessageSink};
use ringfence_mcp::era::Era;
use ringfence_mcp::json_size;
use ringfence_mcp::rpc::Id;
use ringfence_servers::Phase;
use ringfence_session::CallNote;
use ringfence_store::PinKind;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::call_error::{CallError, ErrorKind};
use super::host_calls::{CodeRun, result};
use super::params::{ServerParams, ToolCallParams, invalid, parse};
use super::run::FIRST_START_TIMEOUT;
use crate::authorize::{Action, Object};
use crate::catalogue::{KnownServer, KnownServers, Route};
use crate::fleet::Status;
use crate::relay::{Call, CallFailure, Deadline};

/// Maximum number of values in the arguments of one call: parsed JSON takes many times the memory of its text.
const MAX_VALUES: usize = 100_000;

/// Maximum number of server names in an error.
const MAX_SHOWN_NAMES: usize = 20;

/// Maximum length of a name in an error.
const MAX_SHOWN_NAME_CHARS: usize = 64;

impl CodeRun {
    /// The servers that the caller may see.
    pub(super) async fn servers(&self) -> Arc<KnownServers> {
        self.mode.0.hosting.known_servers(&self.caller.profile).await
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
        self.caller.authorizer.authorize(self.subject(), Action::UseServers, object(&server))?;
        // While the tools of a server are not known, the server itself checks the name.
        if server.tool(&tool).is_none() && !(server.tools.is_empty() && self.allows_tool(&server, &tool)) {
            let tool: String = tool.chars().take(MAX_SHOWN_NAME_CHARS).collect();
            let message = format!("server `{}` has no tool `{tool}`", server.name);
            return Err(CallError::new(ErrorKind::NotFound, message).with("server", server.name).with("tool", tool));
        }
        let deadline = self.deadline(timeout)?;
        let text = arguments.map_or("{}", |arguments| arguments.get());
        if json_size::has_more_values_than(text.as_bytes(), MAX_VALUES) {
            return Err(CallError::new(ErrorKind::Limit, format!("the arguments have more than {MAX_VALUES} values")));
        }
        note.describe(&server.name, &tool);
        let permit = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            permit = self.mode.0.per_server_limit.acquire(&self.caller.principal, &server.uuid) => permit,
        };
        let Some(_permit) = permit else {
            return Err(CallError::new(ErrorKind::Cancelled, "the call was cancelled"));
        };
        let arguments: Value = serde_json::from_str(text).map_err(|error| invalid(&error))?;
        if !arguments.is_object() {
            return Err(CallError::new(ErrorKind::Invalid, "the arguments of a tool must be an object"));
        }
        let route = Route { server: server.name.clone(), uuid: server.uuid.clone(), name: tool };
        note.start();
        let context = self.context(cancel);
        let response = self.mode.0.hosting.relay().call_raw(Call {
            authorizer: &self.caller.authorizer,
            subject: self.subject(),
            context: &context,
            item: Some(PinKind::Tool),
            route: &route,
            method: "tools/call",
            params: call_params(&route.name, arguments),
            deadline: Deadline::after(deadline),
        });
        match response.await {
            Ok(response) => Ok(HostResponse::Result(Box::new(response))),
            Err(failure) => Err(explain(&server, failure)),
        }
    }

    fn allows_tool(&self, server: &KnownServer, tool: &str) -> bool {
        let object = Object::Tool { server: &server.name, uuid: &server.uuid, tool };
        self.caller.authorizer.allows(self.subject(), Action::UseServers, object)
    }

    /// The context of a request without a client: servers can send no messages to it.
    fn context(&self, cancel: &CancellationToken) -> Context {
        Context {
            principal: self.caller.principal.clone(),
            era: Era::Modern,
            capabilities: Arc::default(),
            sink: MessageSink::closed(),
            client: None,
            connection: None,
            cancel: cancel.clone(),
            request: Id::Number(0),
            declares_version: true,
        }
    }

    fn deadline(&self, timeout: Option<f64>) -> Result<Duration, CallError> {
        let settings = self.mode.settings();
        let Some(seconds) = timeout else { return Ok(settings.call_timeout) };
        let timeout = Duration::try_from_secs_f64(seconds).ok();
        timeout.filter(|timeout| !timeout.is_zero() && *timeout <= settings.max_timeout).ok_or_else(|| {
            let max = settings.max_timeout.as_secs();
            CallError::new(ErrorKind::Invalid, format!("the timeout must be between 0 and {max} seconds"))
        })
    }

    pub(super) async fn list_tools(&self, params: &str) -> Result<HostResponse, CallError> {
        let ServerParams { server: name } = parse(params)?;
        let mut servers = self.servers().await;
        let unused = find(&servers, &name)?;
        // A server that code may use starts when its tools are listed, as they are needed for calls.
        if unused.tools.is_empty() && unused.status == Status::Idle.name() && self.allows_server(unused) {
            self.mode.0.hosting.wait_for_tools(&unused.name, Instant::now() + FIRST_START_TIMEOUT).await;
            servers = self.servers().await;
        }
        let server = find(&servers, &name)?;
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
        Ok(result(&json!({"server": self.describe(server), "tools": tools})))
    }

    pub(super) async fn list_servers(&self) -> HostResponse {
        let servers: Vec<Value> = self.servers().await.servers().iter().map(|server| self.describe(server)).collect();
        result(&json!({"servers": servers}))
    }

    fn describe(&self, server: &KnownServer) -> Value {
        json!({
            "name": server.name,
            "alias": server.alias,
            "description": server.description,
            "version": server.version,
            "status": server.status,
            "tool_count": server.tools.len(),
            "cwd": server.cwd,
            "loaded": self.allows_server(server),
        })
    }

    fn allows_server(&self, server: &KnownServer) -> bool {
        self.caller.authorizer.allows(self.subject(), Action::UseServers, object(server))
    }
}

fn object(server: &KnownServer) -> Object<'_> {
    Object::Server { name: &server.name, uuid: &server.uuid }
}

/// Finds a server by name or alias. A server that the caller may not see does not exist for it.
pub(super) fn find<'a>(known: &'a KnownServers, name: &str) -> Result<&'a KnownServer, CallError> {
    known.find(name).ok_or_else(|| {
        let names: Vec<&str> =
            known.servers().iter().take(MAX_SHOWN_NAMES).map(|server| server.name.as_str()).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let name: String = name.chars().take(MAX_SHOWN_NAME_CHARS).collect();
        CallError::new(ErrorKind::NotFound, format!("unknown server `{name}`; available servers: {names}"))
    })
}

fn call_params(tool: &str, arguments: Value) -> Value {
    Value::Object(Map::from_iter([("name".to_owned(), tool.into()), ("arguments".to_owned(), arguments)]))
}

/// The kind of error that code sees.
fn kind(failure: &CallFailure) -> ErrorKind {
    match failure {
        CallFailure::Refused(_) => ErrorKind::Refused,
        CallFailure::NotConnected(missing) if missing.status.is_none() => ErrorKind::NotFound,
        CallFailure::NotConnected(_) | CallFailure::Lost { .. } | CallFailure::Unreachable(_) => ErrorKind::Lost,
        CallFailure::Upstream(_) | CallFailure::NeedsInput => ErrorKind::Upstream,
        CallFailure::TimedOut { .. } => ErrorKind::Timeout,
        CallFailure::Cancelled { .. } => ErrorKind::Cancelled,
        CallFailure::TooLarge | CallFailure::Busy => ErrorKind::Limit,
    }
}

fn explain(server: &KnownServer, failure: CallFailure) -> CallError {
    let kind = kind(&failure);
    let effect = match (kind, failure.may_have_run()) {
        // These messages already tell whether the call has run.
        (ErrorKind::Upstream | ErrorKind::Refused | ErrorKind::NotFound, _) => "",
        (_, true) => "; the call may have run",
        (_, false) => "; the call has not run",
    };
    let message = [format!("{failure}{effect}").as_str()]
        .into_iter()
        .chain(failure.hints().iter().map(String::as_str))
        .collect::<Vec<_>>()
        .join("; ");
    let error =
        CallError::new(kind, message).with("server", server.name.clone()).with("may_have_run", failure.may_have_run());
    match failure {
        CallFailure::Upstream(upstream) => {
            error.with("code", upstream.code).with("data", upstream.data.unwrap_or_default())
        }
        CallFailure::NotConnected(missing) => match missing.phase.map(Phase::name) {
            Some(phase) => error.with("phase", phase),
            None => error,
        },
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use ringfence_mcp::rpc::RpcError;

    use super::*;

    #[test]
    fn failures_have_the_kinds_that_code_knows() {
        let deadline = Duration::from_secs(60);
        let messages = [
            CallFailure::Upstream(RpcError::new(-32602, "bad arguments")),
            CallFailure::Cancelled { may_have_run: true },
            CallFailure::TimedOut { deadline, may_have_run: true },
            CallFailure::TooLarge,
            CallFailure::Busy,
            CallFailure::Lost { may_have_run: false, reason: "the server ended".into() },
            CallFailure::Unreachable("HTTP 403".into()),
        ]
        .map(|failure| format!("{}, {}: {failure}", kind(&failure).name(), failure.may_have_run()));
        insta::assert_snapshot!(messages.join("\n"), @r"
        upstream, true: bad arguments
        cancelled, true: the call was cancelled
        timeout, true: no response within 60 s
        limit, true: the response is larger than 64 MiB, the maximum
        limit, true: the response is larger than 1 MiB, and too many such responses wait to be read
        lost, false: the server ended
        lost, false: HTTP 403
        ");
    }

    #[test]
    fn tool_is_called_by_the_name_that_the_server_uses() {
        assert_eq!(call_params("t", json!({"a": 1})), json!({"name": "t", "arguments": {"a": 1}}));
    }
}
