//! Runs a built-in tool. The call ends when its caller disconnects.

use std::time::Duration;

use ringfence_config::CODE_FLAVOR;
use ringfence_core::{Failure, Kind};
use ringfence_mcp::client::Context;
use ringfence_session::{CallResult, CodeRequest, CommandRequest};
use serde_json::Value;

use super::Gateway;
use super::questions::Questions;
use super::running_calls::{Form, Rendering, Reply, RunningCall};
use crate::code::Caller;
use crate::default_sessions::{Creation, TemplateChoice, Wanted};
use crate::detach_on_drop::DetachOnDrop;
use crate::reply::{self, ToolResult};
use crate::tools::arguments::{SearchTools, ToolCall};

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
            ToolCall::ExecuteCode(choice, mut request, servers) => {
                let code = self.code.clone();
                if code.is_none() && !servers.is_empty() {
                    return Err(no_servers());
                }
                let wanted =
                    self.wanted(request.template.as_deref(), request.flavor.clone(), Creation::ForCode, context)?;
                let session = self.call_session(choice, wanted, context)?;
                let rendering = Rendering { form: Form::Run, access: session.access() };
                request.questions = sender;
                let clamped = ClampedTimeout::new(&mut request.timeout, max_timeout);
                let caller = self.caller(context);
                let call = move |session_id| {
                    let request = CodeRequest { session_id, ..request.clone() };
                    let (code, caller, servers) = (code.clone(), caller.clone(), servers.clone());
                    let (sessions, cancel) = (sessions.clone(), cancel.clone());
                    async move {
                        match code {
                            Some(code) => code.execute_code(&caller, request, &servers, cancel).await,
                            None => sessions.execute(&caller.principal, request, cancel).await,
                        }
                    }
                };
                let run = async move { Ok(clamped.note_in(session.run(call).await?)) };
                (DetachOnDrop::new(run), rendering)
            }
            ToolCall::RunPython(choice, mut call) => {
                let mode = self.code.clone().ok_or_else(no_servers)?;
                let clamped = ClampedTimeout::new(&mut call.timeout, mode.settings().max_timeout.min(max_timeout));
                let template = Some(mode.settings().template.as_str());
                let wanted = self.wanted(template, Some(CODE_FLAVOR.to_owned()), Creation::ForCode, context)?;
                let session = self.call_session(choice, wanted, context)?;
                let rendering = Rendering { form: Form::Python(mode.settings().output_mode), access: session.access() };
                let caller = Caller { questions: sender, ..self.caller(context) };
                let call = move |id| {
                    let (mode, caller, call, cancel) = (mode.clone(), caller.clone(), call.clone(), cancel.clone());
                    async move { mode.run_python(&caller, id, call, cancel).await }
                };
                let run = async move { Ok(clamped.note_in(session.run(call).await?)) };
                (DetachOnDrop::new(run), rendering)
            }
            ToolCall::ExecuteCommand(choice, mut request) => {
                let template = request.template.as_deref();
                let mut wanted = self.wanted(template, request.flavor.clone(), Creation::ForOtherUse, context)?;
                if request.template.is_none() {
                    wanted.template = wanted.template.or_last_used();
                }
                let session = self.call_session(choice, wanted, context)?;
                let rendering = Rendering { form: Form::Run, access: session.access() };
                request.questions = sender;
                let clamped = ClampedTimeout::new(&mut request.timeout, max_timeout);
                let call = move |session_id| {
                    let request = CommandRequest { session_id, ..request.clone() };
                    let (sessions, principal, cancel) = (sessions.clone(), principal.clone(), cancel.clone());
                    async move { sessions.run_command(&principal, request, cancel).await }
                };
                let run = async move { Ok(clamped.note_in(session.run(call).await?)) };
                (DetachOnDrop::new(run), rendering)
            }
            other => return Ok(Started::Immediate(other)),
        };
        Ok(Started::Running(RunningCall { work, rendering, max_text, questions, cancel: own_cancel }))
    }

    /// The default session of a call with this template, or with the default one.
    fn wanted(
        &self,
        template: Option<&str>,
        flavor: Option<String>,
        creation: Creation,
        context: &Context,
    ) -> Result<Wanted, Failure> {
        let sessions = self.sessions()?;
        let name =
            sessions.template_name(template).map_err(|failure| sessions.refused(&context.principal, None, failure))?;
        Ok(Wanted { template: TemplateChoice::Named(name), flavor, creation })
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
            ToolCall::ReadFile(choice, path, range) => {
                let session = Box::pin(self.file_session(choice, context)).await?;
                let read = Box::pin(sessions.read_file(&principal, &session.id, &path, range)).await;
                let id = session.id.clone();
                session.render(read, |content| reply::file(&id, content, range, sessions.max_result_text())).await
            }
            ToolCall::WriteFile(choice, path, content) => {
                let session = Box::pin(self.file_session(choice, context)).await?;
                let written = Box::pin(sessions.write_file(&principal, &session.id, &path, content)).await;
                session.render(written, |written| reply::written_file(&written)).await
            }
            ToolCall::ListFiles(choice, path) => {
                let session = Box::pin(self.file_session(choice, context)).await?;
                let listed = Box::pin(sessions.list_files(&principal, &session.id, &path)).await;
                session.render(listed, |directory| reply::directory(&directory, sessions.max_result_text())).await
            }
            ToolCall::GetVolumePath => Ok(reply::volumes(sessions.volumes())),
            ToolCall::ExecuteCode(..) | ToolCall::RunPython(..) | ToolCall::ExecuteCommand(..) => {
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
