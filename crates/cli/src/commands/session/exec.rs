//! `ringfence session exec ID -- COMMAND…`.
#![allow(clippy::doc_markdown)] // the comments on arguments are what `--help` shows

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use ringfence_core::hidden_text::escape;
use ringfence_session::MOST_WHOLE_BYTES;
use serde_json::{Value, json};

use crate::failure::{Failure, OWN_FAILURE, TIMED_OUT, notice};
use crate::operator;
use crate::operator::Found;

/// Run a command in a session; its output and exit code are passed on.
///
/// One argument is a shell line; several are a program and its arguments. It has no input, and its output is shown when
/// it has ended. On a terminal, control characters in it are escaped; redirected output is exact.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The session's id, or how it begins
    id: String,
    /// Run this code in the session's interpreter instead
    #[arg(long, conflicts_with = "command")]
    code: Option<String>,
    /// Seconds until it is interrupted
    #[arg(long)]
    timeout: Option<f64>,
    /// Pass control characters on to the terminal, which obeys them
    #[arg(long)]
    raw: bool,
    /// What to run
    #[arg(last = true, required_unless_present = "code")]
    command: Vec<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut request = match &arguments.code {
        Some(code) => json!({"code": code}),
        None => json!({"command": shell_line(&arguments.command)}),
    };
    if let Some(timeout) = arguments.timeout {
        request["timeout"] = timeout.into();
    }
    let session = operator::find(&arguments.id)?;
    let answer = session.ask("POST", "/exec", Some(&request))?;
    let (mut stdout, mut errors) = (whole(&session, &answer, "stdout"), whole(&session, &answer, "stderr"));
    if let Some(traceback) = answer["error"]["traceback"].as_str() {
        errors.extend_from_slice(traceback.trim_end().as_bytes());
        errors.push(b'\n');
    }
    if let Some(result) = answer["result"].as_str() {
        stdout.extend_from_slice(result.as_bytes());
        stdout.push(b'\n');
    }
    let (stdout_escapes, stderr_escapes) =
        (!arguments.raw && std::io::stdout().is_terminal(), !arguments.raw && std::io::stderr().is_terminal());
    let written = std::io::stdout()
        .write_all(&shown(stdout, stdout_escapes))
        .and_then(|()| std::io::stderr().write_all(&shown(errors, stderr_escapes)));
    written.map_err(|error| Failure::new("the output cannot be written").because(&error))?;
    for said in answer["notices"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        notice(said);
    }
    if answer["display"].as_array().is_some_and(|shown| !shown.is_empty()) {
        notice("what it displayed is not shown here");
    }
    if answer["status"] == "timed_out" {
        notice("its time was up, and it was ended; --timeout gives it more");
    }
    Ok(ExitCode::from(exit_code(&answer)))
}

/// The guest's bytes; for a terminal, text with control characters escaped.
fn shown(bytes: Vec<u8>, escapes: bool) -> Vec<u8> {
    if escapes { escape(&String::from_utf8_lossy(&bytes)).into_owned().into_bytes() } else { bytes }
}

/// All of an output, also where its answer has only the beginning and the end of it.
fn whole(session: &Found, answer: &Value, stream: &str) -> Vec<u8> {
    let excerpt = || answer[stream].as_str().unwrap_or_default().as_bytes().to_owned();
    if let Some(bytes) = answer[format!("{stream}_base64")].as_str().and_then(|text| STANDARD.decode(text).ok()) {
        return bytes;
    }
    let number = answer[format!("{stream}_resource")].as_str().and_then(|uri| uri.rsplit('/').next());
    let Some(number) = number else { return excerpt() };
    let Ok(bytes) = session.output(number) else {
        notice(&format!("{stream} is cut in its middle: the whole of it is not to be had any more"));
        return excerpt();
    };
    if answer[format!("{stream}_missing_bytes")] != 0 {
        notice(&format!("{stream} is cut: no more than {} MiB of an output are kept", MOST_WHOLE_BYTES >> 20));
    }
    bytes
}

fn exit_code(answer: &Value) -> u8 {
    match (answer["status"].as_str(), answer["exit_code"].as_u64()) {
        (Some("timed_out"), _) => TIMED_OUT,
        (Some("killed" | "cancelled"), None) => OWN_FAILURE,
        (_, Some(code)) => u8::try_from(code & 0xff).unwrap_or(OWN_FAILURE),
        (Some("ok"), None) => 0,
        _ => 1,
    }
}

fn shell_line(words: &[String]) -> String {
    match words {
        [line] => line.clone(),
        words => words.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect::<Vec<_>>().join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_program_as_they_are() {
        let line = |words: &[&str]| shell_line(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(line(&["echo a | cat"]), "echo a | cat");
        assert_eq!(line(&["echo", "it's", "$HOME; *"]), r"'echo' 'it'\''s' '$HOME; *'");
    }

    #[test]
    fn a_terminal_is_not_controlled_and_other_readers_get_the_bytes() {
        let bytes = b"\x1b]52;c;eA==\x07ok\n\xff".to_vec();
        assert_eq!(shown(bytes.clone(), false), bytes);
        assert_eq!(shown(bytes, true), "\\u{1b}]52;c;eA==\\u{7}ok\n\u{fffd}".as_bytes());
    }

    #[test]
    fn every_end_has_its_code() {
        for (answer, code) in [
            (json!({"status": "ok", "exit_code": 3}), 3),
            (json!({"status": "ok", "exit_code": null}), 0),
            (json!({"status": "error", "exit_code": null}), 1),
            (json!({"status": "timed_out", "exit_code": 143}), TIMED_OUT),
            (json!({"status": "killed"}), OWN_FAILURE),
        ] {
            assert_eq!(exit_code(&answer), code, "{answer}");
        }
    }
}
