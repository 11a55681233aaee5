//! Renders the results of the built-in tools for agents. No other module does.
//!
//! The first block of a run has everything that a model needs, because some clients drop the other blocks: stdout, result,
//! stderr and traceback, then one line of status. Only the host writes lines that look like that line or like the other
//! labels, see `guest_lines`. Displayed items are blocks of their own. `run_python` uses a different format, see `python`.
//! The host chooses the fields of `structuredContent`; guest text only appears in string values.
//! All sizes are limited here, independently of the limits of sessions.

mod display;
mod excerpt;
mod failure;
mod files;
mod found_tools;
mod guest_lines;
mod picture;
mod python;
mod terminal;
mod tool_result;
mod unfinished_calls;

use std::fmt::Write as _;

use ringfence_core::SessionId;
use ringfence_core::{Access, Volume, bytes};
use ringfence_guest::CellError;
use ringfence_session::{CallResult, FullOutput, Output, SessionInfo, SessionStatus, Status, Stopped};
use serde_json::{Map, Value, json};

use display::Displayed;
pub(crate) use display::contents as display_contents;
use excerpt::{Excerpt, PlainText, shares};
pub(crate) use failure::failure;
pub(crate) use files::{directory, directory_fields, file, file_contents, written_file};
pub(crate) use found_tools::found_tools;
use guest_lines::RUN_LABELS;
pub(crate) use python::{python_failure, python_result};
pub(crate) use tool_result::ToolResult;
use unfinished_calls::UnfinishedCalls;

use crate::content::ContentBlock;
use crate::session_uri;

/// Number of fields of a successful run.
const COMMON_FIELDS: usize = 9;

/// Maximum size of a single notice, and of the message of an error among the fields.
const MAX_NOTICE_BYTES: usize = 2 << 10;

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

/// One text of a call, cut to its share of the limit.
struct Part {
    text: PlainText,
    /// The text for programs; None if the text is cut, because a client may show both to its model.
    field: Option<String>,
    /// The whole of a text that is cut.
    resource: Option<FullOutput>,
}

impl Part {
    fn new(
        excerpt: &Excerpt,
        share: usize,
        full: Option<&FullOutput>,
        retain: impl Fn() -> Option<FullOutput>,
    ) -> Self {
        let plain = excerpt.plain();
        let is_cut = excerpt.dropped_bytes > 0 || excerpt.len().max(plain.len()) > share;
        Self {
            text: plain.cut(share),
            field: (!is_cut).then(|| excerpt.text()),
            resource: if is_cut { full.cloned().or_else(retain) } else { None },
        }
    }

    fn is_cut(&self) -> bool {
        self.field.is_none()
    }
}

/// The texts of a call, which share the limit of its response.
struct Parts {
    stdout: Part,
    stderr: Part,
    result: Option<Part>,
    error: Option<Part>,
    /// The limit for displayed items.
    display_bytes: usize,
}

impl Parts {
    fn new(answer: &CallResult, error: Option<&str>, max_text: usize) -> Self {
        let (stdout, stderr) = (Excerpt::from_output(&answer.stdout), Excerpt::from_output(&answer.stderr));
        let result = answer.result.as_deref().map(Excerpt::from_text);
        let error_text = error.map(Excerpt::from_text);
        let length = |excerpt: &Excerpt| excerpt.len().max(excerpt.plain().len());
        let of_some = |excerpt: Option<&Excerpt>| excerpt.map_or(0, length);
        let lengths = [
            length(&stdout),
            length(&stderr),
            of_some(result.as_ref()),
            of_some(error_text.as_ref()),
            display::text_bytes(answer),
        ];
        let [of_stdout, of_stderr, of_result, of_error, display_bytes] = shares(lengths, max_text);
        let retain = |parts: &[&[u8]]| answer.retained.retain_text(parts);
        let stream = |excerpt: &Excerpt, share: usize, output: &Output| {
            // Without a file of the session, the dropped bytes are lost.
            let is_complete = output.dropped_bytes == 0;
            let retain_all = || if is_complete { retain(&[&output.head, &output.tail]) } else { None };
            Part::new(excerpt, share, output.full.as_ref(), retain_all)
        };
        let text = |excerpt: &Excerpt, share: usize, whole: Option<&str>| {
            Part::new(excerpt, share, None, || retain(&[whole.unwrap_or_default().as_bytes()]))
        };
        Self {
            stdout: stream(&stdout, of_stdout, &answer.stdout),
            stderr: stream(&stderr, of_stderr, &answer.stderr),
            result: result.map(|excerpt| text(&excerpt, of_result, answer.result.as_deref())),
            error: error_text.map(|excerpt| text(&excerpt, of_error, error)),
            display_bytes,
        }
    }

    fn named(&self) -> impl Iterator<Item = (&'static str, &Part)> {
        let parts = [
            ("stdout", Some(&self.stdout)),
            ("stderr", Some(&self.stderr)),
            ("result", self.result.as_ref()),
            ("error", self.error.as_ref()),
        ];
        parts.into_iter().filter_map(|(name, part)| Some((name, part?)))
    }

    fn is_any_cut(&self) -> bool {
        self.named().any(|(_, part)| part.is_cut())
    }

    /// Describes each text that is cut, and where the whole of it is.
    fn notes(&self, session: &SessionId) -> Vec<String> {
        let cut = self.named().filter(|(_, part)| part.is_cut());
        cut.map(|(name, part)| {
            let whole = part.resource.as_ref().map(|whole| {
                let which = if whole.missing_bytes == 0 { "all of it" } else { "its beginning" };
                format!(" ({which}, {} bytes, is {})", whole.bytes, session_uri::output(session, whole))
            });
            // Overwritten lines and control sequences can be most of a text.
            let what = match part.text.dropped_bytes {
                0 => format!("{name} without control sequences"),
                dropped => format!("{dropped} bytes of {name} dropped"),
            };
            what + &whole.unwrap_or_default()
        })
        .collect()
    }

    /// The fields with the URIs of texts that are cut.
    fn resource_fields(&self, session: &SessionId) -> impl Iterator<Item = (String, Value)> {
        self.named().filter_map(|(name, part)| {
            let uri = session_uri::output(session, part.resource.as_ref()?);
            Some((format!("{name}_resource"), uri.into()))
        })
    }
}

/// Renders the result of code or of a command for a model, with at most `max_text` bytes of guest text.
pub(crate) fn run_result(answer: &CallResult, access: SessionAccess, max_text: usize) -> ToolResult {
    let error = error_text(answer);
    let parts = Parts::new(answer, error.as_deref(), max_text);
    let clean = |text: &str| guest_lines::indent(text, &RUN_LABELS);
    let displayed = display::blocks(answer, parts.display_bytes, clean);
    let status = status_line(answer, access, &parts, &displayed);
    let truncated = answer.is_truncated || parts.is_any_cut() || displayed.left_out + displayed.notes.len() > 0;
    let mut fields = common_fields(answer, truncated);
    fields.extend(parts.resource_fields(&answer.session_id));
    let Parts { stdout, stderr, result, error, .. } = parts;
    put(&mut fields, "stdout", stdout.field.into());
    put(&mut fields, "stderr", stderr.field.into());
    let (result, result_field) = result.map(|part| (part.text, part.field)).unzip();
    put(&mut fields, "result", result_field.flatten().into());
    let (error, traceback) = error.map(|part| (part.text, part.field)).unzip();
    if let Some(error) = &answer.error {
        put(&mut fields, "error", error_fields(error, traceback.flatten().as_deref(), MAX_NOTICE_BYTES));
    }

    let mut text = String::new();
    for (label, part) in [("", Some(stdout.text)), ("", result), ("stderr:\n", Some(stderr.text)), ("", error)] {
        // An indented line at a cut end may be one byte longer.
        let part = part.map(|part| part.map(clean).join()).filter(|part| !part.is_empty());
        text.extend(part.map(|part| format!("{label}{part}\n")));
    }
    text.push_str(&status);
    let mut content = vec![ContentBlock::text(text)];
    content.extend(displayed.blocks);
    let is_error = answer.status != Status::Ok || answer.exit_code.is_some_and(|code| code != 0);
    ToolResult { content, fields: Value::Object(fields), is_error }
}

/// Renders the result of code or of a command for a program, which gets longer texts than a model.
pub(crate) fn run_fields(answer: &CallResult) -> Value {
    let (stdout, stderr) = (Excerpt::from_output(&answer.stdout), Excerpt::from_output(&answer.stderr));
    let result = answer.result.as_deref().map(Excerpt::from_text);
    let traceback = error_text(answer).map(|text| Excerpt::from_text(&text));
    let excerpts = [Some(&stdout), Some(&stderr), result.as_ref(), traceback.as_ref()];
    let is_cut = excerpts.into_iter().flatten().any(|excerpt| excerpt.dropped_bytes > 0);
    let displayed = display::blocks(answer, usize::MAX, ToOwned::to_owned);
    let mut fields = common_fields(answer, answer.is_truncated || is_cut || displayed.left_out > 0);
    put(&mut fields, "display", displayed.blocks.into_iter().map(Value::from).collect());
    put(&mut fields, "stdout", stdout.text().into());
    put(&mut fields, "stderr", stderr.text().into());
    put(&mut fields, "result", result.map(|excerpt| excerpt.text()).into());
    if let Some(error) = &answer.error {
        put(&mut fields, "error", error_fields(error, traceback.map(|excerpt| excerpt.text()).as_deref(), usize::MAX));
    }
    for (name, output) in [("stdout_resource", &answer.stdout), ("stderr_resource", &answer.stderr)] {
        if let Some(whole) = &output.full {
            put(&mut fields, name, session_uri::output(&answer.session_id, whole).into());
        }
    }
    Value::Object(fields)
}

fn common_fields(answer: &CallResult, truncated: bool) -> Map<String, Value> {
    let mut fields = Map::with_capacity(COMMON_FIELDS);
    put(&mut fields, "session_id", answer.session_id.as_str().into());
    put(&mut fields, "session_created", answer.session_created.into());
    put(&mut fields, "status", json!(answer.status));
    put(&mut fields, "exit_code", answer.exit_code.into());
    put(&mut fields, "stdout", Value::Null);
    put(&mut fields, "stderr", Value::Null);
    put(&mut fields, "result", Value::Null);
    put(&mut fields, "duration_ms", u64::try_from(answer.duration.as_millis()).unwrap_or(u64::MAX).into());
    put(&mut fields, "truncated", truncated.into());
    if !answer.notices.is_empty() {
        put(&mut fields, "notices", answer.notices.iter().map(|notice| shorten(notice, MAX_NOTICE_BYTES)).collect());
    }
    if let Some(calls) = UnfinishedCalls::new(&answer.open_calls).fields() {
        put(&mut fields, "unfinished_calls", calls);
    }
    fields
}

fn put(fields: &mut Map<String, Value>, name: &str, value: Value) {
    fields.insert(name.to_owned(), value);
}

fn error_fields(error: &CellError, traceback: Option<&str>, max_message: usize) -> Value {
    json!({
        "name": shorten(&error.name, MAX_NOTICE_BYTES),
        "message": shorten(&error.message, max_message),
        "traceback": traceback,
    })
}

fn shorten(text: &str, max_bytes: usize) -> String {
    let excerpt = Excerpt::from_text(text);
    if excerpt.len() <= max_bytes { excerpt.text() } else { excerpt.plain().cut(max_bytes).join() }
}

/// The exception that the code raised.
fn error_text(answer: &CallResult) -> Option<String> {
    answer.error.as_ref().map(|error| match error.traceback.trim_end() {
        "" => format!("{}: {}", error.name, error.message),
        traceback => traceback.to_owned(),
    })
}

/// The last line of the first block: the host's summary of a call.
fn status_line(answer: &CallResult, access: SessionAccess, parts: &Parts, displayed: &Displayed) -> String {
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
    for note in parts.notes(&answer.session_id).iter().chain(&displayed.notes) {
        let _ = write!(line, ", {note}");
    }
    if answer.is_truncated {
        let _ = write!(line, ", {SHORTENED_NOTE}");
    }
    if displayed.left_out > 0 {
        let _ = write!(line, ", {} displayed items left out as too large or malformed", displayed.left_out);
    }
    if answer.session_created {
        let _ = write!(line, "; {}", access.describe_new(&answer.session_id));
    }
    for notice in &answer.notices {
        let _ = write!(line, "; {}", terminal::to_one_line(&shorten(notice, MAX_NOTICE_BYTES)));
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
