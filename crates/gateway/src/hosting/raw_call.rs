//! Calls of tools for code in a sandbox: the answer is passed on as the server wrote it.
//!
//! Code has no client behind it: nobody hears of progress, and nobody can be asked. Its deadline is the whole time that
//! it waits, for a server that is being started too.

use std::sync::Arc;
use std::time::Duration;

use ringfence_core::SessionId;
use ringfence_core::{AuditEvent, AuditKind};
use ringfence_servers::Phase;
use ringfence_store::PinKind;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};

use super::attended::{FAIR_WAIT, Sent, Within};
use super::{Hosting, Route, START_PATIENCE, relay, short};
use crate::client::Context;
use crate::code::ErrorKind;
use crate::fleet::{CallEnd, LinkMissing, NoAnswer};
use crate::rpc::RpcError;
use crate::upstream::{MAX_RAW_BYTES, RawAnswer, UpstreamError};

/// How often a call is made that could not be sent.
const ATTEMPTS: usize = 4;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(100);

/// Why code has no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum CallFailure {
    /// It is not what was accepted of it.
    #[error("tool {tool} of server {server} has changed since it was accepted, and is held back")]
    Held { server: String, tool: String },
    #[error("{}", missing)]
    NotThere {
        missing: LinkMissing,
        /// By the name that programs know it by.
        phase: Option<&'static str>,
    },
    #[error("{}", .0.message)]
    Upstream(RpcError),
    #[error("the server asks for input, which code cannot give")]
    AsksForInput,
    #[error("no answer came within {} s", deadline.as_secs_f32())]
    TimedOut { deadline: Duration, may_have_run: bool },
    #[error("{why}")]
    Lost { why: String, may_have_run: bool },
    /// The way to the server was barred: nothing was sent.
    #[error("{0}")]
    Barred(String),
    #[error("the call was cancelled")]
    Cancelled { may_have_run: bool },
    #[error("the answer is larger than {} MiB, the most that is passed on", MAX_RAW_BYTES >> 20)]
    TooLarge,
    /// The answer came, and was thrown away.
    #[error("the answer is larger than 1 MiB, and too many such answers wait to be taken")]
    Busy,
}

impl CallFailure {
    /// The kind that the sandbox knows it by.
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Held { .. } => ErrorKind::Refused,
            Self::NotThere { missing, .. } if missing.status.is_none() => ErrorKind::NotFound,
            Self::NotThere { .. } | Self::Lost { .. } | Self::Barred(_) => ErrorKind::Lost,
            Self::Upstream(_) | Self::AsksForInput => ErrorKind::Upstream,
            Self::TimedOut { .. } => ErrorKind::Timeout,
            Self::Cancelled { .. } => ErrorKind::Cancelled,
            Self::TooLarge | Self::Busy => ErrorKind::Limit,
        }
    }

    /// Whether the tool may have had an effect although there is no answer.
    pub(crate) fn may_have_run(&self) -> bool {
        match self {
            Self::Held { .. } | Self::NotThere { .. } | Self::AsksForInput | Self::Barred(_) => false,
            Self::Upstream(_) | Self::TooLarge | Self::Busy => true,
            Self::TimedOut { may_have_run, .. }
            | Self::Lost { may_have_run, .. }
            | Self::Cancelled { may_have_run } => *may_have_run,
        }
    }

    pub(crate) fn hints(&self) -> &[String] {
        match self {
            Self::NotThere { missing, .. } => &missing.hints,
            _ => &[],
        }
    }

    fn of(error: UpstreamError, deadline: Duration) -> Self {
        match error {
            UpstreamError::Rpc(error) => Self::Upstream(error),
            UpstreamError::Cancelled => Self::Cancelled { may_have_run: true },
            UpstreamError::TimedOut => Self::TimedOut { deadline, may_have_run: true },
            UpstreamError::TooLarge => Self::TooLarge,
            UpstreamError::Busy => Self::Busy,
            UpstreamError::Closed { why, may_have_run } => Self::Lost { why, may_have_run },
            UpstreamError::Refused(_) | UpstreamError::Denied { .. } | UpstreamError::EndedInProbe(_) => {
                Self::Barred(error.to_string())
            }
        }
    }

    /// What it says of the server; nothing where that could not show what it can.
    fn end(&self) -> Option<CallEnd> {
        match self {
            Self::Upstream(_) | Self::AsksForInput | Self::TooLarge | Self::Busy => Some(CallEnd::Answered),
            Self::Lost { .. } => Some(CallEnd::Unanswered(NoAnswer::Lost)),
            Self::Barred(_) => Some(CallEnd::Unanswered(NoAnswer::Barred)),
            Self::TimedOut { deadline, .. } => (*deadline >= FAIR_WAIT).then_some(CallEnd::Unanswered(NoAnswer::Late)),
            Self::Held { .. } | Self::NotThere { .. } | Self::Cancelled { .. } => None,
        }
    }

    fn outcome(&self) -> &'static str {
        match self {
            Self::Upstream(_) | Self::AsksForInput => "error",
            Self::TimedOut { .. } => "timed_out",
            Self::Cancelled { .. } => "cancelled",
            _ => "lost",
        }
    }
}

impl From<LinkMissing> for CallFailure {
    fn from(missing: LinkMissing) -> Self {
        let phase = missing.phase.map(Phase::name);
        Self::NotThere { missing, phase }
    }
}

impl Hosting {
    /// Calls a tool, and gives the text of its result. Whether the caller may call it is for others to say; whether it
    /// is what was accepted is found out here, when its server is there.
    pub(crate) async fn pass_raw(
        &self,
        route: &Route,
        arguments: Value,
        deadline: Duration,
        context: &Context,
        session: Option<&SessionId>,
    ) -> Result<RawAnswer, CallFailure> {
        let within = Within::from_now(deadline);
        // However often it is sent, it is one call to whoever counts those that fail.
        let mut sent = None;
        for _ in 1..ATTEMPTS {
            match self.pass_once(route, arguments.clone(), within, context, session, &mut sent).await {
                // It has just ended, and the fleet is about to hear of it: nothing was sent, so nothing ran.
                Err(CallFailure::Lost { may_have_run: false, .. } | CallFailure::Barred(_))
                    if Instant::now() < within.until =>
                {
                    tokio::time::sleep(BETWEEN_ATTEMPTS).await;
                }
                answered => return answered,
            }
        }
        self.pass_once(route, arguments, within, context, session, &mut sent).await
    }

    async fn pass_once(
        &self,
        route: &Route,
        arguments: Value,
        within: Within,
        context: &Context,
        session: Option<&SessionId>,
        sent: &mut Option<Sent>,
    ) -> Result<RawAnswer, CallFailure> {
        let Within { deadline, until } = within;
        let begun = Instant::now();
        let link = async {
            match sent {
                None => self.0.fleet.admit(&route.server, START_PATIENCE).await,
                // It was admitted.
                Some(_) => self.0.fleet.await_link(&route.server, START_PATIENCE).await,
            }
        };
        let link = tokio::select! {
            link = timeout_at(until, link) => {
                link.map_err(|_| CallFailure::TimedOut { deadline, may_have_run: false })??
            }
            () = context.cancel.cancelled() => return Err(CallFailure::Cancelled { may_have_run: false }),
        };
        if self.is_held(PinKind::Tool, route) {
            return Err(CallFailure::Held { server: route.server.clone(), tool: route.name.clone() });
        }
        if let Some(sent) = sent.as_mut() {
            sent.again(Arc::clone(&link));
        }
        let sent = sent.get_or_insert_with(|| Sent::new(self, &route.server, Arc::clone(&link)));
        let call = relay::pass_raw(&link.upstream, params(route, arguments), &context.cancel);
        let answer = timeout_at(until, call).await.unwrap_or(Err(UpstreamError::TimedOut));
        let answer = answer.map_err(|error| CallFailure::of(error, deadline));
        let head = answer.as_ref().map(RawAnswer::head).unwrap_or_default();
        let answer = if head.asks_for_input { Err(CallFailure::AsksForInput) } else { answer };
        let (end, outcome) = match &answer {
            Ok(_) => (Some(CallEnd::Answered), if head.is_error { "tool_error" } else { "ok" }),
            Err(failure) => (failure.end(), failure.outcome()),
        };
        sent.ended(end);
        let event = AuditEvent::new(AuditKind::ToolCalled, outcome).by(&context.principal, session);
        let event = event.with_duration(begun.elapsed()).with("server", route.server.clone());
        self.0.audit.record(event.with("tool", short(&route.name)));
        answer
    }
}

fn params(route: &Route, arguments: Value) -> Value {
    let mut params = Map::from_iter([("name".to_owned(), Value::from(route.name.as_str()))]);
    if !arguments.is_null() {
        params.insert("arguments".to_owned(), arguments);
    }
    Value::Object(params)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn failures_have_the_kinds_that_the_sandbox_knows() {
        let deadline = Duration::from_secs(60);
        let seen = [
            UpstreamError::Rpc(RpcError::new(-32602, "bad arguments")),
            UpstreamError::Cancelled,
            UpstreamError::TimedOut,
            UpstreamError::TooLarge,
            UpstreamError::Busy,
            UpstreamError::Closed { may_have_run: false, why: "it is gone".into() },
            UpstreamError::Denied { status: 403, why: "HTTP 403".into() },
        ]
        .map(|error| {
            let failure = CallFailure::of(error, deadline);
            format!("{}, {}: {failure}", failure.kind().name(), failure.may_have_run())
        });
        insta::assert_snapshot!(seen.join("\n"), @r"
        upstream, true: bad arguments
        cancelled, true: the call was cancelled
        timeout, true: no answer came within 60 s
        limit, true: the answer is larger than 64 MiB, the most that is passed on
        limit, true: the answer is larger than 1 MiB, and too many such answers wait to be taken
        lost, false: it is gone
        lost, false: HTTP 403
        ");
    }

    #[test]
    fn a_short_deadline_of_the_codes_own_says_nothing_of_the_server() {
        let end = |seconds| CallFailure::of(UpstreamError::TimedOut, Duration::from_secs(seconds)).end();
        assert_eq!((end(1), end(60)), (None, Some(CallEnd::Unanswered(NoAnswer::Late))));
    }

    #[test]
    fn a_tool_is_called_by_its_own_name() {
        let route = Route { server: "s".into(), uuid: "u".into(), name: "t".into() };
        assert_eq!(params(&route, json!({"a": 1})), json!({"name": "t", "arguments": {"a": 1}}));
        assert_eq!(params(&route, Value::Null), json!({"name": "t"}));
    }
}
