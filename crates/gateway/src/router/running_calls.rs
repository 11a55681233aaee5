//! Calls of built-in tools that run code or a command, and their questions to the client.
//!
//! A client of the legacy era gets a question as a request while its call runs. One of the modern era gets it as the
//! result, and comes back with another request; meanwhile the call waits here under a name that cannot be guessed and
//! that is valid only for its owner.

use std::collections::HashMap;
use std::time::Duration;

use ringfence_config::OutputMode;
use ringfence_core::sync::Mutex;
use ringfence_core::{Failure, Principal};
use ringfence_mcp::client::Context;
use ringfence_mcp::era::Era;
use ringfence_mcp::rpc::RpcError;
use ringfence_session::CallResult;
use serde_json::{Value, json};
use tokio::time::{Instant, interval_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::questions::Questions;
use crate::detach_on_drop::DetachOnDrop;
use crate::reply::{self, SessionAccess, ToolResult};

/// Time between two progress notifications.
const PROGRESS_PERIOD: Duration = Duration::from_secs(5);

/// Maximum time for a client to come back for the result.
const RETURN_TIMEOUT: Duration = Duration::from_mins(10);

/// Maximum number of waiting calls of a principal; the oldest are dropped first.
const MAX_CALLS: usize = 64;

/// Distinguishes our `requestState` values from those of servers.
const STATE_PREFIX: &str = "ringfence-call:";

/// The key of the only question in a result.
const QUESTION: &str = "network";

/// The result of a built-in tool, or a request for input.
pub(super) enum Reply {
    Result(ToolResult),
    InputRequired(Value),
}

impl Reply {
    pub(super) fn into_json(self) -> Value {
        match self {
            Self::Result(result) => result.into_json(),
            Self::InputRequired(request) => request,
        }
    }
}

/// The form in which the result is rendered.
#[derive(Clone, Copy)]
pub(super) enum Form {
    Run,
    Python(OutputMode),
}

/// The form of a result, and how later calls reach its session.
#[derive(Clone, Copy)]
pub(super) struct Rendering {
    pub(super) form: Form,
    pub(super) access: SessionAccess,
}

impl Rendering {
    fn render(self, result: &CallResult, max_text: usize) -> ToolResult {
        match self.form {
            Form::Run => reply::run_result(result, self.access, max_text),
            Form::Python(mode) => reply::python_result(result, self.access, mode, max_text),
        }
    }
}

/// A call that runs. Dropping it cancels the call if it waits for a client of the modern era.
pub(super) struct RunningCall {
    pub(super) work: DetachOnDrop<CallResult>,
    pub(super) rendering: Rendering,
    /// Maximum size of the text of the result.
    pub(super) max_text: usize,
    pub(super) questions: Option<Questions>,
    /// Cancels the call, independently of the request that started it.
    pub(super) cancel: Option<(CancellationToken, DropGuard)>,
}

impl RunningCall {
    /// Returns the token for the work of a call with these questions.
    pub(super) fn cancellation(
        questions: Option<&Questions>,
        context: &Context,
    ) -> (CancellationToken, Option<(CancellationToken, DropGuard)>) {
        if questions.is_none() || context.era == Era::Legacy {
            return (context.cancel.clone(), None);
        }
        let own = CancellationToken::new();
        (own.clone(), Some((own.clone(), own.drop_guard())))
    }

    fn respond(&mut self, response: &Value) {
        if let Some(questions) = &mut self.questions {
            questions.respond(response);
        }
    }
}

/// The calls that wait for their clients.
#[derive(Default)]
pub(super) struct RunningCalls(Mutex<HashMap<String, WaitingCall>>);

struct WaitingCall {
    call: RunningCall,
    principal: Principal,
    /// Only a request for the same tool continues the call.
    tool: String,
    expires: Instant,
}

impl RunningCalls {
    /// Waits for the result, with progress notifications and questions. `tool` is the name of the tool.
    pub(super) async fn wait(
        &self,
        mut call: RunningCall,
        tool: &str,
        progress_token: Option<Value>,
        context: &Context,
    ) -> Result<Reply, Failure> {
        let (rendering, max_text) = (call.rendering, call.max_text);
        let result = match (&mut call.questions, &call.cancel) {
            (Some(questions), Some((cancel, _))) => tokio::select! {
                biased;
                result = &mut call.work => result,
                request = questions.next() => return Ok(Reply::InputRequired(self.store(call, &request, tool, context))),
                () = context.cancel.cancelled() => {
                    cancel.cancel();
                    call.work.await
                }
            },
            (questions, _) => with_progress(&mut call.work, questions.as_mut(), progress_token, context).await,
        };
        result.map(|result| Reply::Result(rendering.render(&result, max_text)))
    }

    fn store(&self, call: RunningCall, request: &Value, tool: &str, context: &Context) -> Value {
        let state = format!("{STATE_PREFIX}{}", uuid::Uuid::new_v4());
        let now = Instant::now();
        let mut calls = self.0.lock();
        calls.retain(|_, call| call.expires > now);
        let own: Vec<_> = calls.iter().filter(|(_, call)| call.principal == context.principal).collect();
        if own.len() >= MAX_CALLS {
            let oldest = own.iter().min_by_key(|(_, call)| call.expires).map(|(state, _)| (*state).clone());
            oldest.and_then(|oldest| calls.remove(&oldest));
        }
        let (principal, tool, expires) = (context.principal.clone(), tool.to_owned(), now + RETURN_TIMEOUT);
        calls.insert(state.clone(), WaitingCall { call, principal, tool, expires });
        json!({"resultType": "input_required", "inputRequests": {QUESTION: request}, "requestState": state})
    }

    /// Returns the call that a request continues, with the response to its question.
    pub(super) fn take(&self, params: &Value, tool: &str, context: &Context) -> Result<Option<RunningCall>, RpcError> {
        let Some(state) = params["requestState"].as_str().filter(|state| state.starts_with(STATE_PREFIX)) else {
            return Ok(None);
        };
        let mut calls = self.0.lock();
        let is_valid = |call: &WaitingCall| {
            call.principal == context.principal && call.tool == tool && call.expires > Instant::now()
        };
        let found = calls.get(state).is_some_and(is_valid).then(|| calls.remove(state)).flatten();
        let mut call = found.map(|found| found.call).ok_or_else(|| {
            let message = "the requestState is unknown or has expired; send the request again";
            RpcError::new(RpcError::INVALID_PARAMS, message)
        })?;
        call.respond(&params["inputResponses"][QUESTION]);
        Ok(Some(call))
    }
}

/// Waits for a call, sends progress notifications if the client has requested them, and asks it questions.
async fn with_progress<T: Send + 'static>(
    mut work: &mut DetachOnDrop<T>,
    questions: Option<&mut Questions>,
    progress_token: Option<Value>,
    context: &Context,
) -> Result<T, Failure> {
    let token = progress_token.filter(|_| context.sink.is_open());
    if token.is_none() && questions.is_none() {
        return work.await;
    }
    let start = Instant::now();
    let mut ticks = interval_at(start + PROGRESS_PERIOD, PROGRESS_PERIOD);
    let asking = async {
        match questions {
            Some(questions) => questions.ask(context).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(asking);
    loop {
        tokio::select! {
            result = &mut work => return result,
            never = &mut asking => match never {},
            now = ticks.tick(), if token.is_some() => {
                let elapsed = now.duration_since(start).as_secs();
                let message = format!("running for {elapsed} s");
                let progress = json!({"progressToken": token, "progress": elapsed, "message": message});
                context.sink.notify("notifications/progress", Some(progress));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ringfence_mcp::client::MessageSink;
    use ringfence_mcp::rpc::Id;

    use super::*;

    fn context(principal: &str) -> Context {
        Context {
            principal: Principal::named(principal),
            era: Era::Modern,
            capabilities: Arc::default(),
            sink: MessageSink::closed(),
            client: None,
            connection: None,
            cancel: CancellationToken::new(),
            request: Id::Number(1),
            declares_version: true,
        }
    }

    fn call() -> RunningCall {
        let work = DetachOnDrop::new(std::future::pending());
        let rendering = Rendering { form: Form::Run, access: SessionAccess::ByIdOnly };
        RunningCall { work, rendering, max_text: 16 << 10, questions: None, cancel: None }
    }

    #[tokio::test]
    async fn waiting_calls_of_one_principal_do_not_end_those_of_others() {
        let (calls, victim, other) = (RunningCalls::default(), context("victim"), context("other"));
        let waiting = calls.store(call(), &Value::Null, "execute_code", &victim);
        let states: Vec<Value> = (0..300).map(|_| calls.store(call(), &Value::Null, "execute_code", &other)).collect();
        assert_eq!(calls.0.lock().len(), 1 + MAX_CALLS);
        assert!(calls.take(&states[0], "execute_code", &other).is_err(), "the oldest are dropped");
        assert!(calls.take(&states[299], "execute_code", &victim).is_err(), "a call belongs to its principal");
        assert!(calls.take(&states[299], "execute_command", &other).is_err(), "a call belongs to its tool");
        assert!(calls.take(&states[299], "execute_code", &other).unwrap().is_some());
        assert!(calls.take(&waiting, "execute_code", &victim).unwrap().is_some());
    }
}
