//! The result of `run_python`, in as few tokens as possible.
//!
//! All text is in one block, in which only the host writes lines that begin with a label (`status:`, `exit:`, `stderr:`,
//! `error:`, `note:`): a line of the guest that begins with one is indented by a space. In TOON, guest text only appears
//! in strings. The host chooses `isError` and the fields of `structuredContent`.

mod compact;
mod toon;

use ringfence_config::OutputMode;
use ringfence_core::{Failure, Kind};
use ringfence_session::{CallResult, Status};
use serde_json::{Map, Value, json};

use super::terminal::to_one_line;
use super::unfinished_calls::UnfinishedCalls;
use super::{MAX_NOTICE_BYTES, Part, Parts, SessionAccess, ToolResult, display, shorten};
use crate::content::ContentBlock;

const SUCCESS: &str = "success";

/// The parts of a reply. Empty ones are omitted.
struct Reply {
    status: &'static str,
    exit_code: Option<i32>,
    stdout: Option<Text>,
    /// The value of the last expression.
    result: Option<Text>,
    stderr: Option<Text>,
    error: Option<Text>,
    /// Notes of the host.
    notes: Vec<String>,
    unfinished_calls: UnfinishedCalls,
    /// Additional fields of `structuredContent`.
    details: Map<String, Value>,
}

/// A text without terminal control sequences.
struct Text {
    text: String,
    /// If the text is cut, it is not repeated in the fields.
    is_cut: bool,
}

/// Renders the result of `run_python`, with at most `max_text` bytes of guest text.
pub(crate) fn python_result(
    answer: &CallResult,
    access: SessionAccess,
    mode: OutputMode,
    max_text: usize,
) -> ToolResult {
    let error = error(answer);
    let parts = Parts::new(answer, error.as_deref(), max_text);
    let displayed = display::blocks(answer, parts.display_bytes, compact::guest_text);

    let mut notes = Vec::new();
    notes.extend(answer.session_created.then(|| access.describe_new(&answer.session_id)));
    // Without an error of the code, `error` already has the interruption.
    notes.extend(answer.error.as_ref().and_then(|_| interruption(answer)));
    notes.extend(answer.notices.iter().map(|notice| shorten(notice, MAX_NOTICE_BYTES)));
    notes.extend(parts.notes(&answer.session_id));
    notes.extend(displayed.notes);
    notes.extend(answer.is_truncated.then(|| super::SHORTENED_NOTE.to_owned()));
    if displayed.left_out > 0 {
        notes.push(format!("{} displayed items were left out as too large or malformed", displayed.left_out));
    }
    let mut details: Map<String, Value> = parts.resource_fields(&answer.session_id).collect();
    if answer.is_truncated || parts.is_any_cut() || displayed.left_out > 0 {
        details.insert("truncated".into(), true.into());
    }
    details.insert("session_id".into(), json!(answer.session_id));
    if answer.session_created {
        details.insert("session_created".into(), true.into());
    }
    let exit_code = answer.exit_code.filter(|code| *code != 0);
    let Parts { stdout, stderr, result, error, .. } = parts;
    let reply = Reply {
        status: match (answer.status, exit_code) {
            (Status::Ok, None) => SUCCESS,
            (Status::TimedOut, _) => "timeout",
            (Status::Ok | Status::Error | Status::Cancelled | Status::Killed, _) => "error",
        },
        exit_code,
        stdout: Text::new(stdout),
        result: result.and_then(Text::new),
        stderr: Text::new(stderr),
        error: error.and_then(Text::new),
        notes,
        unfinished_calls: UnfinishedCalls::new(&answer.open_calls),
        details,
    };
    reply.render(mode, displayed.blocks)
}

/// Renders the failure of a `run_python` call. No code has run, unless the failure says so.
pub(crate) fn python_failure(failure: Failure, mode: OutputMode) -> ToolResult {
    let status = if failure.kind == Kind::Validation { "validation_error" } else { "error" };
    let ToolResult { fields, .. } = super::failure::failure(failure);
    let notes = super::failure::hints(&fields);
    let message = fields["message"].as_str().unwrap_or_default();
    let reply = Reply {
        status,
        exit_code: None,
        stdout: None,
        result: None,
        stderr: None,
        error: Some(Text { text: shorten(message, MAX_NOTICE_BYTES), is_cut: false }),
        notes,
        unfinished_calls: UnfinishedCalls::default(),
        details: Map::new(),
    };
    let mut result = reply.render(mode, Vec::new());
    // For programs; the text has what a model needs.
    for (name, value) in fields.as_object().into_iter().flatten() {
        result.fields[name] = value.clone();
    }
    result
}

/// The exception that the code raised, or the host's reason if the code was stopped.
fn error(answer: &CallResult) -> Option<String> {
    if let Some(error) = &answer.error {
        let traceback = error.traceback.trim_end();
        return Some(if traceback.is_empty() {
            format!("{}: {}", error.name, error.message)
        } else {
            traceback.into()
        });
    }
    match answer.status {
        Status::Ok => None,
        Status::Error => Some("the code failed without an error message".into()),
        Status::TimedOut | Status::Cancelled => interruption(answer),
        Status::Killed => Some("the interpreter ended before the code did".into()),
    }
}

fn interruption(answer: &CallResult) -> Option<String> {
    let reason = match answer.status {
        Status::TimedOut => "interrupted at the time limit",
        Status::Cancelled => "cancelled by the caller",
        Status::Ok | Status::Error | Status::Killed => return None,
    };
    Some(format!("{reason}, after {:.1} s; variables are kept", answer.duration.as_secs_f64()))
}

impl Text {
    /// Returns None if nothing is left of the text.
    fn new(part: Part) -> Option<Self> {
        let is_cut = part.is_cut();
        let text = part.text.join();
        (!text.is_empty()).then_some(Self { text, is_cut })
    }
}

impl Reply {
    fn render(self, mode: OutputMode, displayed: Vec<ContentBlock>) -> ToolResult {
        let text = match mode {
            OutputMode::Compact => compact::text(&self),
            OutputMode::Toon => toon::text(&Value::Object(self.fields(false))).unwrap_or_else(|| compact::text(&self)),
        };
        let fields = self.fields(true);
        let is_error = self.status != SUCCESS;
        let mut content = vec![ContentBlock::text(text)];
        content.extend(displayed);
        ToolResult { content, fields: Value::Object(fields), is_error }
    }

    fn fields(&self, omit_cut: bool) -> Map<String, Value> {
        let mut fields = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            fields.extend(value.map(|value| (name.to_owned(), value)));
        };
        put("status", Some(self.status.into()));
        put("exit_code", self.exit_code.map(Into::into));
        for (name, text) in
            [("stdout", &self.stdout), ("result", &self.result), ("stderr", &self.stderr), ("error", &self.error)]
        {
            let text = text.as_ref().filter(|text| !(omit_cut && text.is_cut));
            put(name, text.map(|text| text.text.as_str().into()));
        }
        let notes: Vec<String> = self.notes.iter().map(|note| to_one_line(note)).collect();
        put("notes", (!notes.is_empty()).then(|| notes.into()));
        put("unfinished_calls", self.unfinished_calls.fields());
        fields.extend(self.details.clone());
        fields
    }
}

#[cfg(test)]
mod tests;
