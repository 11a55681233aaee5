//! Calls that continue as tasks (SEP-2663).

use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{CallToolResponse, CallToolResult, CreateTaskResult, InputRequest};
use rmcp::task_manager::{TaskContext, TaskExit, TaskManager, TaskOptions};
use serde_json::Value;

use super::calls;
use super::script::TaskScript;
use super::template::fill;

/// Longer than any scenario waits.
const MAX_SECONDS: f64 = 60.0;

/// Starts a task; the response contains its id.
pub(super) fn start(tasks: &TaskManager, script: &TaskScript, result: &Value, values: Value) -> CallToolResponse {
    let (script, result) = (script.clone(), result.clone());
    let work = |context: TaskContext| -> rmcp::task_manager::TaskFuture {
        Box::pin(async move { work(&context, &script, &result, values).await })
    };
    CreateTaskResult::new(tasks.spawn(TaskOptions::default(), work)).into()
}

/// Does the work of the task within the call, for clients without tasks.
pub(super) async fn run_in_call(
    script: &TaskScript,
    result: &Value,
    values: &Value,
) -> Result<CallToolResponse, ErrorData> {
    tokio::time::sleep(duration(script, values)).await;
    finish(script, result, values).map(Into::into)
}

async fn work(
    context: &TaskContext,
    script: &TaskScript,
    result: &Value,
    mut values: Value,
) -> Result<CallToolResult, TaskExit> {
    tokio::select! {
        () = context.cancelled() => return Err(TaskExit::Cancelled),
        () = tokio::time::sleep(duration(script, &values)) => {}
    }
    let mut requests = Vec::new();
    for (key, request) in &script.input_requests {
        let request: InputRequest = serde_json::from_value(fill(request, &values))
            .map_err(|error| TaskExit::Error(ErrorData::internal_error(error.to_string(), None)))?;
        requests.push(async move { Ok::<_, TaskExit>((key, context.request_input(key, request).await?)) });
    }
    for (key, response) in futures_util::future::try_join_all(requests).await? {
        values["responses"][key] = response;
    }
    finish(script, result, &values).map_err(TaskExit::Error)
}

fn duration(script: &TaskScript, values: &Value) -> Duration {
    let seconds = script.seconds_argument.as_ref().and_then(|name| values["arguments"][name].as_f64());
    let seconds = seconds.filter(|seconds| (0.0..=MAX_SECONDS).contains(seconds)).unwrap_or_default();
    Duration::from_secs_f64(seconds) + Duration::from_millis(script.duration_ms)
}

fn finish(script: &TaskScript, result: &Value, values: &Value) -> Result<CallToolResult, ErrorData> {
    if let Some(error) = &script.error {
        return Err(ErrorData::internal_error(error.clone(), None));
    }
    calls::complete(result, values)
}
