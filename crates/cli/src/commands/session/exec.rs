//! `ringfence session exec ID -- COMMAND…`.
#![allow(clippy::doc_markdown)] // the doc comments of arguments are the text of `--help`

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use ringfence_core::hidden_text::escape;
use ringfence_session::MAX_FULL_OUTPUT_BYTES;
use serde_json::{Value, json};

use crate::exit_code::{RINGFENCE_FAILED, TIMED_OUT};
use crate::failure::Failure;
use crate::operator_client::{RemoteSession, find_session};
use crate::output::notice;

/// Run a command in a session and pass on its output and exit code.
///
/// A single argument is a shell command line; several arguments are a program and its arguments. The command has no
/// standard input. Its output is shown after it has ended. Control characters in the output are escaped on a terminal,
/// and unchanged if the output is redirected.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The id of the session, or a unique prefix of it
    id: String,
    /// Run this code in the session's interpreter instead
    #[arg(long, conflicts_with = "command")]
    code: Option<String>,
    /// Interrupt the command after this many seconds
    #[arg(long)]
    timeout: Option<f64>,
    /// Write control characters to the terminal, which interprets them
    #[arg(long)]
    raw: bool,
    /// The command to run
    #[arg(last = true, required_unless_present = "code")]
    command: Vec<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut request = match &arguments.code {
        Some(code) => json!({"code": code}),
        None => json!({"command": shell_command(&arguments.command)}),
    };
    if let Some(timeout) = arguments.timeout {
        request["timeout"] = timeout.into();
    }
    let session = find_session(&arguments.id)?;
    let response = session.request("POST", "/exec", Some(&request))?;
    let mut stdout = full_output(&session, &response, "stdout");
    let mut stderr = full_output(&session, &response, "stderr");
    if let Some(traceback) = response["error"]["traceback"].as_str() {
        stderr.extend_from_slice(traceback.trim_end().as_bytes());
        stderr.push(b'\n');
    }
    if let Some(result) = response["result"].as_str() {
        stdout.extend_from_slice(result.as_bytes());
        stdout.push(b'\n');
    }
    let encoding = |is_terminal: bool| if is_terminal && !arguments.raw { Encoding::Escaped } else { Encoding::Raw };
    let stdout = encode(stdout, encoding(std::io::stdout().is_terminal()));
    let stderr = encode(stderr, encoding(std::io::stderr().is_terminal()));
    let written = std::io::stdout().write_all(&stdout).and_then(|()| std::io::stderr().write_all(&stderr));
    written.map_err(|error| Failure::new("cannot write the output").caused_by(&error))?;
    for text in response["notices"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        notice(text);
    }
    if response["display"].as_array().is_some_and(|display| !display.is_empty()) {
        notice("displayed data, such as images, is not shown here");
    }
    if response["status"] == "timed_out" {
        notice("the command was stopped after its timeout (raise it with --timeout)");
    }
    Ok(ExitCode::from(exit_code(&response)))
}

/// The form in which the guest's output is written.
#[derive(Clone, Copy)]
enum Encoding {
    /// Unchanged.
    Raw,
    /// As text with control characters escaped, for a terminal.
    Escaped,
}

fn encode(bytes: Vec<u8>, encoding: Encoding) -> Vec<u8> {
    match encoding {
        Encoding::Raw => bytes,
        Encoding::Escaped => escape(&String::from_utf8_lossy(&bytes)).into_owned().into_bytes(),
    }
}

/// Returns the full output of a stream. The response has only the beginning and the end of a long output; the rest is
/// fetched from the server.
fn full_output(session: &RemoteSession, response: &Value, stream: &str) -> Vec<u8> {
    let excerpt = || response[stream].as_str().unwrap_or_default().as_bytes().to_owned();
    if let Some(bytes) = response[format!("{stream}_base64")].as_str().and_then(|text| STANDARD.decode(text).ok()) {
        return bytes;
    }
    let number = response[format!("{stream}_resource")].as_str().and_then(|uri| uri.rsplit('/').next());
    let Some(number) = number else { return excerpt() };
    let Ok(bytes) = session.full_output(number) else {
        notice(&format!("the middle of {stream} is missing: the server does not have the full output any more"));
        return excerpt();
    };
    if response[format!("{stream}_missing_bytes")] != 0 {
        notice(&format!(
            "{stream} is incomplete: the server stores at most {} MiB of an output",
            MAX_FULL_OUTPUT_BYTES >> 20
        ));
    }
    bytes
}

fn exit_code(response: &Value) -> u8 {
    match (response["status"].as_str(), response["exit_code"].as_u64()) {
        (Some("timed_out"), _) => TIMED_OUT,
        (Some("killed" | "cancelled"), None) => RINGFENCE_FAILED,
        (_, Some(code)) => u8::try_from(code & 0xff).unwrap_or(RINGFENCE_FAILED),
        (Some("ok"), None) => 0,
        _ => 1,
    }
}

fn shell_command(arguments: &[String]) -> String {
    match arguments {
        [line] => line.clone(),
        arguments => {
            let quoted = arguments.iter().map(|argument| format!("'{}'", argument.replace('\'', "'\\''")));
            quoted.collect::<Vec<_>>().join(" ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted_for_the_shell() {
        let line = |arguments: &[&str]| shell_command(&arguments.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(line(&["echo a | cat"]), "echo a | cat");
        assert_eq!(line(&["echo", "it's", "$HOME; *"]), r"'echo' 'it'\''s' '$HOME; *'");
    }

    #[test]
    fn output_is_escaped_for_terminals_only() {
        let bytes = b"\x1b]52;c;eA==\x07ok\n\xff".to_vec();
        assert_eq!(encode(bytes.clone(), Encoding::Raw), bytes);
        assert_eq!(encode(bytes, Encoding::Escaped), "\\u{1b}]52;c;eA==\\u{7}ok\n\u{fffd}".as_bytes());
    }

    #[test]
    fn each_status_has_an_exit_code() {
        for (response, code) in [
            (json!({"status": "ok", "exit_code": 3}), 3),
            (json!({"status": "ok", "exit_code": null}), 0),
            (json!({"status": "error", "exit_code": null}), 1),
            (json!({"status": "timed_out", "exit_code": 143}), TIMED_OUT),
            (json!({"status": "killed"}), RINGFENCE_FAILED),
        ] {
            assert_eq!(exit_code(&response), code, "{response}");
        }
    }
}
