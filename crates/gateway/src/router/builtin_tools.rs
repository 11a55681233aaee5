//! Runs a built-in tool. The call ends when its caller disconnects.

use std::time::Duration;

use ringfence_core::{Failure, Kind};
use ringfence_mcp::client::Context;
use ringfence_session::CallResult;
use serde_json::Value;

use super::Gateway;
use super::questions::Questions;
use super::running_calls::{Rendering, Reply, RunningCall};
use crate::code::Caller;
use crate::detach_on_drop::DetachOnDrop;
use crate::reply::{self, ToolResult};
use crate::tools::arguments::{RunPython, SearchTools, ToolCall};

impl Gateway {
    /// Runs a tool. `tool` is its name.
    pub(super) async fn call_builtin_tool(
        &self,
        call: ToolCall,
        tool: &str,
        progress_token: Option<Value>,
        context: &Context,
    ) -> Result<Reply, Failure> {
        match self.start_call(call, context)? {
            Started::Running(call) => self.running_calls.wait(call, tool, progress_token, context).await,
            Started::Immediate(call) => self.call_immediate_tool(call, context).await.map(Reply::Result),
        }
    }

    /// Starts a call that runs code or a command.
    fn start_call(&self, call: ToolCall, context: &Context) -> Result<Started, Failure> {
        let sessions = self.sessions()?.clone();
        let (sender, questions) = Questions::of_client(context).filter(|_| sessions.network().ask).unzip();
        let (cancel, own_cancel) = RunningCall::cancellation(questions.as_ref(), context);
        let principal = context.principal.clone();
        let (max_text, max_timeout) = (sessions.max_result_text(), sessions.max_timeout());
        let (work, rendering) = match call {
            ToolCall::ExecuteCode(mut request, servers) => {
                request.questions.clone_from(&sender);
                let clamped = ClampedTimeout::new(&mut request.timeout, max_timeout);
                let work = match self.code.clone() {
                    None if !servers.is_empty() => return Err(no_servers()),
                    None => DetachOnDrop::new(async move {
                        Ok(clamped.note_in(sessions.execute(&principal, request, cancel).await?))
                    }),
                    Some(code) => {
                        let caller = self.caller(context);
                        DetachOnDrop::new(async move {
                            Ok(clamped.note_in(code.execute_code(&caller, request, &servers, cancel).await?))
                        })
                    }
                };
                (work, Rendering::Run)
            }
            ToolCall::RunPython(RunPython { code, servers, mut timeout }) => {
                let mode = self.code.clone().ok_or_else(no_servers)?;
                let clamped = ClampedTimeout::new(&mut timeout, mode.settings().max_timeout.min(max_timeout));
                let rendering = Rendering::Python(mode.settings().output_mode);
                let caller = Caller { questions: sender, ..self.caller(context) };
                let run = async move {
                    Ok(clamped.note_in(mode.run_python(&caller, code, &servers, timeout, cancel).await?))
                };
                (DetachOnDrop::new(run), rendering)
            }
            ToolCall::ExecuteCommand(mut request) => {
                request.questions = sender;
                let clamped = ClampedTimeout::new(&mut request.timeout, max_timeout);
                let run = async move { Ok(clamped.note_in(sessions.run_command(&principal, request, cancel).await?)) };
                (DetachOnDrop::new(run), Rendering::Run)
            }
            other => return Ok(Started::Immediate(other)),
        };
        Ok(Started::Running(RunningCall { work, rendering, max_text, questions, cancel: own_cancel }))
    }

    async fn call_immediate_tool(&self, call: ToolCall, context: &Context) -> Result<ToolResult, Failure> {
        let sessions = self.sessions()?.clone();
        let principal = context.principal.clone();
        match call {
            ToolCall::SearchTools(SearchTools { query, limit }) => {
                let mode = self.code.as_ref().ok_or_else(no_servers)?;
                Ok(reply::found_tools(&Box::pin(mode.search(&self.caller(context), &query, limit)).await))
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
                let file = Box::pin(sessions.read_file(&principal, &id, &path, range)).await?;
                Ok(reply::file(&id, file, range, sessions.max_result_text()))
            }
            ToolCall::WriteFile(id, path, content) => {
                Ok(reply::written_file(&Box::pin(sessions.write_file(&principal, &id, &path, content)).await?))
            }
            ToolCall::ListFiles(id, path) => {
                let directory = Box::pin(sessions.list_files(&principal, &id, &path)).await?;
                Ok(reply::directory(&directory, sessions.max_result_text()))
            }
            ToolCall::GetVolumePath => Ok(reply::volumes(sessions.volumes())),
            ToolCall::ExecuteCode(..) | ToolCall::RunPython(_) | ToolCall::ExecuteCommand(_) => {
                Err(Failure::new(Kind::Internal, "a call that runs code was not started"))
            }
        }
    }
}

/// A timeout that was longer than the maximum.
struct ClampedTimeout(Option<Duration>);

impl ClampedTimeout {
    /// Shortens a requested timeout to the maximum.
    fn new(requested: &mut Option<Duration>, max: Duration) -> Self {
        if requested.is_none_or(|timeout| timeout <= max) {
            return Self(None);
        }
        *requested = Some(max);
        Self(Some(max))
    }

    /// Adds a notice to the result of the call.
    fn note_in(self, mut result: CallResult) -> CallResult {
        let note = |max: Duration| format!("the timeout was shortened to the maximum of {} s", max.as_secs());
        result.notices.extend(self.0.map(note));
        result
    }
}

enum Started {
    Running(RunningCall),
    /// A tool without code, which has no questions.
    Immediate(ToolCall),
}

fn no_servers() -> Failure {
    Failure::new(Kind::Configuration, "no MCP servers are configured, so code cannot call any")
        .hint("omit `servers`, or add a server with `ringfence server add`")
}
