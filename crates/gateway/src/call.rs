//! Runs one tool call: attended by progress notifications, ended when the caller goes away.

use std::time::Duration;

use ringfence_core::{Failure, Kind};
use rmcp::model::CallToolResult;
use serde_json::{Value, json};
use tokio::time::{Instant, interval_at};

use crate::arguments::{Call, RunPython, SearchTools};
use crate::client::Context;
use crate::to_its_end::ToItsEnd;
use crate::{Gateway, reply};

/// How often a client that asked for progress hears of it.
const PROGRESS_PERIOD: Duration = Duration::from_secs(5);

impl Gateway {
    pub(crate) async fn answer(
        &self,
        call: Call,
        token: Option<Value>,
        context: &Context,
    ) -> Result<CallToolResult, Failure> {
        let sessions = self.sessions()?.clone();
        let (principal, cancel) = (context.principal.clone(), context.cancel.clone());
        match call {
            Call::ExecuteCode(request, servers) => {
                let Some(code) = self.code_mode().cloned() else {
                    if !servers.is_empty() {
                        return Err(no_servers());
                    }
                    let work = ToItsEnd::new(async move { sessions.execute(&principal, request, cancel).await });
                    return attend(work, token, context).await.map(|answer| reply::answer(&answer));
                };
                let caller = self.caller(context);
                let work = ToItsEnd::new(async move { code.execute(&caller, request, &servers, cancel).await });
                attend(work, token, context).await.map(|answer| reply::answer(&answer))
            }
            Call::RunPython(RunPython { code, servers, timeout }) => {
                let mode = self.code_mode().cloned().ok_or_else(no_servers)?;
                let (output_mode, caller) = (mode.settings().output_mode, self.caller(context));
                let work = ToItsEnd::new(async move { mode.run(&caller, code, &servers, timeout, cancel).await });
                match attend(work, token, context).await {
                    Ok(answer) => Ok(reply::code_answer(&answer, output_mode)),
                    Err(failure) if failure.kind == Kind::Validation => {
                        Ok(reply::validation_answer(&failure, output_mode))
                    }
                    Err(failure) => Err(failure),
                }
            }
            Call::SearchTools(SearchTools { query, limit }) => {
                let mode = self.code_mode().ok_or_else(no_servers)?;
                Ok(reply::found_tools(&Box::pin(mode.search(&self.caller(context), &query, limit)).await))
            }
            Call::ExecuteCommand(request) => {
                let work = ToItsEnd::new(async move { sessions.run_command(&principal, request, cancel).await });
                attend(work, token, context).await.map(|answer| reply::answer(&answer))
            }
            Call::GetSessions(None) => Ok(reply::sessions(&Box::pin(sessions.list(&principal)).await)),
            Call::GetSessions(Some(id)) => Ok(reply::sessions(&[Box::pin(sessions.info(&principal, &id)).await?])),
            Call::StopSession(id) => {
                let stopping = id.clone();
                let stopped = ToItsEnd::new(async move { sessions.stop(&principal, &stopping).await }).await?;
                Ok(reply::stopped(&id, stopped))
            }
            // Boxed, or every call would have room for them.
            Call::ReadFile(id, path, range) => {
                Ok(reply::file(&id, Box::pin(sessions.read_file(&principal, &id, &path, range)).await?))
            }
            Call::WriteFile(id, path, content) => {
                Ok(reply::written(&Box::pin(sessions.write_file(&principal, &id, &path, content)).await?))
            }
            Call::ListFiles(id, path) => {
                Ok(reply::directory(&Box::pin(sessions.list_files(&principal, &id, &path)).await?))
            }
            Call::GetVolumePath => Ok(reply::volumes(sessions.volumes())),
        }
    }
}

fn no_servers() -> Failure {
    Failure::new(Kind::Configuration, "this server has no servers that code could call")
        .hint("call it without `servers`; whoever runs it adds some with `ringfence server add`")
}

/// Does the work of a call, and says how it gets on where it is asked to.
async fn attend<T: Send + 'static>(
    mut work: ToItsEnd<T>,
    token: Option<Value>,
    context: &Context,
) -> Result<T, Failure> {
    let Some(token) = token.filter(|_| context.outlet.is_open()) else { return work.await };
    let start = Instant::now();
    let mut ticks = interval_at(start + PROGRESS_PERIOD, PROGRESS_PERIOD);
    loop {
        tokio::select! {
            answer = &mut work => return answer,
            now = ticks.tick() => {
                let elapsed = now.duration_since(start).as_secs();
                let message = format!("running for {elapsed} s");
                let progress = json!({"progressToken": token, "progress": elapsed, "message": message});
                context.outlet.notify("notifications/progress", Some(progress));
            }
        }
    }
}
