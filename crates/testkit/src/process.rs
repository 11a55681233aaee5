//! Programs that tests start, and the processes of the host.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

/// Ends programs that hang; no program needs this long, even on a busy host.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Exit code and output of a program that has ended.
#[derive(Debug)]
pub struct Outcome {
    pub pid: u32,
    /// The exit code, or 128 plus the number of the signal.
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Outcome {
    /// Returns standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

pub fn start(command: &mut Command) -> Child {
    command.spawn().unwrap_or_else(|error| panic!("start {command:?}: {error}"))
}

/// Runs a program whose output is piped, until it has ended and no process has its output open.
pub fn run(command: &mut Command) -> Outcome {
    run_with_input(command, &[])
}

/// Runs a program like [`run`]; `input` is written if its standard input is piped.
pub fn run_with_input(command: &mut Command, input: &[u8]) -> Outcome {
    let mut child = start(command);
    let stdin = child.stdin.take();
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        scope.spawn(move || {
            // The program may end before it has read all.
            stdin.map(|mut stdin| stdin.write_all(input))
        });
        let stdout = scope.spawn(move || read(&mut stdout));
        let stderr = scope.spawn(move || read(&mut stderr));
        let code = wait(&mut child);
        let stderr = String::from_utf8_lossy(&stderr.join().expect("read stderr")).into_owned();
        Outcome { pid: child.id(), code, stdout: stdout.join().expect("read stdout"), stderr }
    })
}

fn read(stream: &mut Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.as_mut().expect("the stream is piped").read_to_end(&mut bytes).expect("read the stream");
    bytes
}

/// Waits for the end of a program; returns its exit code, or 128 plus the number of the signal.
pub fn wait(child: &mut Child) -> i32 {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(status) = child.try_wait().expect("wait for the program") {
            return status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        }
        if Instant::now() > deadline {
            child.kill().expect("kill the program");
            panic!("a program has not ended after {TIMEOUT:?}");
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Returns the processes of the host, among them those of sandboxes.
pub fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("read /proc").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Reports whether a process exists and is no zombie.
pub fn is_alive(pid: u32) -> bool {
    stat_fields(pid).is_some_and(|fields| !fields.starts_with('Z'))
}

/// Returns the processes that a process has started, and those started by these.
pub fn descendants(root: u32) -> BTreeSet<u32> {
    let parent = |pid: u32| stat_fields(pid)?.split(' ').nth(1)?.parse::<u32>().ok();
    let parents: Vec<(u32, u32)> = all().into_iter().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut family = BTreeSet::from([root]);
    loop {
        let children = parents.iter().filter(|(_, parent)| family.contains(parent)).map(|(pid, _)| *pid);
        let children: Vec<u32> = children.filter(|pid| !family.contains(pid)).collect();
        if children.is_empty() {
            family.remove(&root);
            return family;
        }
        family.extend(children);
    }
}

/// Reports whether the command line of a process contains a text.
pub fn is_running(text: &str) -> bool {
    all().into_iter().any(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(text)
    })
}

/// Returns the fields of `/proc/PID/stat` after the name, which may contain anything: state, parent and so on.
fn stat_fields(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ").map(|(_, fields)| fields.to_owned())
}
