//! The gateway as the service behind the transports.

use std::time::Duration;

use ringfence_core::{AuditEvent, Principal};
use ringfence_mcp::Service;
use ringfence_mcp::client::Context;
use ringfence_mcp::clients::Clients;
use ringfence_mcp::connection::Connection;
use ringfence_mcp::era::{self, Era};
use ringfence_mcp::rpc::{Outcome, RpcError};
use serde_json::Value;

use super::Gateway;

impl Service for Gateway {
    fn with_profile(&self, profile: &str) -> Option<Self> {
        Gateway::with_profile(self, profile)
    }

    async fn handle(&self, method: &str, params: Value, context: &Context) -> Outcome {
        let outcome = match method {
            "tools/call" => {
                let is_builtin = || params["name"].as_str().is_some_and(|name| self.is_builtin_tool(name));
                let has_session_fields = !context.declares_version && is_builtin();
                let outcome = self.call_tool(params, context).await;
                if has_session_fields { outcome.map(with_session_fields) } else { outcome }
            }
            // Boxed: otherwise the future of every tool call would have the size of the largest one here.
            _ => Box::pin(self.dispatch(method, params, context)).await,
        };
        match outcome {
            Ok(mut result) => {
                era::mark_result(&mut result, method, context.era);
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

    fn handle_notification(&self, method: &str, params: &Value) {
        if let Some(hosting) = self.servers().filter(|_| method == "notifications/roots/list_changed") {
            hosting.notify_servers(method, params);
        }
    }

    fn input_schema(&self, tool: &str) -> Option<Value> {
        match self.allowed_tools().find(|listed| listed["name"] == tool) {
            Some(listed) => Some(listed["inputSchema"].clone()),
            None => self.view()?.input_schema(tool).cloned(),
        }
    }

    /// Built-in tools send nothing but progress, and that only on request.
    fn may_send_before_response(&self, method: &str, params: &Value) -> bool {
        let is_builtin = || params["name"].as_str().is_some_and(|name| self.is_builtin_tool(name));
        method != "tools/call" || params["_meta"].get("progressToken").is_some() || !is_builtin()
    }

    /// A profile with a single server responds as that server does.
    fn always_streams(&self) -> bool {
        self.profile.sole_server().is_some()
    }

    fn clients(&self) -> &Clients {
        &self.clients
    }

    async fn connection_ended(&self, principal: &Principal, connection: &Connection) {
        self.default_sessions.forget(principal, connection).await;
    }

    fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    fn principal(&self, caller: Principal) -> Principal {
        self.authorizer.principal(caller)
    }

    fn record(&self, event: AuditEvent) {
        self.audit().record(event);
    }
}

/// Copies the session of a call to the top of its result, where clients that send plain requests look for it.
fn with_session_fields(mut result: Value) -> Value {
    for field in ["session_id", "session_created"] {
        if let Some(value) = result["structuredContent"].get(field).cloned() {
            result[field] = value;
        }
    }
    result
}
