//! Executes the script of a tool.

use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, LoggingLevel, LoggingMessageNotificationParam,
    ProgressNotificationParam, ServerRequest,
};
use rmcp::service::RequestContext;
use rmcp::task_manager::TaskManager;
use rmcp::{ErrorData, RoleServer};
use serde_json::{Value, json};

use super::input_rounds::{InputRounds, Next, RepeatedCall};
use super::script::{Script, TOOLS, TaskSupport};
use super::subscribers::Subscribers;
use super::tasks;
use super::template::fill;

/// Keeps two notifications from being sent in one packet.
const NOTIFICATION_INTERVAL: Duration = Duration::from_millis(20);

/// State of the server across calls.
#[derive(Default)]
pub(super) struct State {
    pub(super) input_rounds: InputRounds,
    pub(super) subscribers: Subscribers,
    pub(super) tasks: TaskManager,
}

impl State {
    pub(super) async fn call(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let found = TOOLS.iter().find(|found| found.tool.name == request.name);
        let found = found.ok_or_else(|| ErrorData::invalid_params(format!("no tool {}", request.name), None))?;
        let script = &found.script;
        let capabilities = context.client_capabilities().unwrap_or_default();
        check_capabilities(script, &capabilities)?;
        if let Some(list) = script.list_change {
            self.subscribers.notify(list, context).await;
        }
        notify(script, context).await;
        tokio::time::sleep(Duration::from_millis(script.delay_ms)).await;

        let mut values = json!({
            "arguments": request.arguments.unwrap_or_default(),
            "responses": request.input_responses.clone().unwrap_or_default(),
        });
        if let Some(client_request) = &script.client_request {
            values["client_response"] = send_to_client(&fill(client_request, &values), context).await?;
        }
        let has_tasks = capabilities.supports_tasks();
        if !script.input_rounds.is_empty() {
            let responses = request.input_responses.as_ref();
            let call = RepeatedCall { responses, state: request.request_state.as_deref(), capabilities };
            if let Next::RequestInput(result) = self.input_rounds.next(script, &values, &call)? {
                return Ok(result.into());
            }
        }
        match &script.task {
            Some(task) if has_tasks => Ok(tasks::start(&self.tasks, task, &script.result, values)),
            Some(task) => tasks::run_in_call(task, &script.result, &values).await,
            None => complete(&script.result, &values).map(CallToolResponse::Complete),
        }
    }
}

/// Fills in a result. For clients of the older era, rmcp removes `resultType`.
pub(super) fn complete<T: serde::de::DeserializeOwned>(template: &Value, values: &Value) -> Result<T, ErrorData> {
    let mut filled = fill(template, values);
    filled["resultType"] = json!("complete");
    serde_json::from_value(filled).map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

fn check_capabilities(script: &Script, capabilities: &ClientCapabilities) -> Result<(), ErrorData> {
    let required = script.required_capabilities.as_ref();
    if let Some(required) = required.filter(|required| required.sampling.is_some() && capabilities.sampling.is_none()) {
        return Err(ErrorData::missing_required_client_capability(required.clone()));
    }
    let needs_tasks = script.task.as_ref().is_some_and(|task| task.support == TaskSupport::Required);
    if needs_tasks && !capabilities.supports_tasks() {
        let required = ClientCapabilities::builder().enable_tasks().build();
        return Err(ErrorData::missing_required_client_capability(required));
    }
    Ok(())
}

/// Sends logs and progress. If the client has gone, only these are lost.
async fn notify(script: &Script, context: &RequestContext<RoleServer>) {
    let requested_level = context.meta.log_level();
    let logs = script.logs.iter().chain(script.logs_on_request.iter().filter(|_| requested_level.is_some()));
    for text in logs {
        let level = requested_level.unwrap_or(LoggingLevel::Info);
        let message = LoggingMessageNotificationParam::new(level, json!(text)).with_logger("fixture");
        let _ = context.peer.notify_logging_message(message).await;
        tokio::time::sleep(NOTIFICATION_INTERVAL).await;
    }
    let Some(token) = context.meta.get_progress_token() else { return };
    for progress in &script.progress {
        let step = ProgressNotificationParam::new(token.clone(), *progress).with_total(100.0);
        let _ = context.peer.notify_progress(step.with_message(format!("{progress} of 100"))).await;
        tokio::time::sleep(NOTIFICATION_INTERVAL).await;
    }
}

async fn send_to_client(request: &Value, context: &RequestContext<RoleServer>) -> Result<Value, ErrorData> {
    let failed = |error: String| ErrorData::internal_error(error, None);
    let request: ServerRequest = serde_json::from_value(request.clone()).map_err(|error| failed(error.to_string()))?;
    let response = context.peer.send_request(request).await.map_err(|error| failed(error.to_string()))?;
    serde_json::to_value(response).map_err(|error| failed(error.to_string()))
}
