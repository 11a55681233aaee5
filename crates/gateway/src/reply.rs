//! The only place that shapes what an agent sees.
//!
//! `run_python` has rules of its own (`code`). Elsewhere each source has a content block of its own: stdout, stderr,
//! result, traceback, then what the code displayed. The last block is always the host's, so that nothing a guest writes
//! can pass for it.
//! The fields of `structuredContent` come from the host; guest text stays inside its own strings.
//! Everything is bounded here, whatever the runtime hands over.

mod code;
mod display;
mod files;
mod found;
mod output;
mod terminal;
mod tool_result;
mod unfinished;

use std::fmt::Write as _;

use ringfence_core::SessionId;
use ringfence_core::{Access, Volume, bytes};
use ringfence_session::{Answer, SessionInfo, SessionStatus, Status, Stopped};
use serde_json::{Map, Value, json};

pub(crate) use code::{code_answer, validation_answer};
pub(crate) use files::{directory, directory_fields, file, written};
pub(crate) use found::found_tools;
use output::Excerpt;
pub(crate) use tool_result::ToolResult;
use unfinished::Unfinished;

use crate::builtin_resources;
use crate::content::ContentBlock;

/// Of what came of running something, if nothing is wrong with it.
const USUAL_FIELDS: usize = 9;

/// Of what an interpreter has cut itself. What is printed is kept whole.
const SHORTENED: &str = "the result or the error is shortened: print what you need of it";

/// Renders what came of running something.
pub(crate) fn answer(answer: &Answer) -> ToolResult {
    let stdout = Excerpt::of(&answer.stdout);
    let stderr = Excerpt::of(&answer.stderr);
    let result = answer.result.as_deref().map(Excerpt::of_text);
    let traceback = answer.error.as_ref().map(|error| match error.traceback.trim_end() {
        "" => Excerpt::of_text(&format!("{}: {}", error.name, error.message)),
        traceback => Excerpt::of_text(traceback),
    });

    let mut content = Vec::new();
    content.extend(stdout.plain().map(ContentBlock::text));
    content.extend(stderr.plain().map(|text| ContentBlock::text(format!("stderr:\n{text}"))));
    content.extend(result.as_ref().and_then(Excerpt::plain).map(ContentBlock::text));
    content.extend(traceback.as_ref().and_then(Excerpt::plain).map(ContentBlock::text));
    let displayed = display::blocks(answer);
    content.extend(displayed.blocks);
    content.push(ContentBlock::text(closing(answer, &stdout, &stderr, displayed.left_out)));

    let excerpts = [Some(&stdout), Some(&stderr), result.as_ref(), traceback.as_ref()];
    let is_cut = excerpts.into_iter().flatten().any(|excerpt| excerpt.dropped_bytes > 0);
    let truncated = answer.is_cut || is_cut || displayed.left_out > 0;
    let mut fields = Map::with_capacity(USUAL_FIELDS);
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
            "name": Excerpt::of_text(&error.name).text,
            "message": Excerpt::of_text(&error.message).text,
            "traceback": traceback.map(|excerpt| excerpt.text),
        });
        field("error", error);
    }
    for (name, output) in [("stdout_resource", &answer.stdout), ("stderr_resource", &answer.stderr)] {
        if let Some(whole) = &output.whole {
            field(name, builtin_resources::uri(&answer.session_id, whole).into());
        }
    }
    if !answer.notices.is_empty() {
        field("notices", answer.notices.iter().map(|notice| Excerpt::of_text(notice).text).collect());
    }
    if let Some(unfinished) = Unfinished::of(&answer.open_calls).fields() {
        field("unfinished_calls", unfinished);
    }
    let is_error = answer.status != Status::Ok || answer.exit_code.is_some_and(|code| code != 0);
    ToolResult { content, fields: Value::Object(fields), is_error }
}

/// What the code displayed: pictures, tables and the like.
pub(crate) fn displayed(answer: &Answer) -> Value {
    display::blocks(answer).blocks.into_iter().map(Value::from).collect()
}

/// The host's own words about a call.
fn closing(answer: &Answer, stdout: &Excerpt, stderr: &Excerpt, left_out: usize) -> String {
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
        if let Some(whole) = &output.whole {
            let what = if whole.missing_bytes == 0 { "all of it" } else { "its beginning" };
            let _ = write!(
                line,
                " ({what}, {} bytes, is {})",
                whole.bytes,
                builtin_resources::uri(&answer.session_id, whole)
            );
        }
    }
    if answer.is_cut {
        let _ = write!(line, ", {SHORTENED}");
    }
    if left_out > 0 {
        let _ = write!(line, ", {left_out} displayed items left out as too large or malformed");
    }
    if answer.session_created {
        let _ = write!(line, "; new session_id {}", answer.session_id);
    }
    for notice in &answer.notices {
        let _ = write!(line, "; {}", terminal::plain(&Excerpt::of_text(notice).text));
    }
    for note in Unfinished::of(&answer.open_calls).notes() {
        let _ = write!(line, "; {note}");
    }
    line.push(']');
    line
}

/// Renders live sessions.
pub(crate) fn sessions(sessions: &[SessionInfo]) -> ToolResult {
    let mut text = String::new();
    for info in sessions {
        let status = match info.status {
            SessionStatus::Idle => "idle",
            SessionStatus::Busy => "busy",
        };
        let SessionInfo { session_id, template, flavor, memory_bytes, memory_limit_bytes, limits, .. } = info;
        let _ = write!(text, "{session_id} {template} {flavor} {status}");
        let shares = [
            (*memory_bytes, "memory", *memory_limit_bytes),
            (info.usage.and_then(|usage| usage.workspace_bytes), "workspace", limits.workspace_bytes),
        ];
        for (used, what, limit) in shares {
            if let Some(used) = used {
                let _ = write!(text, ", {what} {} of {}", bytes::format(used), bytes::format(limit));
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
    let what = if stopped.was_running { "stopped; a call was running in it" } else { "stopped; it was idle" };
    let fields = json!({"session_id": id, "was_running": stopped.was_running});
    ToolResult::success(vec![ContentBlock::text(what)], fields)
}

/// Renders what of the host sandboxes are shown.
pub(crate) fn volumes(volumes: &[Volume]) -> ToolResult {
    let mut text = Vec::new();
    let mut rows = Vec::new();
    for volume in volumes {
        let access = match volume.access {
            Access::ReadOnly => "ro",
            Access::ReadWrite => "rw",
        };
        text.push(format!("{}:{}:{access}", volume.host.display(), volume.guest.display()));
        rows.push(json!({
            "host": volume.host.to_string_lossy(),
            "guest": volume.guest.to_string_lossy(),
            "access": access,
        }));
    }
    let text = if text.is_empty() { "no volumes are shared".to_owned() } else { text.join("\n") };
    ToolResult::success(vec![ContentBlock::text(text)], json!({"volumes": rows}))
}

#[cfg(test)]
mod tests;
