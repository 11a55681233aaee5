//! What an agent sees of `run_python`: as little as says it all.
//!
//! All text is in one block. In it, a line that begins with a label (`status:`, `exit:`, `stderr:`, `error:`, `note:`) is
//! the host's: where a guest's would, it is moved in by a space. In TOON a guest's text has no lines at all, only strings.
//! `isError` and the fields of `structuredContent` come from the host, as everywhere.

mod compact;
mod toon;

use ringfence_config::OutputMode;
use ringfence_core::Failure;
use ringfence_session::{Answer, Output, Status};
use serde_json::{Map, Value, json};

use super::ToolResult;
use super::display;
use super::output::Excerpt;
use super::terminal::one_line;
use super::unfinished::Unfinished;
use crate::builtin_resources;
use crate::content::ContentBlock;

const SUCCESS: &str = "success";

/// What there is to say; what is empty is not said.
struct Said {
    status: &'static str,
    exit_code: Option<i32>,
    stdout: Option<String>,
    /// The value of the last expression.
    result: Option<String>,
    stderr: Option<String>,
    error: Option<String>,
    /// The host's own words.
    notes: Vec<String>,
    unfinished: Unfinished,
    /// Further fields for programs.
    details: Map<String, Value>,
}

/// Renders what came of code that may call tools.
pub(crate) fn code_answer(answer: &Answer, mode: OutputMode) -> ToolResult {
    let (stdout, stderr) = (Excerpt::of(&answer.stdout), Excerpt::of(&answer.stderr));
    let result = answer.result.as_deref().map(Excerpt::of_text);
    let error = error(answer).map(|text| Excerpt::of_text(&text));
    let displayed = display::blocks(answer);
    let unfinished = Unfinished::of(&answer.open_calls);

    let mut notes = Vec::new();
    notes.extend(answer.session_created.then(|| "this is a new session".to_owned()));
    // Where the code itself was heard last, this is not said yet.
    notes.extend(answer.error.as_ref().and_then(|_| interruption(answer)));
    notes.extend(answer.notices.iter().map(|notice| Excerpt::of_text(notice).text));
    let mut details = Map::new();
    for (name, excerpt, output) in [("stdout", &stdout, &answer.stdout), ("stderr", &stderr, &answer.stderr)] {
        notes.extend(dropped(answer, name, excerpt, output));
        if let Some(whole) = &output.whole {
            details.insert(format!("{name}_resource"), builtin_resources::uri(&answer.session_id, whole).into());
        }
    }
    notes.extend(answer.is_cut.then(|| super::SHORTENED.to_owned()));
    if displayed.left_out > 0 {
        notes.push(format!("{} displayed items were left out as too large or malformed", displayed.left_out));
    }
    let excerpts = [Some(&stdout), Some(&stderr), result.as_ref(), error.as_ref()];
    let is_cut = excerpts.into_iter().flatten().any(|excerpt| excerpt.dropped_bytes > 0);
    if answer.is_cut || is_cut || displayed.left_out > 0 {
        details.insert("truncated".into(), true.into());
    }
    if answer.session_created {
        details.insert("session_id".into(), json!(answer.session_id));
        details.insert("session_created".into(), true.into());
    }
    let exit_code = answer.exit_code.filter(|code| *code != 0);
    let said = Said {
        status: match (answer.status, exit_code) {
            (Status::Ok, None) => SUCCESS,
            (Status::TimedOut, _) => "timeout",
            (Status::Ok | Status::Error | Status::Cancelled | Status::Killed, _) => "error",
        },
        exit_code,
        stdout: stdout.plain(),
        result: result.and_then(|excerpt| excerpt.plain()),
        stderr: stderr.plain(),
        error: error.and_then(|excerpt| excerpt.plain()),
        notes,
        unfinished,
        details,
    };
    said.render(mode, displayed.blocks)
}

/// Renders a refusal of what was sent to `run_python`, before any of it ran. Not for what went wrong inside.
pub(crate) fn validation_answer(failure: &Failure, mode: OutputMode) -> ToolResult {
    let said = Said {
        status: "validation_error",
        exit_code: None,
        stdout: None,
        result: None,
        stderr: None,
        error: Excerpt::of_text(&failure.message).plain(),
        notes: failure.hints.clone(),
        unfinished: Unfinished::default(),
        details: Map::new(),
    };
    said.render(mode, Vec::new())
}

/// What the code raised, or else the host's words for an end that it did not come to by itself.
fn error(answer: &Answer) -> Option<String> {
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
        Status::Error => Some("the code failed, and did not say why".into()),
        Status::TimedOut | Status::Cancelled => interruption(answer),
        Status::Killed => Some("the interpreter ended before the code did".into()),
    }
}

fn interruption(answer: &Answer) -> Option<String> {
    let why = match answer.status {
        Status::TimedOut => "interrupted at the time limit",
        Status::Cancelled => "cancelled by the caller",
        Status::Ok | Status::Error | Status::Killed => return None,
    };
    Some(format!("{why}, after {:.1} s; variables are kept", answer.duration.as_secs_f64()))
}

fn dropped(answer: &Answer, name: &str, excerpt: &Excerpt, output: &Output) -> Option<String> {
    let whole = output.whole.as_ref().map(|whole| {
        let what = if whole.missing_bytes == 0 { "all of it" } else { "its beginning" };
        format!("; {what}, {} bytes, is {}", whole.bytes, builtin_resources::uri(&answer.session_id, whole))
    });
    let is_told = excerpt.dropped_bytes > 0 || whole.is_some();
    is_told.then(|| format!("{} bytes of {name} dropped{}", excerpt.dropped_bytes, whole.unwrap_or_default()))
}

impl Said {
    fn render(self, mode: OutputMode, displayed: Vec<ContentBlock>) -> ToolResult {
        let fields = self.fields();
        let text = match mode {
            OutputMode::Compact => compact::text(&self),
            OutputMode::Toon => toon::text(&fields).unwrap_or_else(|| compact::text(&self)),
        };
        let mut content = vec![ContentBlock::text(text)];
        content.extend(displayed.into_iter().map(guarded));
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
        let notes: Vec<String> = self.notes.iter().map(|note| one_line(note)).collect();
        put("notes", (!notes.is_empty()).then(|| notes.into()));
        put("unfinished_calls", self.unfinished.fields());
        fields.extend(self.details.clone());
        Value::Object(fields)
    }
}

/// What a guest displays as text is held to the same rule as what it prints.
fn guarded(block: ContentBlock) -> ContentBlock {
    match block {
        ContentBlock::Text(text) => ContentBlock::Text(compact::of_guest(&text)),
        block => block,
    }
}

#[cfg(test)]
mod tests;
