//! Limits of the workspace and of memory.

use std::io::{Read, Write};
use std::process::Stdio;

use ringfence_testkit::{for_each_user, run_python_as};

#[test]
fn full_workspace_fails_writes_but_does_not_end_the_command() {
    let program = r"
import errno, os
def fill(path):
    try:
        with open(path, 'wb') as file:
            for _ in range(128):
                file.write(b'x' * (1 << 20))
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        os.unlink(path)
print(fill('/workspace/big'), fill('/tmp/big'), fill('/dev/shm/big'))
open('/workspace/small', 'w').write('alive')
print(open('/workspace/small').read())
";
    for_each_user("full_workspace_fails_writes_but_does_not_end_the_command", |user| {
        let outcome = run_python_as(user, &["--workspace", "64M"], program);
        assert_eq!(outcome.text(), "ENOSPC ENOSPC ENOSPC\nalive\n", "{user:?}: {}", outcome.stderr);
    });
}

#[test]
fn memory_bomb_is_killed_with_a_reason_and_other_sandboxes_continue() {
    for_each_user("memory_bomb_is_killed_with_a_reason_and_other_sandboxes_continue", |user| {
        let sibling = user.ringfence().args(["run", "--", "cat"]).stdin(Stdio::piped()).spawn();
        let mut sibling = sibling.expect("second sandbox starts");
        // Many processes, so that no limit of a single process is reached first. The command ends with the first that is
        // killed, unless the whole sandbox is killed.
        let bomb = "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        x = bytearray(60 << 20)\n        for i in range(0, len(x), 4096): x[i] = 1\n        time.sleep(20)\nos.wait()";
        let outcome = run_python_as(user, &["--memory", "128M", "--timeout", "10"], bomb);
        assert!(outcome.stderr.contains("memory limit of 128 MiB"), "{user:?}: {} {}", outcome.code, outcome.stderr);
        sibling.stdin.take().expect("stdin is piped").write_all(b"still here").expect("input is written");
        let mut output = String::new();
        sibling.stdout.take().expect("stdout is piped").read_to_string(&mut output).expect("output is read");
        assert_eq!(
            (output.as_str(), sibling.wait().expect("process exits").code()),
            ("still here", Some(0)),
            "{user:?}"
        );
    });
}
