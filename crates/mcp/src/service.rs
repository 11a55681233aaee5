//! The interface between a transport and the MCP server behind it.

use std::time::Duration;

use ringfence_core::{AuditEvent, Principal};
use serde_json::Value;

use crate::client::Context;
use crate::clients::Clients;
use crate::connection::Connection;
use crate::rpc::Outcome;

/// The MCP server that a transport serves. Clones share their state.
pub trait Service: Clone + Send + Sync + 'static {
    /// Returns the service at `/mcp/{profile}`, or None if there is no such profile.
    fn with_profile(&self, profile: &str) -> Option<Self>;

    /// Handles one request.
    fn handle(&self, method: &str, params: Value, context: &Context) -> impl Future<Output = Outcome> + Send;

    /// Handles one notification of a client.
    fn handle_notification(&self, method: &str, params: &Value);

    /// Returns the input schema of a tool, which may require headers.
    fn input_schema(&self, tool: &str) -> Option<Value>;

    /// Whether messages may precede the response to this request. A transport prepares no stream for them otherwise.
    fn may_send_before_response(&self, method: &str, params: &Value) -> bool;

    /// Whether responses are event streams even if nothing precedes them.
    fn always_streams(&self) -> bool;

    /// The clients that opened an MCP session with `initialize`.
    fn clients(&self) -> &Clients;

    /// Releases what the service has bound to a connection that its client has ended.
    fn connection_ended(&self, principal: &Principal, connection: &Connection) -> impl Future<Output = ()> + Send;

    /// Maximum duration of one request.
    fn request_timeout(&self) -> Duration;

    /// Returns the principal as which an authenticated caller acts.
    fn principal(&self, caller: Principal) -> Principal;

    /// Records an audit event.
    fn record(&self, event: AuditEvent);
}
