//! Runs a built-in tool, with progress notifications. The call ends when its caller disconnects.

use std::time::Duration;

use ringfence_core::{Failure, Kind};
use ringfence_mcp::client::Context;
use serde_json::{Value, json};
use tokio::time::{Instant, interval_at};

use super::Gateway;
use crate::detach_on_drop::DetachOnDrop;
use crate::reply::{self, ToolResult};
use crate::tools::arguments::{RunPython, SearchTools, ToolCall};

/// Time between two progress notifications.
const PROGRESS_PERIOD: Duration = Duration::from_secs(5);

impl Gateway {
    pub(super) async fn call_builtin_tool(
        &self,
        call: ToolCall,
        progress_token: Option<Value>,
        context: &Context,
    ) -> Result<ToolResult, Failure> {
        let sessions = self.sessions()?.clone();
        let (principal, cancel) = (context.principal.clone(), context.cancel.clone());
        match call {
            ToolCall::ExecuteCode(request, servers) => {
                let Some(code) = self.code.clone() else {
                    if !servers.is_empty() {
                        return Err(no_servers());
                    }
                    let work = DetachOnDrop::new(async move { sessions.execute(&principal, request, cancel).await });
                    return with_progress(work, progress_token, context).await.map(|answer| reply::run_result(&answer));
                };
                let caller = self.caller(context);
                let work =
                    DetachOnDrop::new(async move { code.execute_code(&caller, request, &servers, cancel).await });
                with_progress(work, progress_token, context).await.map(|answer| reply::run_result(&answer))
            }
            ToolCall::RunPython(RunPython { code, servers, timeout }) => {
                let mode = self.code.clone().ok_or_else(no_servers)?;
                let (output_mode, caller) = (mode.settings().output_mode, self.caller(context));
                let work =
                    DetachOnDrop::new(async move { mode.run_python(&caller, code, &servers, timeout, cancel).await });
                match with_progress(work, progress_token, context).await {
                    Ok(answer) => Ok(reply::python_result(&answer, output_mode)),
                    Err(failure) if failure.kind == Kind::Validation => {
                        Ok(reply::python_validation_error(&failure, output_mode))
                    }
                    Err(failure) => Err(failure),
                }
            }
            ToolCall::SearchTools(SearchTools { query, limit }) => {
                let mode = self.code.as_ref().ok_or_else(no_servers)?;
                Ok(reply::found_tools(&Box::pin(mode.search(&self.caller(context), &query, limit)).await))
            }
            ToolCall::ExecuteCommand(request) => {
                let work = DetachOnDrop::new(async move { sessions.run_command(&principal, request, cancel).await });
                with_progress(work, progress_token, context).await.map(|answer| reply::run_result(&answer))
            }
            ToolCall::GetSessions(None) => Ok(reply::sessions(&Box::pin(sessions.list(&principal)).await)),
            ToolCall::GetSessions(Some(id)) => Ok(reply::sessions(&[Box::pin(sessions.info(&principal, &id)).await?])),
            ToolCall::StopSession(id) => {
                let stopping = id.clone();
                let stopped = DetachOnDrop::new(async move { sessions.stop(&principal, &stopping).await }).await?;
                Ok(reply::stopped(&id, stopped))
            }
            // Boxed: otherwise the future of every call would have the size of these.
            ToolCall::ReadFile(id, path, range) => {
                Ok(reply::file(&id, Box::pin(sessions.read_file(&principal, &id, &path, range)).await?))
            }
            ToolCall::WriteFile(id, path, content) => {
                Ok(reply::written_file(&Box::pin(sessions.write_file(&principal, &id, &path, content)).await?))
            }
            ToolCall::ListFiles(id, path) => {
                Ok(reply::directory(&Box::pin(sessions.list_files(&principal, &id, &path)).await?))
            }
            ToolCall::GetVolumePath => Ok(reply::volumes(sessions.volumes())),
        }
    }
}

fn no_servers() -> Failure {
    Failure::new(Kind::Configuration, "no MCP servers are configured, so code cannot call any")
        .hint("omit `servers`, or add a server with `ringfence server add`")
}

/// Waits for a call, and sends progress notifications if the client has requested them.
async fn with_progress<T: Send + 'static>(
    mut work: DetachOnDrop<T>,
    progress_token: Option<Value>,
    context: &Context,
) -> Result<T, Failure> {
    let Some(token) = progress_token.filter(|_| context.sink.is_open()) else { return work.await };
    let start = Instant::now();
    let mut ticks = interval_at(start + PROGRESS_PERIOD, PROGRESS_PERIOD);
    loop {
        tokio::select! {
            result = &mut work => return result,
            now = ticks.tick() => {
                let elapsed = now.duration_since(start).as_secs();
                let message = format!("running for {elapsed} s");
                let progress = json!({"progressToken": token, "progress": elapsed, "message": message});
                context.sink.notify("notifications/progress", Some(progress));
            }
        }
    }
}
