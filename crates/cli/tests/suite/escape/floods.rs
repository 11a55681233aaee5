//! Cases 9 and 10: floods of output, and a slow reader. Every byte arrives unchanged, and the memory of the runner
//! stays bounded.
//!
//! `bare` is the control, which shows that the case can fail: a runner that buffers all output before it forwards it.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ringfence_testkit::escape::{Setup, leftovers};
use ringfence_testkit::{User, process};

/// Far more than all buffers between writer and reader, and than the memory limit of the runner.
const FLOOD_BYTES: usize = 256 << 20;

/// Maximum peak memory of the runner.
const MAX_RUNNER_KILOBYTES: u64 = 64 << 10;

const KINDS: [&str; 5] = ["plain", "line", "nul", "ansi", "utf8"];

const BUFFERING_RUNNER: &str = "
import subprocess, sys
sys.stdout.buffer.write(subprocess.run(sys.argv[1:], stdout=subprocess.PIPE).stdout)
";

/// The way in which the test reads the output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    Eager,
    /// Pauses once after the flood has begun.
    Pausing,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    Stdout,
    Stderr,
}

fn flood(kind: &str, stream: Stream) -> String {
    let fd = if stream == Stream::Stdout { 1 } else { 2 };
    format!("--kind {kind} --bytes {FLOOD_BYTES} --fd {fd} --seconds 240")
}

/// Compares the flood of a runner with the same flood without a runner. Returns the peak memory of the runner.
fn peak_kilobytes(runner: &mut Command, reference: &mut Command, stream: Stream, reader: Reader) -> u64 {
    let (mut runner, mut reference) = (start(runner, stream), start(reference, Stream::Stdout));
    let (mut from_runner, mut from_reference) = (output(&mut runner, stream), output(&mut reference, Stream::Stdout));
    let (mut chunk, mut expected) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut peak = 0;
    for count in 0..FLOOD_BYTES / chunk.len() {
        from_runner.read_exact(&mut chunk).expect("flood arrives complete");
        from_reference.read_exact(&mut expected).expect("reference flood is written");
        assert!(chunk == expected, "the flood was changed within MiB {count}");
        if count == 1 && reader == Reader::Pausing {
            std::thread::sleep(Duration::from_millis(200));
        }
        peak = peak.max(process_peak_kilobytes(runner.id()));
    }
    let rest = from_runner.read(&mut chunk).expect("end of the flood is readable");
    assert_eq!(rest, 0, "something was added to the flood");
    assert_eq!((process::wait(&mut runner), process::wait(&mut reference)), (0, 0));
    peak
}

fn start(command: &mut Command, stream: Stream) -> Child {
    match stream {
        Stream::Stdout => process::start(command.stdout(Stdio::piped()).stderr(Stdio::null())),
        Stream::Stderr => process::start(command.stdout(Stdio::null()).stderr(Stdio::piped())),
    }
}

fn output(child: &mut Child, stream: Stream) -> Box<dyn Read> {
    match stream {
        Stream::Stdout => Box::new(child.stdout.take().expect("stdout is piped")),
        Stream::Stderr => Box::new(child.stderr.take().expect("stderr is piped")),
    }
}

/// Returns the peak memory of a process in KiB, or 0 if the process has ended.
fn process_peak_kilobytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
    peak.unwrap_or(0)
}

#[test]
fn bare() {
    if User::Root.skip_if_unavailable("c09_flood::bare") {
        return;
    }
    let setup = Setup::new(User::Root);
    let arguments = flood("plain", Stream::Stdout);
    let mut reference = setup.bare("c09_output_flood.py", &arguments);
    let mut buffering = User::Root.program(Path::new("/usr/bin/python3"));
    buffering.args(["-c", BUFFERING_RUNNER]).arg(reference.get_program()).args(reference.get_args());
    let peak = peak_kilobytes(&mut buffering, &mut reference, Stream::Stdout, Reader::Pausing);
    assert!(peak > MAX_RUNNER_KILOBYTES, "the case cannot fail: a buffering runner used only {peak} KiB");
}

fn sandboxed(test: &str, user: User) {
    if user.skip_if_unavailable(test) {
        return;
    }
    let floods = KINDS.map(|kind| (kind, Stream::Stdout, Reader::Eager));
    let others = [("plain", Stream::Stderr, Reader::Eager), ("line", Stream::Stdout, Reader::Pausing)];
    for (kind, stream, reader) in floods.into_iter().chain(others) {
        let setup = Setup::new(user);
        let mut runner = setup.sandboxed("", "c09_output_flood.py", &flood(kind, stream));
        let mut reference = setup.bare("c09_output_flood.py", &flood(kind, Stream::Stdout));
        let peak = peak_kilobytes(&mut runner, &mut reference, stream, reader);
        assert!(peak > 0, "the memory of the runner was never measured");
        assert!(peak < MAX_RUNNER_KILOBYTES, "the runner used {peak} KiB for a flood of {kind}");
        leftovers::assert_no_processes(&setup);
    }
}

#[test]
fn root() {
    sandboxed("c09_flood::root", User::Root);
}

#[test]
fn plain() {
    sandboxed("c09_flood::plain", User::Plain);
}

#[test]
fn sub() {
    sandboxed("c09_flood::sub", User::WithSubids);
}
