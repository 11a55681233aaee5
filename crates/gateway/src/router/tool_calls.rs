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

impl Gateway {
    pub(super) async fn call_tool(&self, mut params: Value, context: &Context) -> Outcome {
        let Some(name) = params["name"].as_str().map(str::to_owned) else { return Err(invalid_call()) };
        let is_builtin = self.is_builtin_tool(&name);
        let authorize = |action| {
            let subject = Subject::principal(&context.principal);
            self.authorizer.authorize(subject, action, Object::BuiltinTool(&name)).map_err(failure::render)
        };
        // Before the arguments are checked, so that a refused caller learns nothing about them. A tool that is not built
        // in may belong to a server.
        let action = if is_builtin { tools::action(&name) } else { Some(Action::UseServers) };
        action.map_or(Ok(()), &authorize)?;
        if params.get("arguments").is_some_and(|arguments| !arguments.is_object() && !arguments.is_null()) {
            return Err(invalid_call());
        }
        if let Some(hosting) = self.servers().filter(|_| !is_builtin && self.profile.mode == ProfileMode::Direct) {
            let view = self.view().unwrap_or_default();
            let listed = view.tool(&name).or_else(|| view.withheld_tool(&name)).cloned();
            let by_prefix = || {
                let has_prefixes = self.profile.prefix;
                let subject = Subject::principal(&context.principal);
                has_prefixes.then(|| hosting.route_by_prefix(&self.authorizer, subject, &name)).flatten()
            };
            if let Some(route) = listed.or_else(by_prefix) {
                params["name"] = route.name.as_str().into();
                let item = (Some(PinKind::Tool), &route);
                return Box::pin(self.relay(hosting, item, "tools/call", params, self.deadline(), context)).await;
            }
        }
        if is_builtin && let Some(call) = self.running_calls.take(&params, &name, context)? {
            let call = self.running_calls.wait(call, &name, None, context);
            return self.finish_call(call, context).await;
        }
        let progress_token = params["_meta"].get("progressToken").cloned();
        let arguments = match params.get_mut("arguments").map(Value::take) {
            Some(Value::Object(arguments)) => Some(arguments),
            _ => None,
        };
        let call = match ToolCall::parse(if is_builtin { &name } else { "" }, arguments) {
            Ok(call) => call,
            // The result of this tool has a status for invalid arguments.
            Err(refusal) if is_builtin && name == tools::RUN_PYTHON => {
                let refusal = self.authorizer.refuse(Subject::principal(&context.principal), refusal);
                let mode = self.code.as_ref().map(|code| code.settings().output_mode);
                return Ok(reply::python_validation_error(&refusal, mode.unwrap_or_default()).into_json());
            }
            Err(refusal) => return Err(self.refuse(context, refusal)),
        };
        call.actions().into_iter().try_for_each(authorize)?;
        let call = self.call_builtin_tool(call, &name, progress_token, context);
        self.finish_call(call, context).await
    }

    /// Waits for a call of a built-in tool, at most until the timeout of requests.
    async fn finish_call(&self, call: impl Future<Output = Result<Reply, Failure>>, context: &Context) -> Outcome {
        let Ok(result) = tokio::time::timeout(self.request_timeout, call).await else {
            context.cancel.cancel();
            return Err(self.refuse(context, failure::timed_out(self.request_timeout)));
        };
        result.map(Reply::into_json).map_err(failure::render)
    }
}

fn invalid_call() -> RpcError {
    failure::render(
        Failure::new(Kind::Validation, "tools/call needs a `name` and an object of `arguments`")
            .hint("tools/list lists the tools and their arguments"),
    )
}
