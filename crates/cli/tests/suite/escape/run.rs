//! Runs a program to its end, with its process id known and a deadline.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

/// Every script ends by itself after 20 s; three times that is stuck.
const DEADLINE: Duration = Duration::from_secs(60);

/// How a run ended, and what it wrote.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) pid: u32,
    pub(super) code: i32,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

pub(super) fn start(command: &mut Command) -> Child {
    command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"))
}

/// Waits until the program has ended and nobody holds its output any more.
pub(super) fn to_end(command: &mut Command) -> Ended {
    let mut child = start(command);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let stdout = thread::spawn(move || read(stdout));
    let stderr = thread::spawn(move || read(stderr));
    let code = wait(&mut child);
    let join = |reader: thread::JoinHandle<String>| reader.join().expect("the output is read");
    Ended { pid: child.id(), code, stdout: join(stdout), stderr: join(stderr) }
}

/// Waits for the program's end; gives its exit code, or 128 and the signal's number.
pub(super) fn wait(child: &mut Child) -> i32 {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(status) = child.try_wait().expect("the child is ours") {
            return status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        }
        if Instant::now() > deadline {
            child.kill().expect("the child is ours");
            panic!("a run was not over after {DEADLINE:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn read(from: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    from.expect("the stream is piped").read_to_end(&mut bytes).expect("the stream is readable");
    String::from_utf8_lossy(&bytes).into_owned()
}
