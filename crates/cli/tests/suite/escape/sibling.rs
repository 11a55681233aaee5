//! Another sandbox of the same user, started before a case: it must be as well after it as before.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use ringfence_testkit::Who;

use super::run;
use super::stage::RINGFENCE;

/// Answers every line with the same line, once it has shown that it can still start a process and write a file.
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
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Sibling {
    pub(super) fn start(who: Who) -> Self {
        let mut command = who.ringfence(Path::new(RINGFENCE));
        command.args(["run", "--", "python3", "-c", ECHO]).stdin(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = run::start(&mut command);
        let to = process.stdin.take();
        let from = BufReader::new(process.stdout.take().expect("stdout is piped"));
        let mut sibling = Self { process, to, from };
        sibling.assert_well("before the case");
        sibling
    }

    pub(super) fn assert_well(&mut self, when: &str) {
        let to = self.to.as_mut().expect("stdin is piped");
        writeln!(to, "{when}").unwrap_or_else(|error| panic!("the sibling is gone {when}: {error}"));
        let mut answer = String::new();
        self.from.read_line(&mut answer).expect("the sibling's output is readable");
        assert_eq!(answer.trim_end(), when, "the sibling does not answer");
    }
}

impl Drop for Sibling {
    fn drop(&mut self) {
        // Its input ends, so it does; the kill is for one that is no longer well.
        self.to = None;
        if std::thread::panicking() {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}
