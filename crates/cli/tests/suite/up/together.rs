//! Supervisors that share a state directory.

use super::*;

/// Returns the worker of this supervisor; `status` covers only one supervisor.
fn worker_of(server: &Server) -> u32 {
    let mut found = None;
    wait_until("the supervisor has no worker", || {
        let is_worker = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).nth(1) == Some(b"worker") && process::is_alive(*pid)
        };
        found = process::descendants(server.process.id()).into_iter().find(is_worker);
        found.is_some()
    });
    found.expect("process ID")
}

/// Kills the worker and waits until the next one serves.
fn replace_worker(server: &Server) {
    let killed = worker_of(server);
    signal(killed, Signal::KILL);
    wait_until("the worker is not replaced", || worker_of(server) != killed);
    server.request("tools/list", &json!({}));
}

#[test]
fn sessions_of_a_live_supervisor_without_a_worker_are_not_adopted() {
    let variables = [("RINGFENCE_SESSIONS_LEASE_S", "600")];
    let (first, _) = up(&[], &variables);
    let (second, _) = up_in(Arc::clone(&first.state), &[], &variables);
    let first_session = first.create_session("python", "x = 'first'");
    let second_session = second.create_session("python", "x = 'second'");
    // While the supervisor is stopped, it does not replace its worker.
    let killed = worker_of(&first);
    let stopped = Stopped::new(first.process.id());
    signal(killed, Signal::KILL);
    wait_until("the worker is still alive", || !process::is_alive(killed));
    replace_worker(&second);
    assert_eq!(second.execute(&second_session, "print(x)")["stdout"], "second\n");
    // A supervisor that exits while its worker hangs ends only its sessions.
    signal(worker_of(&second), Signal::STOP);
    let mut second = second;
    signal(second.process.id(), Signal::TERM);
    assert_eq!(second.process.wait().expect("wait for the process").code(), Some(0));
    drop(stopped);
    assert_eq!(first.execute(&first_session, "print(x)")["stdout"], "first\n");
    // The sessions of the second supervisor have ended, and were not adopted.
    let response = first.call("execute_code", &json!({"code": "print(x)", "session_id": second_session}));
    assert_eq!(response["error"]["data"]["error_code"], "SESSION_NOT_FOUND", "{response}");
    end(first);
}
