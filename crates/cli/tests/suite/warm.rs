//! Sessions that are forked warm are as walled in as any other, and share nothing that should be each one's own.

use std::time::{Duration, Instant};

use ringfence_testkit::Who;
use serde_json::{Value, json};

use crate::leases::{begin, run};
use crate::server::Server;

/// What the kernel says of a Python, in a form that can be compared.
const WALLS: &str = r"
import json, os, resource
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
fields = ['NoNewPrivs', 'Seccomp', 'Seccomp_filters', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'Uid', 'Gid', 'Groups',
          'PPid']
walls = {field: status.get(field, '').strip() for field in fields}
# 32 and 33 are the C library's own, for its threads: what is imported ahead may have some.
walls |= {field: int(status[field], 16) & ~(3 << 31) for field in ['SigBlk', 'SigIgn', 'SigCgt']}
walls['namespaces'] = len(os.listdir('/proc/self/ns'))
walls['descriptors'] = sorted(os.path.basename(os.readlink(f'/proc/self/fd/{fd}')).split(':')[0]
                              for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{fd}'))
walls['environment'] = dict(os.environ)
walls['limits'] = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith('RLIMIT_')}
walls['session'] = os.getsid(0) == os.getpid()
walls['directory'] = os.getcwd()
walls['umask'] = os.umask(0o22)
walls['oom'] = open('/proc/self/oom_score_adj').read()
walls['own memory can be read'] = os.access('/proc/self/mem', os.R_OK)
print(json.dumps(walls))
";

const IS_WARM: &str = "print('python3' not in open('/proc/self/cmdline').read())";

/// A session that was forked from the zygote: those made before it is warm are not.
fn warm(server: &Server) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let session = begin(server, "python", "pass");
        if run(server, &session, IS_WARM)["stdout"] == "True\n" {
            return session;
        }
        server.call("stop_session", &json!({"session_id": session}));
        assert!(Instant::now() < deadline, "no session is forked warm");
    }
}

fn walls(server: &Server, session: &str) -> Value {
    let answer = run(server, session, WALLS);
    let text = answer["stdout"].as_str().unwrap_or_default();
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

#[test]
fn a_warm_kernel_stands_behind_the_walls_of_a_cold_one() {
    for who in [Who::Root, Who::Plain, Who::Sub] {
        if who.unavailable().is_some() {
            continue;
        }
        let server = Server::start_as(who, &[], &[]);
        let cold = Server::start_as(who, &[], &[("RINGFENCE_SESSIONS_POOL", "python=0")]);
        let session = begin(&cold, "python", "pass");
        assert_eq!(run(&cold, &session, IS_WARM)["stdout"], "False\n");
        let expected = walls(&cold, &session);
        assert_eq!((&expected["NoNewPrivs"], &expected["Seccomp"]), (&json!("1"), &json!("2")));
        assert_eq!(walls(&server, &warm(&server)), expected, "{who:?}");
    }
}

#[test]
fn a_cold_kernel_is_compiled_once_and_behaves_like_its_text() {
    let server = Server::start(&[], &[("RINGFENCE_SESSIONS_POOL", "python=0")]);
    let deadline = Instant::now() + Duration::from_secs(60);
    let facts = "import os, sys; print(sys.path[0] == '', 'exit' in dir(__builtins__), len(sys.path) > 4, sys.argv)";
    // What is compiled comes with its bridge packed.
    let is_compiled =
        "import sys; print(sys.modules['kernel_imports'].load_bridge_modules.__globals__['bridge'] is not None)";
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let session = begin(&server, "python", "def f(): return 1 / 0");
        let is_compiled = run(&server, &session, is_compiled)["stdout"].clone();
        let known = run(&server, &session, facts)["stdout"].clone();
        let failed = run(&server, &session, "f()");
        assert_eq!(failed["error"]["name"], "ZeroDivisionError", "{failed}");
        let traceback = failed["error"]["traceback"].as_str().unwrap_or_default();
        assert!(traceback.contains("def f(): return 1 / 0") && !traceback.contains("kernel"), "{traceback}");
        server.call("stop_session", &json!({"session_id": session}));
        if !seen.iter().any(|(found, _)| *found == is_compiled) {
            seen.push((is_compiled, known));
        }
        assert!(Instant::now() < deadline, "the kernel is never compiled: {seen:?}");
    }
    assert_eq!(seen[1].0, "True\n");
    assert_eq!(seen[0].1, seen[1].1);
}

#[test]
fn siblings_draw_different_numbers() {
    let server = Server::start(&[], &[]);
    let draw = "import random, uuid, tempfile, secrets\n\
        [random.random(), str(uuid.uuid4()), str(uuid.uuid1()), tempfile.mktemp(), secrets.token_hex()]";
    let [one, other] = [warm(&server), warm(&server)].map(|session| run(&server, &session, draw)["result"].clone());
    let parts =
        |text: &Value| -> Vec<String> { text.as_str().expect("a result").split(", ").map(Into::into).collect() };
    let (one, other) = (parts(&one), parts(&other));
    assert_eq!(one.len(), 5, "{one:?}");
    for (mine, theirs) in one.iter().zip(&other) {
        assert_ne!(mine, theirs);
    }
}
