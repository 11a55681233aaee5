//! Input, output, signals and the terminal of the command.

use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use ringfence_testkit::{User, for_each_user, run_as, run_with_input_as};

use crate::BINARY;

#[test]
fn streams_are_binary_safe_and_unbounded() {
    let mut input = Vec::with_capacity(32 << 20);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    while input.len() < 32 << 20 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        input.extend(state.to_ne_bytes());
    }
    for_each_user("streams_are_binary_safe_and_unbounded", |user| {
        let outcome = run_with_input_as(user, &[], &["sh", "-c", "tee /dev/stderr | cat"], &input);
        assert_eq!(outcome.code, 0, "{user:?}");
        assert!(outcome.stdout == input, "{user:?}: {} of {} bytes were returned", outcome.stdout.len(), input.len());
    });
}

#[test]
fn command_ends_without_reading_its_input() {
    for_each_user("command_ends_without_reading_its_input", |user| {
        let mut child = user.ringfence();
        child.args(["run", "--", "true"]).stdin(Stdio::piped());
        let mut child = child.spawn().expect("process starts");
        let stdin = child.stdin.take();
        assert_eq!(child.wait().expect("process exits").code(), Some(0), "{user:?}");
        drop(stdin);
    });
}

#[test]
fn output_written_just_before_exit_is_not_lost() {
    for_each_user("output_written_just_before_exit_is_not_lost", |user| {
        for _ in 0..20 {
            let outcome = run_as(user, &[], &["sh", "-c", "echo out; echo err >&2"]);
            assert_eq!((outcome.text().as_str(), outcome.stderr.as_str()), ("out\n", "err\n"), "{user:?}");
        }
    });
}

#[test]
fn closed_stdout_ends_the_command() {
    for_each_user("closed_stdout_ends_the_command", |user| {
        let mut child = user.ringfence().args(["run", "--", "yes"]).spawn().expect("process starts");
        let mut start = [0; 2];
        child.stdout.take().expect("stdout is piped").read_exact(&mut start).expect("output is read");
        assert_eq!(child.wait().expect("process exits").code(), Some(128 + 13), "{user:?}");
    });
}

#[test]
fn signals_are_forwarded() {
    let program =
        "trap 'echo got TERM; exit 7' TERM; trap 'echo got USR1' USR1; echo ready; while :; do sleep 0.05; done";
    for_each_user("signals_are_forwarded", |user| {
        let mut child = user.ringfence();
        let mut child = child.args(["run", "--", "sh", "-c", program]).spawn().expect("process starts");
        let pid = rustix::process::Pid::from_child(&child);
        let mut stdout = child.stdout.take().expect("stdout is piped");
        let mut read = |expected: &str| {
            let mut line = vec![0; expected.len()];
            stdout.read_exact(&mut line).expect("output is read");
            assert_eq!(String::from_utf8_lossy(&line), expected, "{user:?}");
        };
        read("ready\n");
        rustix::process::kill_process(pid, rustix::process::Signal::USR1).expect("process is alive");
        read("got USR1\n");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("process is alive");
        read("got TERM\n");
        assert_eq!(child.wait().expect("process exits").code(), Some(7), "{user:?}");
    });
}

#[test]
fn command_gets_a_terminal_of_the_same_size() {
    if User::Root.unavailable().is_some() || !Path::new("/usr/bin/script").exists() {
        return ringfence_testkit::skip(
            "command_gets_a_terminal_of_the_same_size",
            "util-linux's `script` or root is missing",
        );
    }
    let all = format!("{BINARY} run -- sh -c 'tty; stty size; test -t 0 && test -t 1 && test -t 2 && echo all'");
    assert_eq!(output_in_terminal(&all), "/dev/pts/0\n33 77\nall\n");
    // The size is set before the command starts, so that a command that queries it first gets it every time.
    let repeated = format!("for _ in 1 2 3 4 5 6 7 8 9 10; do {BINARY} run -- stty size; done");
    assert_eq!(output_in_terminal(&repeated), "33 77\n".repeat(10));
}

/// Returns the output of a shell line in a terminal of 33 rows and 77 columns.
fn output_in_terminal(line: &str) -> String {
    // `script` starts the program in a new terminal.
    let mut command = User::Root.program(Path::new("/usr/bin/script"));
    command.args(["-qec", &format!("stty rows 33 cols 77; {line}"), "/dev/null"]).env("TERM", "xterm");
    let mut child = command.stdin(Stdio::piped()).spawn().expect("script runs");
    // The input must stay open: when it ends, `script` writes an end-of-file character, which the terminal echoes.
    let stdin = child.stdin.take();
    let mut text = String::new();
    child.stdout.take().expect("stdout is piped").read_to_string(&mut text).expect("output is read");
    drop(stdin);
    child.wait().expect("process exits");
    text.replace('\r', "")
}
