//! A host at its limit of processes and threads, also if guests have used them up: callers get errors, and the server
//! keeps running.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ringfence_testkit::{Server, User, skip, wait_until};
use serde_json::{Value, json};

use crate::BINARY;

/// A cgroup that limits the number of processes and threads. It is removed on drop.
struct PidLimit(PathBuf);

impl PidLimit {
    /// Returns `None` if this user cannot create such a cgroup.
    fn new(name: &str) -> Option<Self> {
        let has_controller = |root: &PathBuf| {
            let v2_controllers = std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            root.ends_with("pids") && root.exists() || v2_controllers.split_whitespace().any(|name| name == "pids")
        };
        let root = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(PathBuf::from).into_iter().find(has_controller)?;
        // The name differs from those of sandboxes, whose empty cgroups are swept.
        let group = root.join(format!("test-{name}-{}", std::process::id()));
        std::fs::create_dir(&group).ok()?;
        Some(Self(group)).filter(|limit| limit.0.join("pids.max").exists())
    }

    fn set(&self, count: usize) {
        std::fs::write(self.0.join("pids.max"), count.to_string()).expect("write pids.max");
    }

    fn count(&self) -> usize {
        let text = std::fs::read_to_string(self.0.join("pids.current")).expect("read pids.current");
        text.trim().parse().expect("a number")
    }

    fn start_server(&self) -> Server {
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo $$ >"$0/cgroup.procs" && exec "$@""#]).arg(&self.0).arg(BINARY);
        Server::start_by(command)
    }
}

impl Drop for PidLimit {
    fn drop(&mut self) {
        fn remove(group: &Path) -> bool {
            let children = std::fs::read_dir(group).into_iter().flatten().flatten();
            children.map(|entry| entry.path()).filter(|path| path.is_dir()).all(|path| remove(&path))
                && std::fs::remove_dir(group).is_ok()
        }
        // Its last processes may still be exiting.
        for _ in 0..100 {
            if remove(&self.0) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn pid_limit(test: &str) -> Option<PidLimit> {
    let limit = User::Root.unavailable().is_none().then(|| PidLimit::new(test)).flatten();
    if limit.is_none() {
        skip(test, "this user cannot use a pids cgroup controller");
    }
    limit
}

/// Returns whether the response has a result, or an error with a code.
fn is_complete(response: &Value) -> bool {
    response["result"].is_object() || response["error"]["data"]["error_code"].is_string()
}

/// Each of the threads and processes that the first session needs is in turn the one that cannot be created.
#[test]
fn server_at_process_limit_reports_errors_and_survives() {
    let Some(limit) = pid_limit("server_at_process_limit_reports_errors_and_survives") else { return };
    let idle_count = {
        let _server = limit.start_server();
        limit.count()
    };
    let mut refused = 0;
    for spare in 0..6 {
        wait_until("processes of the previous server are left", || limit.count() == 0);
        limit.set(idle_count + spare);
        let mut server = limit.start_server();
        let response = server.call("execute_code", &json!({"code": "print(1)"}));
        assert!(is_complete(&response), "{spare} spare processes: {response}");
        refused += usize::from(response["error"].is_object());
        assert!(is_complete(&server.call("get_sessions", &json!({}))), "{spare} spare processes");
        limit.set(idle_count + 100);
        let response = server.call("execute_code", &json!({"code": "print(1)"}));
        assert_eq!(response["result"]["structuredContent"]["stdout"], "1\n", "{spare} spare processes: {response}");
        assert!(server.process.try_wait().expect("query the server process").is_none(), "{spare} spare processes");
    }
    assert!(refused >= 2, "only {refused} calls were refused, but a session needs more than one process");
}

#[test]
fn guest_that_uses_all_host_processes_does_not_break_server() {
    let Some(limit) = pid_limit("guest_that_uses_all_host_processes_does_not_break_server") else { return };
    let mut server = limit.start_server();
    let session = server.create_session("python", "x = 'unchanged'");
    // The pool creates its sandboxes before the limit is set.
    wait_until("the pool stays empty", || limit.count() > 8);
    limit.set(limit.count() + 20);
    let spawn_all = "import subprocess
children = []
try:
    while len(children) < 200:
        children.append(subprocess.Popen(['sleep', '60']))
except OSError as error:
    print(error.strerror)";
    assert_eq!(server.execute(&session, spawn_all)["stdout"], "Resource temporarily unavailable\n");
    let calls = [
        ("execute_code", json!({"code": "1", "template": "node"})),
        ("execute_code", json!({"code": "1"})),
        ("execute_command", json!({"command": "true", "session_id": session})),
        ("write_file", json!({"session_id": session, "path": "a", "content": "b"})),
        ("read_file", json!({"session_id": session, "path": "a"})),
        ("get_sessions", json!({})),
    ];
    for (tool, arguments) in &calls {
        let response = server.call(tool, arguments);
        assert!(is_complete(&response), "{tool}: {response}");
    }
    let freed =
        server.execute(&session, "for child in children: child.kill()\nfor child in children: child.wait()\nprint(x)");
    assert_eq!(freed["stdout"], "unchanged\n", "{freed}");
    limit.set(1000);
    for (tool, arguments) in &calls {
        let response = server.call(tool, arguments);
        assert_eq!(response["result"]["isError"], false, "{tool}: {response}");
    }
    assert!(server.process.try_wait().expect("query the server process").is_none());
}
