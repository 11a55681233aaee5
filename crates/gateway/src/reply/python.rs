//! The result of `run_python`, in as few tokens as possible.
//!
//! All text is in one block, in which only the host writes lines that begin with a label (`status:`, `exit:`, `stderr:`,
//! `error:`, `note:`): a line of the guest that begins with one is indented by a space. In TOON, guest text only appears
//! in strings. The host chooses `isError` and the fields of `structuredContent`.

mod compact;
mod toon;

use ringfence_config::OutputMode;
use ringfence_core::Failure;
use ringfence_session::{CallResult, Output, Status};
use serde_json::{Map, Value, json};

use super::excerpt::Excerpt;
use super::terminal::to_one_line;
use super::unfinished_calls::UnfinishedCalls;
use super::{SessionAccess, ToolResult, display};
use crate::builtin_resources;
use crate::content::ContentBlock;

const SUCCESS: &str = "success";

/// The parts of a reply. Empty ones are omitted.
struct Reply {
    status: &'static str,
    exit_code: Option<i32>,
    stdout: Option<String>,
    /// The value of the last expression.
    result: Option<String>,
    stderr: Option<String>,
    error: Option<String>,
    /// Notes of the host.
    notes: Vec<String>,
    unfinished_calls: UnfinishedCalls,
    /// Additional fields of `structuredContent`.
    details: Map<String, Value>,
}

/// Renders the result of `run_python`.
pub(crate) fn python_result(answer: &CallResult, access: SessionAccess, mode: OutputMode) -> ToolResult {
    let (stdout, stderr) = (Excerpt::from_output(&answer.stdout), Excerpt::from_output(&answer.stderr));
    let result = answer.result.as_deref().map(Excerpt::from_text);
    let error = error(answer).map(|text| Excerpt::from_text(&text));
    let displayed = display::blocks(answer);

    let mut notes = Vec::new();
    notes.extend(answer.session_created.then(|| access.describe_new(&answer.session_id)));
    // Without an error of the code, `error` already has the interruption.
    notes.extend(answer.error.as_ref().and_then(|_| interruption(answer)));
    notes.extend(answer.notices.iter().map(|notice| Excerpt::from_text(notice).text));
    let mut details = Map::new();
    for (name, excerpt, output) in [("stdout", &stdout, &answer.stdout), ("stderr", &stderr, &answer.stderr)] {
        notes.extend(dropped_note(answer, name, excerpt, output));
        if let Some(whole) = &output.full {
            details.insert(format!("{name}_resource"), builtin_resources::uri(&answer.session_id, whole).into());
        }
    }
    notes.extend(answer.is_truncated.then(|| super::SHORTENED_NOTE.to_owned()));
    if displayed.left_out > 0 {
        notes.push(format!("{} displayed items were left out as too large or malformed", displayed.left_out));
    }
    let excerpts = [Some(&stdout), Some(&stderr), result.as_ref(), error.as_ref()];
    let is_cut = excerpts.into_iter().flatten().any(|excerpt| excerpt.dropped_bytes > 0);
    if answer.is_truncated || is_cut || displayed.left_out > 0 {
        details.insert("truncated".into(), true.into());
    }
    details.insert("session_id".into(), json!(answer.session_id));
    if answer.session_created {
        details.insert("session_created".into(), true.into());
    }
    let exit_code = answer.exit_code.filter(|code| *code != 0);
    let reply = Reply {
        status: match (answer.status, exit_code) {
            (Status::Ok, None) => SUCCESS,
            (Status::TimedOut, _) => "timeout",
            (Status::Ok | Status::Error | Status::Cancelled | Status::Killed, _) => "error",
        },
        exit_code,
        stdout: stdout.to_plain_text(),
        result: result.and_then(|excerpt| excerpt.to_plain_text()),
        stderr: stderr.to_plain_text(),
        error: error.and_then(|excerpt| excerpt.to_plain_text()),
        notes,
        unfinished_calls: UnfinishedCalls::new(&answer.open_calls),
        details,
    };
    reply.render(mode, displayed.blocks)
}

/// Renders the refusal of a `run_python` call whose arguments are invalid. No code has run.
pub(crate) fn python_validation_error(failure: &Failure, mode: OutputMode) -> ToolResult {
    let reply = Reply {
        status: "validation_error",
        exit_code: None,
        stdout: None,
        result: None,
        stderr: None,
        error: Excerpt::from_text(&failure.message).to_plain_text(),
        notes: failure.hints.clone(),
        unfinished_calls: UnfinishedCalls::default(),
        details: Map::new(),
    };
    reply.render(mode, Vec::new())
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

fn dropped_note(answer: &CallResult, name: &str, excerpt: &Excerpt, output: &Output) -> Option<String> {
    let whole = output.full.as_ref().map(|whole| {
        let part = if whole.missing_bytes == 0 { "all of it" } else { "its beginning" };
        format!("; {part}, {} bytes, is {}", whole.bytes, builtin_resources::uri(&answer.session_id, whole))
    });
    let has_note = excerpt.dropped_bytes > 0 || whole.is_some();
    has_note.then(|| format!("{} bytes of {name} dropped{}", excerpt.dropped_bytes, whole.unwrap_or_default()))
}

impl Reply {
    fn render(self, mode: OutputMode, displayed: Vec<ContentBlock>) -> ToolResult {
        let fields = self.fields();
        let text = match mode {
            OutputMode::Compact => compact::text(&self),
            OutputMode::Toon => toon::text(&fields).unwrap_or_else(|| compact::text(&self)),
        };
        let mut content = vec![ContentBlock::text(text)];
        content.extend(displayed.into_iter().map(without_labels));
        ToolResult { content, fields, is_error: self.status != SUCCESS }
    }

    fn fields(&self) -> Value {
        let mut fields = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            fields.extend(value.map(|value| (name.to_owned(), value)));
        };
        put("status", Some(self.status.into()));
        put("exit_code", self.exit_code.map(Into::into));
        for (name, text) in
            [("stdout", &self.stdout), ("result", &self.result), ("stderr", &self.stderr), ("error", &self.error)]
        {
            put(name, text.clone().map(Into::into));
        }
        let notes: Vec<String> = self.notes.iter().map(|note| to_one_line(note)).collect();
        put("notes", (!notes.is_empty()).then(|| notes.into()));
        put("unfinished_calls", self.unfinished_calls.fields());
        fields.extend(self.details.clone());
        Value::Object(fields)
    }
}

/// Applies the rule for labels to displayed text too.
fn without_labels(block: ContentBlock) -> ContentBlock {
    match block {
        ContentBlock::Text(text) => ContentBlock::Text(compact::guest_text(&text)),
        block => block,
    }
}

#[cfg(test)]
mod tests;
