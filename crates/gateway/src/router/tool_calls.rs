//! Calls of tools: the built-in ones, and those of the servers.

use ringfence_core::{Failure, Kind};
use ringfence_entries::ProfileMode;
use ringfence_mcp::client::Context;
use ringfence_mcp::failure;
use ringfence_mcp::rpc::{Outcome, RpcError};
use ringfence_store::PinKind;
use serde_json::Value;

use super::Gateway;
use super::running_calls::Reply;
use crate::authorize::{Action, Object, Subject};
use crate::reply;
use crate::tools;
use crate::tools::arguments::ToolCall;

/// The reason why a call of a built-in tool has no result of the tool.
enum Refusal {
    /// The request is not a call of a tool.
    Malformed(RpcError),
    /// The tool was not called, or failed.
    Failed(Failure),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Gateway {
    pub(super) async fn call_tool(&self, params: Value, context: &Context) -> Outcome {
        let Some(name) = params["name"].as_str().map(str::to_owned) else { return Err(invalid_call()) };
        if !self.is_builtin_tool(&name) {
            return Box::pin(self.call_server_tool(&name, params, context)).await;
        }
        match self.call_named_builtin_tool(&name, params, context).await {
            Ok(reply) => Ok(reply.into_json()),
            Err(Refusal::Malformed(error)) => Err(error),
            Err(Refusal::Failed(failure)) => self.render_failure(&name, failure, context),
        }
    }

    /// Calls a tool of a server.
    async fn call_server_tool(&self, name: &str, mut params: Value, context: &Context) -> Outcome {
        self.authorize_tool(Action::UseServers, name, context).map_err(failure::render)?;
        if !has_valid_arguments(&params) {
            return Err(invalid_call());
        }
        if let Some(hosting) = self.servers().filter(|_| self.profile.mode == ProfileMode::Direct) {
            let view = self.view().unwrap_or_default();
            let listed = view.tool(name).or_else(|| view.withheld_tool(name)).cloned();
            let by_prefix = || {
                let has_prefixes = self.profile.prefix;
                let subject = Subject::principal(&context.principal);
                has_prefixes.then(|| hosting.route_by_prefix(&self.authorizer, subject, name)).flatten()
            };
            if let Some(route) = listed.or_else(by_prefix) {
                params["name"] = route.name.as_str().into();
                let item = (Some(PinKind::Tool), &route);
                return self.relay(hosting, item, "tools/call", params, self.deadline(), context).await;
            }
        }
        let unknown = Failure::new(Kind::Validation, "unknown tool").hint("tools/list lists the tools");
        Err(self.refuse(context, unknown))
    }

    async fn call_named_builtin_tool(
        &self,
        name: &str,
        mut params: Value,
        context: &Context,
    ) -> Result<Reply, Refusal> {
        // Before the arguments are checked, so that a refused caller learns nothing about them.
        tools::action(name).map_or(Ok(()), |action| self.authorize_tool(action, name, context))?;
        if !has_valid_arguments(&params) {
            return Err(Refusal::Malformed(invalid_call()));
        }
        if let Some(call) = self.running_calls.take(&params, name, context).map_err(Refusal::Malformed)? {
            let call = self.running_calls.wait(call, name, None, context);
            return Ok(self.finish_call(call, context).await?);
        }
        let progress_token = params["_meta"].get("progressToken").cloned();
        let arguments = match params.get_mut("arguments").map(Value::take) {
            Some(Value::Object(arguments)) => Some(arguments),
            _ => None,
        };
        let subject = Subject::principal(&context.principal);
        let call = ToolCall::parse(name, arguments).map_err(|refusal| self.authorizer.refuse(subject, refusal))?;
        call.actions().into_iter().try_for_each(|action| self.authorize_tool(action, name, context))?;
        let call = self.call_builtin_tool(call, name, progress_token, context);
        Ok(self.finish_call(call, context).await?)
    }

    fn authorize_tool(&self, action: Action, tool: &str, context: &Context) -> Result<(), Failure> {
        self.authorizer.authorize(Subject::principal(&context.principal), action, Object::BuiltinTool(tool))
    }

    /// Waits for a call of a built-in tool, at most until the timeout of requests.
    async fn finish_call(
        &self,
        call: impl Future<Output = Result<Reply, Failure>>,
        context: &Context,
    ) -> Result<Reply, Failure> {
        let Ok(result) = tokio::time::timeout(self.request_timeout, call).await else {
            context.cancel.cancel();
            let failure = failure::timed_out(self.request_timeout);
            return Err(self.authorizer.refuse(Subject::principal(&context.principal), failure));
        };
        result
    }

    /// Renders the failure of a built-in tool: as a result, because clients do not show JSON-RPC errors to their models
    /// (SEP-1303). Plain requests get a JSON-RPC error, by whose code programs distinguish failures.
    fn render_failure(&self, tool: &str, failure: Failure, context: &Context) -> Outcome {
        let mode = self.code.as_ref().map(|code| code.settings().output_mode).unwrap_or_default();
        match tool {
            tools::RUN_PYTHON if context.declares_version || failure.kind == Kind::Validation => {
                Ok(reply::python_failure(failure, mode).into_json())
            }
            _ if context.declares_version => Ok(reply::failure(failure).into_json()),
            _ => Err(failure::render(failure)),
        }
    }
}

fn has_valid_arguments(params: &Value) -> bool {
    params.get("arguments").is_none_or(|arguments| arguments.is_object() || arguments.is_null())
}

fn invalid_call() -> RpcError {
    failure::render(
        Failure::new(Kind::Validation, "tools/call needs a `name` and an object of `arguments`")
            .hint("tools/list lists the tools and their arguments"),
    )
}
