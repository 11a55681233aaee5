//! Relays calls to MCP servers, for clients and for code in a sandbox. Both take the same path: admission by the fleet,
//! authorization, the exchange under a deadline, the audit event, and the verdict on the server's health.
//!
//! A client gets the result as JSON, with the progress, log messages and requests of the server on the way. Code gets the
//! bytes of the result as the server wrote them; it cannot answer requests of a server.

mod call_deadline;
mod exchange;
mod failure;
mod pending_input;

use std::sync::Arc;
use std::time::Duration;

use ringfence_core::{AuditEvent, AuditKind};
use ringfence_mcp::client::Context;
use ringfence_mcp::rpc::Outcome;
use ringfence_mcp::sanitize;
use ringfence_mcp::upstream::{RawResult, UpstreamError};
use ringfence_store::{Audit, PinKind};
use serde_json::Value;
use tokio::time::Instant;

pub(crate) use call_deadline::Deadline;
pub(crate) use exchange::severity;
pub(crate) use failure::CallFailure;

use crate::authorize::{Action, Authorizer, Object, Subject};
use crate::catalogue::Route;
use crate::connection::{Connector, ServerLink};
use crate::fleet::{CallEnd, Fleet};
use call_deadline::TrackedCall;
use exchange::{CallResult, ClientExchange, CodeExchange, Exchange};
use pending_input::PendingInput;

/// Maximum time that a call waits for a server that is being started.
pub(crate) const START_TIMEOUT: Duration = Duration::from_mins(2);

/// Maximum time for one server to set its log level.
const LOG_LEVEL_TIMEOUT: Duration = Duration::from_secs(5);

/// Attempts for calls of code that could not be sent, and the pause between them.
const CODE_ATTEMPTS: usize = 4;
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Maximum length of a name in the audit.
const MAX_AUDIT_NAME_CHARS: usize = 128;

pub(crate) struct Relay {
    fleet: Fleet<Connector>,
    pending_input: PendingInput,
    audit: Audit,
}

/// One call to a server.
pub(crate) struct Call<'a> {
    pub(crate) authorizer: &'a Authorizer,
    pub(crate) subject: Subject<'a>,
    pub(crate) context: &'a Context,
    /// The item that is used, by the server's own name for it. Methods without an item only need the server.
    pub(crate) item: Option<PinKind>,
    pub(crate) route: &'a Route,
    pub(crate) method: &'a str,
    pub(crate) params: Value,
    pub(crate) deadline: Deadline,
}

impl Relay {
    pub(crate) fn new(fleet: Fleet<Connector>, audit: Audit) -> Self {
        Self { fleet, pending_input: PendingInput::default(), audit }
    }

    /// Relays a request of a client.
    pub(crate) async fn call(&self, call: Call<'_>) -> Outcome {
        let (method, deadline, server) = (call.method, call.deadline, &call.route.server);
        let exchange = ClientExchange { pending_input: &self.pending_input, method, context: call.context };
        match self.attempts(call, 1, &exchange).await {
            Ok(mut result) => {
                sanitize::result(method, &mut result);
                Ok(result)
            }
            Err(failure) => {
                let mut error = failure.into_rpc_error(server, deadline);
                sanitize::error(&mut error);
                Err(error)
            }
        }
    }

    /// Relays a tool call of code in a sandbox.
    pub(crate) async fn call_raw(&self, call: Call<'_>) -> Result<RawResult, CallFailure> {
        let exchange = CodeExchange { cancel: &call.context.cancel };
        self.attempts(call, CODE_ATTEMPTS, &exchange).await
    }

    /// Sets the log level of a server. Failures are ignored: the client does not wait for them.
    pub(crate) async fn set_log_level(&self, link: &ServerLink, params: Value, context: &Context) {
        let exchange = ClientExchange { pending_input: &self.pending_input, method: "logging/setLevel", context };
        let progress = Arc::default();
        let set = Box::pin(exchange.run(link, params, &progress));
        let _ = tokio::time::timeout(LOG_LEVEL_TIMEOUT, set).await;
    }

    /// Calls a server, again if nothing was sent because it has just ended.
    async fn attempts<E: Exchange>(
        &self,
        mut call: Call<'_>,
        attempts: usize,
        exchange: &E,
    ) -> Result<E::Output, CallFailure> {
        let start = Instant::now();
        // However often it is sent, the circuit breaker counts one call.
        let mut tracked = None;
        let mut attempt = 1;
        let result = loop {
            let params = if attempt == attempts { call.params.take() } else { call.params.clone() };
            let result = self.attempt(&call, params, exchange, &mut tracked).await;
            let was_not_sent =
                matches!(result, Err(CallFailure::Lost { may_have_run: false, .. } | CallFailure::Unreachable(_)));
            if attempt == attempts || !was_not_sent || call.deadline.is_over() {
                break result;
            }
            attempt += 1;
            tokio::time::sleep(RETRY_DELAY).await;
        };
        if call.method == "tools/call" && tracked.is_some() {
            self.record(&call, &result, start.elapsed());
        }
        result
    }

    async fn attempt<E: Exchange>(
        &self,
        call: &Call<'_>,
        params: Value,
        exchange: &E,
        tracked: &mut Option<TrackedCall<Connector>>,
    ) -> Result<E::Output, CallFailure> {
        let link = self.admit(call, tracked.is_some()).await?;
        authorize(call, &link)?;
        let tracked = match tracked {
            Some(tracked) => tracked.retry(Arc::clone(&link)),
            None => tracked.insert(TrackedCall::new(&self.fleet, &call.route.server, Arc::clone(&link))),
        };
        let progress = Arc::clone(tracked.progress());
        // Boxed: a relayed call is moved several times.
        let exchange = Box::pin(exchange.run(&link, params, &progress));
        let result = tokio::select! {
            biased;
            result = exchange => result,
            () = progress.expired(call.deadline) => Err(UpstreamError::TimedOut),
        };
        let result = result
            .map_err(|error| CallFailure::new(error, call.deadline))
            .and_then(|result| if result.needs_input() { Err(CallFailure::NeedsInput) } else { Ok(result) });
        tracked.set_end(match &result {
            Ok(_) => Some(CallEnd::Responded),
            Err(failure) => failure.call_end(),
        });
        result
    }

    /// Waits for the server, within the deadline.
    async fn admit(&self, call: &Call<'_>, was_admitted: bool) -> Result<Arc<ServerLink>, CallFailure> {
        let (server, timeout) = (&call.route.server, START_TIMEOUT.min(call.deadline.remaining()));
        let link = async {
            if was_admitted {
                self.fleet.await_link(server, timeout).await
            } else {
                self.fleet.admit(server, timeout).await
            }
        };
        tokio::select! {
            biased;
            () = call.context.cancel.cancelled() => Err(CallFailure::Cancelled { may_have_run: false }),
            link = link => link.map_err(|missing| {
                if call.subject.grants.is_some() && call.deadline.is_over() {
                    CallFailure::TimedOut { deadline: call.deadline.duration(), may_have_run: false }
                } else {
                    CallFailure::NotConnected(missing)
                }
            }),
        }
    }

    fn record<T: CallResult>(&self, call: &Call<'_>, result: &Result<T, CallFailure>, duration: Duration) {
        let outcome = match result {
            Ok(result) if result.is_error() => "tool_error",
            Ok(_) => "ok",
            Err(failure) => failure.audit_outcome(),
        };
        let tool: String = call.route.name.chars().take(MAX_AUDIT_NAME_CHARS).collect();
        let event = AuditEvent::new(AuditKind::ToolCalled, outcome).by(call.subject.principal, call.subject.session);
        let event = event.with_duration(duration).with("server", call.route.server.clone());
        self.audit.record(event.with("tool", tool));
    }
}

/// Checks the permission against the current catalogue of the server: lists may lag behind.
fn authorize(call: &Call<'_>, link: &ServerLink) -> Result<(), CallFailure> {
    let catalogue = link.catalogue();
    let object = match call.item {
        Some(kind) => Object::Item { kind, route: call.route, catalogue: &catalogue },
        None => Object::Server { name: &call.route.server, uuid: &call.route.uuid },
    };
    call.authorizer.authorize(call.subject, Action::UseServers, object).map_err(CallFailure::Refused)
}
