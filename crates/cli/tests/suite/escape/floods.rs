//! Cases 9 and 10: floods of output, and a reader that is slow. Every byte arrives as it was written, and the
//! runner's memory stays bounded.
//!
//! `bare` is the proof that this can fail: a runner that collects the output before it passes it on.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ringfence_testkit::escape::{Setup, leftovers};
use ringfence_testkit::{User, process};

/// Far more than all buffers on the way, and than the runner may have.
const FLOOD_BYTES: usize = 256 << 20;

/// The most memory that the runner may ever have.
const RUNNER_KILOBYTES: u64 = 64 << 10;

const KINDS: [&str; 5] = ["plain", "line", "nul", "ansi", "utf8"];

const COLLECTING_RUNNER: &str = "
import subprocess, sys
sys.stdout.buffer.write(subprocess.run(sys.argv[1:], stdout=subprocess.PIPE).stdout)
";

/// How the output is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    Eager,
    /// Stops for a while when the flood has begun.
    Stopping,
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

/// Reads a flood beside the same one without a runner, and compares them; gives the runner's peak memory.
fn peak_kilobytes(runner: &mut Command, reference: &mut Command, stream: Stream, reader: Reader) -> u64 {
    let (mut runner, mut reference) = (start(runner, stream), start(reference, Stream::Stdout));
    let (mut from_runner, mut from_reference) = (output(&mut runner, stream), output(&mut reference, Stream::Stdout));
    let (mut chunk, mut expected) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut peak = 0;
    for count in 0..FLOOD_BYTES / chunk.len() {
        from_runner.read_exact(&mut chunk).expect("the flood arrives whole");
        from_reference.read_exact(&mut expected).expect("the flood is written");
        assert!(chunk == expected, "the flood was changed within MiB {count}");
        if count == 1 && reader == Reader::Stopping {
            std::thread::sleep(Duration::from_millis(200));
        }
        peak = peak.max(peak_of(runner.id()));
    }
    let rest = from_runner.read(&mut chunk).expect("the end of the flood is readable");
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

/// The most memory that a process has had; 0 once it has ended.
fn peak_of(pid: u32) -> u64 {
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
    let mut collecting = User::Root.program(Path::new("/usr/bin/python3"));
    collecting.args(["-c", COLLECTING_RUNNER]).arg(reference.get_program()).args(reference.get_args());
    let peak = peak_kilobytes(&mut collecting, &mut reference, Stream::Stdout, Reader::Stopping);
    assert!(peak > RUNNER_KILOBYTES, "this cannot fail: a runner that collects had only {peak} KiB");
}

fn sandboxed(test: &str, who: User) {
    if who.skip_if_unavailable(test) {
        return;
    }
    let floods = KINDS.map(|kind| (kind, Stream::Stdout, Reader::Eager));
    let others = [("plain", Stream::Stderr, Reader::Eager), ("line", Stream::Stdout, Reader::Stopping)];
    for (kind, stream, reader) in floods.into_iter().chain(others) {
        let setup = Setup::new(who);
        let mut runner = setup.sandboxed("", "c09_output_flood.py", &flood(kind, stream));
        let mut reference = setup.bare("c09_output_flood.py", &flood(kind, Stream::Stdout));
        let peak = peak_kilobytes(&mut runner, &mut reference, stream, reader);
        assert!(peak > 0, "the runner's memory was never seen");
        assert!(peak < RUNNER_KILOBYTES, "a flood of {kind} took the runner {peak} KiB");
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
