//! Calls of tools: our own, and those of the servers.

use ringfence_core::AuditEvent;
use ringfence_core::{Failure, Kind};
use ringfence_entries::ProfileMode;
use ringfence_store::PinKind;
use serde_json::Value;

use super::{Gateway, hosting_view, too_long};
use crate::arguments::Call;
use crate::client::Context;
use crate::hosting::{Hosting, Route, Within};
use crate::policy::Action;
use crate::rpc::{Outcome, RpcError};
use crate::{failure, reply, tools};

impl Gateway {
    pub(super) async fn call_tool(&self, mut params: Value, context: &Context) -> Outcome {
        let Some(name) = params["name"].as_str().map(str::to_owned) else { return Err(not_a_call()) };
        let is_own = self.has_own_tool(&name);
        // First: what is not allowed is told nothing of its arguments. What is not our own could be a server's.
        let action = if is_own { Action::of_tool(&name) } else { Some(Action::UseServers) };
        if let Some(action) = action {
            self.policy.check(action).map_err(|refusal| self.refuse(context, refusal.with("tool", name.as_str())))?;
        }
        if params.get("arguments").is_some_and(|arguments| !arguments.is_object() && !arguments.is_null()) {
            return Err(not_a_call());
        }
        if let Some(hosting) = self.servers().filter(|_| !is_own && self.profile.mode == ProfileMode::Direct) {
            let (view, within) = (hosting_view(self), self.time());
            let known = view.tool(&name).or_else(|| view.held(&name)).cloned();
            if let Some(route) = known.or_else(|| hosting.guess(&self.profile, &name)) {
                return Box::pin(self.pass_on(hosting, route, params, within, context)).await;
            }
        }
        let token = params["_meta"].get("progressToken").cloned();
        let arguments = match params.get_mut("arguments").map(Value::take) {
            Some(Value::Object(arguments)) => Some(arguments),
            _ => None,
        };
        let call = match Call::parse(if is_own { &name } else { "" }, arguments) {
            Ok(call) => call,
            // Its answers have a status for that.
            Err(refusal) if is_own && name == tools::RUN_PYTHON => {
                self.audit().record(AuditEvent::refusal(&refusal).by(&context.principal, None));
                let mode = self.code.as_ref().map(|code| code.settings().output_mode);
                return Ok(reply::on_the_wire(reply::validation_answer(&refusal, mode.unwrap_or_default())));
            }
            Err(refusal) => return Err(self.refuse(context, refusal)),
        };
        for action in call.actions() {
            self.policy.check(action).map_err(|refusal| self.refuse(context, refusal.with("tool", name.as_str())))?;
        }
        let Ok(answered) = tokio::time::timeout(self.patience, self.answer(call, token, context)).await else {
            context.cancel.cancel();
            return Err(self.refuse(context, too_long(self.patience)));
        };
        answered.map(reply::on_the_wire).map_err(failure::render)
    }

    /// Calls a tool of a server.
    async fn pass_on(
        &self,
        hosting: &Hosting,
        route: Route,
        mut params: Value,
        within: Within,
        context: &Context,
    ) -> Outcome {
        // It can be judged only once its server is there.
        if hosting.fleet().link(&route.server).is_none() {
            hosting.link(&route.server, within).await?;
        }
        if hosting.is_held(PinKind::Tool, &route) {
            return Err(self.refuse(context, held("tool", &route.name, &route.server)));
        }
        params["name"] = route.name.into();
        hosting.pass(&route.server, "tools/call", params, within, context).await
    }
}

/// The error for an item that a server offers but that has not been accepted.
pub(super) fn held(what: &str, name: &str, server: &str) -> Failure {
    let look = if what == "tool" { "tools" } else { "show" };
    Failure::new(
        Kind::Policy,
        format!("the {what} {name} of {server} is new or has changed since it was pinned, and is held back"),
    )
    .hint(format!(
        "review it with `ringfence server {look} {server}`, then accept it with `ringfence server pin {server}`"
    ))
}

fn not_a_call() -> RpcError {
    failure::render(
        Failure::new(Kind::Validation, "tools/call takes a `name` and an object of `arguments`")
            .hint("tools/list names the tools and their arguments"),
    )
}
