//! A host that has no process or thread left to give, be it that guests have taken them: callers are told, and the server
//! lives.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ringfence_testkit::{Server, User, skip, wait_until};
use serde_json::{Value, json};

use crate::BINARY;

/// A cgroup that bounds processes and threads. Dropped, it is removed.
struct Bound(PathBuf);

impl Bound {
    /// None where this user cannot make one.
    fn new(name: &str) -> Option<Self> {
        let has_controller = |root: &PathBuf| {
            let of_v2 = std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            root.ends_with("pids") && root.exists() || of_v2.split_whitespace().any(|name| name == "pids")
        };
        let root = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(PathBuf::from).into_iter().find(has_controller)?;
        // Not named as those of sandboxes are, which are swept when they are empty.
        let group = root.join(format!("test-{name}-{}", std::process::id()));
        std::fs::create_dir(&group).ok()?;
        Some(Self(group)).filter(|bound| bound.0.join("pids.max").exists())
    }

    fn allow(&self, count: usize) {
        std::fs::write(self.0.join("pids.max"), count.to_string()).expect("it is ours");
    }

    fn count(&self) -> usize {
        let text = std::fs::read_to_string(self.0.join("pids.current")).expect("it is there");
        text.trim().parse().expect("a number")
    }

    fn start(&self) -> Server {
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo $$ >"$0/cgroup.procs" && exec "$@""#]).arg(&self.0).arg(BINARY);
        Server::start_by(command)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        fn remove(group: &Path) -> bool {
            let below = std::fs::read_dir(group).into_iter().flatten().flatten();
            below.map(|entry| entry.path()).filter(|path| path.is_dir()).all(|path| remove(&path))
                && std::fs::remove_dir(group).is_ok()
        }
        // Those that were in it may still be ending.
        for _ in 0..100 {
            if remove(&self.0) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn bound(test: &str) -> Option<Bound> {
    let made = User::Root.unavailable().is_none().then(|| Bound::new(test)).flatten();
    if made.is_none() {
        skip(test, "there is no cgroup controller for processes that this user could use");
    }
    made
}

/// Whether somebody who asked was told what came of it: the result, or why there is none.
fn is_told(answer: &Value) -> bool {
    answer["result"].is_object() || answer["error"]["data"]["error_code"].is_string()
}

/// Each thread and process that a first session takes is once the one that is not to be had.
#[test]
fn a_server_that_can_start_no_more_lives_and_says_so() {
    let Some(bound) = bound("can-start-no-more") else { return };
    let at_rest = {
        let _server = bound.start();
        bound.count()
    };
    let mut refused = 0;
    for more in 0..6 {
        wait_until("the one before is left", || bound.count() == 0);
        bound.allow(at_rest + more);
        let mut server = bound.start();
        let answer = server.call("execute_code", &json!({"code": "print(1)"}));
        assert!(is_told(&answer), "{more} more: {answer}");
        refused += usize::from(answer["error"].is_object());
        assert!(is_told(&server.call("get_sessions", &json!({}))), "{more} more");
        bound.allow(at_rest + 100);
        let answer = server.call("execute_code", &json!({"code": "print(1)"}));
        assert_eq!(answer["result"]["structuredContent"]["stdout"], "1\n", "{more} more: {answer}");
        assert!(server.process.try_wait().expect("it is ours").is_none(), "{more} more");
    }
    assert!(refused >= 2, "{refused} were refused: a session takes more than one process");
}

#[test]
fn a_guest_that_takes_all_processes_of_the_host_harms_no_server() {
    let Some(bound) = bound("takes-all-processes") else { return };
    let mut server = bound.start();
    let session = server.create_session("python", "x = 'kept'");
    // What waits ready is made before.
    wait_until("nothing waits", || bound.count() > 8);
    bound.allow(bound.count() + 20);
    let take = "import subprocess
held = []
try:
    while len(held) < 200:
        held.append(subprocess.Popen(['sleep', '60']))
except OSError as error:
    print(error.strerror)";
    assert_eq!(server.execute(&session, take)["stdout"], "Resource temporarily unavailable\n");
    let calls = [
        ("execute_code", json!({"code": "1", "template": "node"})),
        ("execute_code", json!({"code": "1"})),
        ("execute_command", json!({"command": "true", "session_id": session})),
        ("write_file", json!({"session_id": session, "path": "a", "content": "b"})),
        ("read_file", json!({"session_id": session, "path": "a"})),
        ("get_sessions", json!({})),
    ];
    for (tool, arguments) in &calls {
        let answer = server.call(tool, arguments);
        assert!(is_told(&answer), "{tool}: {answer}");
    }
    let freed = server.execute(&session, "for it in held: it.kill()\nfor it in held: it.wait()\nprint(x)");
    assert_eq!(freed["stdout"], "kept\n", "{freed}");
    bound.allow(1000);
    for (tool, arguments) in &calls {
        let answer = server.call(tool, arguments);
        assert_eq!(answer["result"]["isError"], false, "{tool}: {answer}");
    }
    assert!(server.process.try_wait().expect("it is ours").is_none());
}
