//! A second sandbox of the same user, which must work after a case as it did before.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use crate::{User, process};

/// Returns every line, after it has started a process and written a file.
const ECHO: &str = "
import subprocess, sys
for line in sys.stdin:
    subprocess.run(['true'], check=True)
    with open('/workspace/line', 'w') as file:
        file.write(line)
    print(line, end='', flush=True)
";

pub(super) struct Sibling {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Sibling {
    pub(super) fn start(user: User) -> Self {
        let mut command = user.ringfence();
        command.args(["run", "--", "python3", "-c", ECHO]).stdin(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = process::start(&mut command);
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().expect("stdout is piped"));
        let mut sibling = Self { process, input, output };
        sibling.assert_works("before the case");
        sibling
    }

    pub(super) fn assert_works(&mut self, when: &str) {
        let input = self.input.as_mut().expect("stdin is piped");
        writeln!(input, "{when}").unwrap_or_else(|error| panic!("the sibling has ended {when}: {error}"));
        let mut reply = String::new();
        self.output.read_line(&mut reply).expect("read the output of the sibling");
        assert_eq!(reply.trim_end(), when, "the sibling does not reply");
    }
}

impl Drop for Sibling {
    fn drop(&mut self) {
        // The end of its input ends it, unless it no longer works.
        self.input = None;
        if std::thread::panicking() {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}
