//! Supervisors that share a state directory.

use super::*;

/// Of a supervisor itself: `status` tells of one alone.
fn worker_of(server: &Server) -> u32 {
    let mut found = None;
    wait_until("it has no worker", || {
        let is_worker = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).nth(1) == Some(b"worker") && process::is_alive(*pid)
        };
        found = process::descendants(server.process.id()).into_iter().find(is_worker);
        found.is_some()
    });
    found.expect("it was found")
}

/// Kills the worker, and waits until the next one serves.
fn replace_worker(server: &Server) {
    let killed = worker_of(server);
    signal(killed, Signal::KILL);
    wait_until("no other takes its place", || worker_of(server) != killed);
    server.request("tools/list", &json!({}));
}

#[test]
fn sessions_are_left_to_the_supervisor_that_lives_while_it_has_no_worker() {
    let variables = [("RINGFENCE_SESSIONS_LEASE_S", "600")];
    let (one, _) = up(&[], &variables);
    let (other, _) = up_in(Arc::clone(&one.state), &[], &variables);
    let of_one = one.create_session("python", "x = 'of one'");
    let of_other = other.create_session("python", "x = 'of the other'");
    // For as long as it stands still nobody replaces its worker.
    let killed = worker_of(&one);
    let halted = Halted::new(one.process.id());
    signal(killed, Signal::KILL);
    wait_until("it lives", || !process::is_alive(killed));
    replace_worker(&other);
    assert_eq!(other.execute(&of_other, "print(x)")["stdout"], "of the other\n");
    // One that ends, and whose worker cannot do so itself, ends what is its own alone.
    signal(worker_of(&other), Signal::STOP);
    let mut other = other;
    signal(other.process.id(), Signal::TERM);
    assert_eq!(other.process.wait().expect("it is ours").code(), Some(0));
    drop(halted);
    assert_eq!(one.execute(&of_one, "print(x)")["stdout"], "of one\n");
    // What the other had is gone, and nobody else has it.
    let gone = one.call("execute_code", &json!({"code": "print(x)", "session_id": of_other}));
    assert_eq!(gone["error"]["data"]["error_code"], "SESSION_NOT_FOUND", "{gone}");
    end(one);
}
