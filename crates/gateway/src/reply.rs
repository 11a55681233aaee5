//! Renders the results of the built-in tools for agents. No other module does.
//!
//! Each source has a separate content block: stdout, stderr, result, traceback, then the displayed items. The last block
//! is always written by the host, so that guest output cannot imitate it. `run_python` uses a different format, see
//! `python`.
//! The host chooses the fields of `structuredContent`; guest text only appears in string values.
//! All sizes are limited here, independently of the limits of sessions.

mod display;
mod excerpt;
mod files;
mod found_tools;
mod python;
mod terminal;
mod tool_result;
mod unfinished_calls;

use std::fmt::Write as _;

use ringfence_core::SessionId;
use ringfence_core::{Access, Volume, bytes};
use ringfence_session::{CallResult, SessionInfo, SessionStatus, Status, Stopped};
use serde_json::{Map, Value, json};

use excerpt::Excerpt;
pub(crate) use files::{directory, directory_fields, file, written_file};
pub(crate) use found_tools::found_tools;
pub(crate) use python::{python_result, python_validation_error};
pub(crate) use tool_result::ToolResult;
use unfinished_calls::UnfinishedCalls;

use crate::builtin_resources;
use crate::content::ContentBlock;

/// Number of fields of a successful run.
const COMMON_FIELDS: usize = 9;

/// The note for a result or error that the interpreter itself has shortened. Printed output is not shortened there.
const SHORTENED_NOTE: &str = "the result or the error is shortened: print the part that you need";

/// How later calls of a caller reach the session of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionAccess {
    /// It is the default session of the caller.
    WithoutId,
    ByIdOnly,
}

impl SessionAccess {
    /// Tells about a new session.
    fn describe_new(self, session: &SessionId) -> String {
        match self {
            Self::WithoutId => "this is a new session".to_owned(),
            Self::ByIdOnly => format!("new session {session}; pass session_id to continue"),
        }
    }
}

/// Renders the result of code or of a command.
pub(crate) fn run_result(answer: &CallResult, access: SessionAccess) -> ToolResult {
    let stdout = Excerpt::from_output(&answer.stdout);
    let stderr = Excerpt::from_output(&answer.stderr);
    let result = answer.result.as_deref().map(Excerpt::from_text);
    let traceback = answer.error.as_ref().map(|error| match error.traceback.trim_end() {
        "" => Excerpt::from_text(&format!("{}: {}", error.name, error.message)),
        traceback => Excerpt::from_text(traceback),
    });

    let mut content = Vec::new();
    content.extend(stdout.to_plain_text().map(ContentBlock::text));
    content.extend(stderr.to_plain_text().map(|text| ContentBlock::text(format!("stderr:\n{text}"))));
    content.extend(result.as_ref().and_then(Excerpt::to_plain_text).map(ContentBlock::text));
    content.extend(traceback.as_ref().and_then(Excerpt::to_plain_text).map(ContentBlock::text));
    let displayed = display::blocks(answer);
    content.extend(displayed.blocks);
    content.push(ContentBlock::text(status_line(answer, access, &stdout, &stderr, displayed.left_out)));

    let excerpts = [Some(&stdout), Some(&stderr), result.as_ref(), traceback.as_ref()];
    let is_cut = excerpts.into_iter().flatten().any(|excerpt| excerpt.dropped_bytes > 0);
    let truncated = answer.is_truncated || is_cut || displayed.left_out > 0;
    let mut fields = Map::with_capacity(COMMON_FIELDS);
    let mut field = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    field("session_id", answer.session_id.as_str().into());
    field("session_created", answer.session_created.into());
    field("status", json!(answer.status));
    field("exit_code", answer.exit_code.into());
    field("stdout", stdout.text.into());
    field("stderr", stderr.text.into());
    field("result", result.map(|excerpt| excerpt.text).into());
    field("duration_ms", u64::try_from(answer.duration.as_millis()).unwrap_or(u64::MAX).into());
    field("truncated", truncated.into());
    if let Some(error) = &answer.error {
        let error = json!({
            "name": Excerpt::from_text(&error.name).text,
            "message": Excerpt::from_text(&error.message).text,
            "traceback": traceback.map(|excerpt| excerpt.text),
        });
        field("error", error);
    }
    for (name, output) in [("stdout_resource", &answer.stdout), ("stderr_resource", &answer.stderr)] {
        if let Some(whole) = &output.full {
            field(name, builtin_resources::uri(&answer.session_id, whole).into());
        }
    }
    if !answer.notices.is_empty() {
        field("notices", answer.notices.iter().map(|notice| Excerpt::from_text(notice).text).collect());
    }
    if let Some(calls) = UnfinishedCalls::new(&answer.open_calls).fields() {
        field("unfinished_calls", calls);
    }
    let is_error = answer.status != Status::Ok || answer.exit_code.is_some_and(|code| code != 0);
    ToolResult { content, fields: Value::Object(fields), is_error }
}

/// Renders the items that the code displayed, such as images and tables.
pub(crate) fn displayed(answer: &CallResult) -> Value {
    display::blocks(answer).blocks.into_iter().map(Value::from).collect()
}

/// The last block: the host's summary of a call.
fn status_line(
    answer: &CallResult,
    access: SessionAccess,
    stdout: &Excerpt,
    stderr: &Excerpt,
    left_out: usize,
) -> String {
    let mut line = String::from("[");
    match (answer.status, answer.exit_code) {
        (Status::Ok, Some(code)) if code != 0 => drop(write!(line, "exit code {code}")),
        (Status::Ok, _) => line.push_str("ok"),
        (Status::Error, Some(code)) => drop(write!(line, "error, exit code {code}")),
        (Status::Error, None) => line.push_str("error"),
        (Status::TimedOut, _) => line.push_str("timed out"),
        (Status::Cancelled, _) => line.push_str("cancelled"),
        (Status::Killed, _) => line.push_str("killed"),
    }
    let _ = write!(line, ", {} ms", answer.duration.as_millis());
    let streams = [("stdout", stdout, &answer.stdout), ("stderr", stderr, &answer.stderr)];
    for (name, excerpt, output) in streams {
        if excerpt.dropped_bytes > 0 {
            let _ = write!(line, ", {} bytes of {name} dropped", excerpt.dropped_bytes);
        }
        if let Some(whole) = &output.full {
            let part = if whole.missing_bytes == 0 { "all of it" } else { "its beginning" };
            let _ = write!(
                line,
                " ({part}, {} bytes, is {})",
                whole.bytes,
                builtin_resources::uri(&answer.session_id, whole)
            );
        }
    }
    if answer.is_truncated {
        let _ = write!(line, ", {SHORTENED_NOTE}");
    }
    if left_out > 0 {
        let _ = write!(line, ", {left_out} displayed items left out as too large or malformed");
    }
    if answer.session_created {
        let _ = write!(line, "; {}", access.describe_new(&answer.session_id));
    }
    for notice in &answer.notices {
        let _ = write!(line, "; {}", terminal::to_plain_text(&Excerpt::from_text(notice).text));
    }
    for note in UnfinishedCalls::new(&answer.open_calls).notes() {
        let _ = write!(line, "; {note}");
    }
    line.push(']');
    line
}

/// Renders the live sessions of a caller.
pub(crate) fn sessions(sessions: &[SessionInfo]) -> ToolResult {
    let mut text = String::new();
    for info in sessions {
        let status = match info.status {
            SessionStatus::Idle => "idle",
            SessionStatus::Busy => "busy",
        };
        let SessionInfo { session_id, template, flavor, memory_bytes, memory_limit_bytes, limits, .. } = info;
        let _ = write!(text, "{session_id} {template} {flavor} {status}");
        let resources = [
            (*memory_bytes, "memory", *memory_limit_bytes),
            (info.usage.and_then(|usage| usage.workspace_bytes), "workspace", limits.workspace_bytes),
        ];
        for (used, name, limit) in resources {
            if let Some(used) = used {
                let _ = write!(text, ", {name} {} of {}", bytes::format(used), bytes::format(limit));
            }
        }
        if let Some(usage) = info.usage {
            let _ = write!(text, ", {} of {} processes", usage.processes, limits.processes);
        }
        text.push('\n');
    }
    let text = if text.is_empty() { "no sessions" } else { text.trim_end() };
    ToolResult::success(vec![ContentBlock::text(text)], json!({"sessions": sessions}))
}

/// Renders the end of a session.
pub(crate) fn stopped(id: &SessionId, stopped: Stopped) -> ToolResult {
    let text = if stopped.was_running { "stopped; a call was running" } else { "stopped; it was idle" };
    let fields = json!({"session_id": id, "was_running": stopped.was_running});
    ToolResult::success(vec![ContentBlock::text(text)], fields)
}

/// Renders the host directories that are shared with sandboxes.
pub(crate) fn volumes(volumes: &[Volume]) -> ToolResult {
    let mut lines = Vec::new();
    let mut fields = Vec::new();
    for volume in volumes {
        let access = match volume.access {
            Access::ReadOnly => "ro",
            Access::ReadWrite => "rw",
        };
        lines.push(format!("{}:{}:{access}", volume.host.display(), volume.guest.display()));
        fields.push(json!({
            "host": volume.host.to_string_lossy(),
            "guest": volume.guest.to_string_lossy(),
            "access": access,
        }));
    }
    let text = if lines.is_empty() { "no volumes are shared".to_owned() } else { lines.join("\n") };
    ToolResult::success(vec![ContentBlock::text(text)], json!({"volumes": fields}))
}

#[cfg(test)]
mod tests;
