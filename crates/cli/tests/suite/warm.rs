//! Sessions forked from a zygote ("warm") are as isolated as those started by exec ("cold"), and share no random state.

use std::time::{Duration, Instant};

use ringfence_testkit::{Server, User};
use serde_json::{Value, json};

/// Python code that prints the restrictions of its process as JSON.
const RESTRICTIONS: &str = r"
import json, os, resource
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
fields = ['NoNewPrivs', 'Seccomp', 'Seccomp_filters', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'Uid', 'Gid', 'Groups',
          'PPid']
restrictions = {field: status.get(field, '').strip() for field in fields}
# The C library uses signals 32 and 33 for threads, which modules imported by the zygote may have started.
restrictions |= {field: int(status[field], 16) & ~(3 << 31) for field in ['SigBlk', 'SigIgn', 'SigCgt']}
restrictions['namespaces'] = len(os.listdir('/proc/self/ns'))
restrictions['descriptors'] = sorted(os.path.basename(os.readlink(f'/proc/self/fd/{fd}')).split(':')[0]
                              for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{fd}'))
restrictions['environment'] = dict(os.environ)
restrictions['limits'] = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith('RLIMIT_')}
restrictions['session'] = os.getsid(0) == os.getpid()
restrictions['directory'] = os.getcwd()
restrictions['umask'] = os.umask(0o22)
restrictions['oom'] = open('/proc/self/oom_score_adj').read()
restrictions['can read /proc/self/mem'] = os.access('/proc/self/mem', os.R_OK)
print(json.dumps(restrictions))
";

const IS_WARM: &str = "print('python3' not in open('/proc/self/cmdline').read())";

/// Creates a session that was forked from the zygote. Sessions are started by exec until the zygote is ready.
fn create_warm_session(server: &Server) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let session = server.create_session("python", "pass");
        if server.execute(&session, IS_WARM)["stdout"] == "True\n" {
            return session;
        }
        server.call("stop_session", &json!({"session_id": session}));
        assert!(Instant::now() < deadline, "no session was forked from the zygote");
    }
}

/// Returns the restrictions of the interpreter of a session.
fn restrictions(server: &Server, session: &str) -> Value {
    let response = server.execute(session, RESTRICTIONS);
    let text = response["stdout"].as_str().unwrap_or_default();
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {response}"))
}

#[test]
fn warm_kernel_has_the_restrictions_of_a_cold_one() {
    for user in [User::Root, User::Plain, User::WithSubids] {
        if user.unavailable().is_some() {
            continue;
        }
        let server = Server::start_as(user, &[], &[]);
        let cold = Server::start_as(user, &[], &[("RINGFENCE_SESSIONS_POOL", "python=0")]);
        let session = cold.create_session("python", "pass");
        assert_eq!(cold.execute(&session, IS_WARM)["stdout"], "False\n");
        let expected = restrictions(&cold, &session);
        assert_eq!((&expected["NoNewPrivs"], &expected["Seccomp"]), (&json!("1"), &json!("2")));
        assert_eq!(restrictions(&server, &create_warm_session(&server)), expected, "{user:?}");
    }
}

#[test]
fn compiled_kernel_behaves_like_its_source() {
    let server = Server::start(&[], &[("RINGFENCE_SESSIONS_POOL", "python=0")]);
    let deadline = Instant::now() + Duration::from_secs(60);
    let facts = "import os, sys; print(sys.path[0] == '', 'exit' in dir(__builtins__), len(sys.path) > 4, sys.argv)";
    // Only the compiled kernel contains its bridge.
    let is_compiled =
        "import sys; print(sys.modules['kernel_imports'].load_bridge_modules.__globals__['bridge'] is not None)";
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let session = server.create_session("python", "def f(): return 1 / 0");
        let is_compiled = server.execute(&session, is_compiled)["stdout"].clone();
        let known = server.execute(&session, facts)["stdout"].clone();
        let failed = server.execute(&session, "f()");
        assert_eq!(failed["error"]["name"], "ZeroDivisionError", "{failed}");
        let traceback = failed["error"]["traceback"].as_str().unwrap_or_default();
        assert!(traceback.contains("def f(): return 1 / 0") && !traceback.contains("kernel"), "{traceback}");
        server.call("stop_session", &json!({"session_id": session}));
        if !seen.iter().any(|(found, _)| *found == is_compiled) {
            seen.push((is_compiled, known));
        }
        assert!(Instant::now() < deadline, "the kernel was not compiled: {seen:?}");
    }
    assert_eq!(seen[1].0, "True\n");
    assert_eq!(seen[0].1, seen[1].1);
}

#[test]
fn forked_kernels_draw_different_random_numbers() {
    let server = Server::start(&[], &[]);
    let draw = "import random, uuid, tempfile, secrets\n\
        [random.random(), str(uuid.uuid4()), str(uuid.uuid1()), tempfile.mktemp(), secrets.token_hex()]";
    let [first, second] = [create_warm_session(&server), create_warm_session(&server)]
        .map(|session| server.execute(&session, draw)["result"].clone());
    let parts =
        |text: &Value| -> Vec<String> { text.as_str().expect("a result").split(", ").map(Into::into).collect() };
    let (first, second) = (parts(&first), parts(&second));
    assert_eq!(first.len(), 5, "{first:?}");
    for (value, other) in first.iter().zip(&second) {
        assert_ne!(value, other);
    }
}
