//! `ringfence audit export`.
#![allow(clippy::doc_markdown)] // the doc comments of arguments are the text of `--help`

use std::io::{BufWriter, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use ringfence_store::{AuditFilter, AuditRecord};
use serde_json::json;

use super::time::{parse_since, rfc3339};
use crate::configuration::load;
use crate::database;
use crate::exit_code::INCOMPLETE;
use crate::failure::Failure;

/// Number of events that are read at a time.
const PAGE_SIZE: u32 = 1000;

/// Write audit events to standard output, one JSON object per line, oldest first.
///
/// The fields are number, time (RFC 3339, UTC), time_ms, principal, session, kind, outcome, duration_ms and detail.
/// Unknown values are null. The output is ASCII: all other characters are written as JSON escapes. Servers may be running
/// during the export.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Export only events since this time (2026-01-31, 2026-01-31T12:00:00Z), or of the last duration (90s, 30m, 12h, 7d)
    #[arg(long, value_name = "TIME|DURATION", value_parser = since)]
    since: Option<u64>,
    /// Export only events of this principal
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    /// The configuration file, if it sets the state directory
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

fn since(text: &str) -> Result<u64, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    parse_since(text, u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let state = load(arguments.config.clone(), Vec::new())?.state_directory()?;
    if !database::exists(&state) {
        return Ok(ExitCode::SUCCESS);
    }
    let (store, damage_reports) = database::open(&state)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new("cannot read the state database").caused_by(&error))?;
    let filter = AuditFilter { since_ms: arguments.since.unwrap_or(0), principal: arguments.principal.clone() };
    let mut output = BufWriter::new(std::io::stdout().lock());
    let mut last = 0;
    loop {
        let page = runtime.block_on(store.audit_after(last, &filter, PAGE_SIZE))?;
        let Some(newest) = page.last() else { break };
        last = newest.number;
        let written = page.iter().try_for_each(|record| output.write_all(line(record).as_bytes()));
        match written.and_then(|()| output.flush()) {
            // The reader, such as `head`, has read enough.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            written => written.map_err(|error| Failure::new("cannot write to standard output").caused_by(&error))?,
        }
    }
    let is_incomplete = !damage_reports.is_empty();
    Ok(ExitCode::from(if is_incomplete { INCOMPLETE } else { 0 }))
}

fn line(record: &AuditRecord) -> String {
    let AuditRecord { number, time_ms, principal, session, kind, outcome, duration_ms, detail } = record;
    let event = json!({
        "number": number,
        "time": rfc3339(*time_ms),
        "time_ms": time_ms,
        "principal": principal,
        "session": session,
        "kind": kind,
        "outcome": outcome,
        "duration_ms": duration_ms,
        "detail": detail,
    });
    ascii(&event.to_string()) + "\n"
}

/// Escapes characters that a terminal interprets or does not show. Outside of strings JSON is ASCII anyway.
fn ascii(json: &str) -> String {
    let mut units = [0; 2];
    json.chars().fold(String::with_capacity(json.len()), |mut text, char| {
        if char.is_ascii() && !char.is_ascii_control() {
            text.push(char);
        } else {
            text.extend(char.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_ascii_and_equal_after_parsing() {
        let hostile = "a\u{1b}[2J\u{9b}1m\u{7f}\u{202e}\u{e0041}é\n\"";
        let record = AuditRecord {
            number: 7,
            time_ms: 1500,
            principal: Some(hostile.into()),
            session: None,
            kind: "refused".into(),
            outcome: "validation".into(),
            duration_ms: Some(3),
            detail: json!({"message": hostile}),
        };
        let line = line(&record);
        assert!(line.bytes().all(|byte| (0x20..0x7f).contains(&byte) || byte == b'\n'), "{line}");
        assert_eq!(line.matches('\n').count(), 1);
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&event["principal"], &event["detail"]["message"]), (&json!(hostile), &json!(hostile)));
        assert_eq!(event["time"], "1970-01-01T00:00:01.500Z");
    }
}
