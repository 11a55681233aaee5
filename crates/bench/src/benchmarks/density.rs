//! Many live sessions: the memory of an idle one, and whether each still responds.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::json;

use super::Setup;
use crate::child::KillOnDrop;
use crate::process_memory::{ProcessTree, is_sandboxed, pss_mb, resident_mb};
use crate::report::{Bound, Figure, Row, Section};
use crate::server::Server;

/// Clients that create sessions in parallel.
const CLIENTS: usize = 8;

/// Idle bare interpreters to compare with.
const BARE_INTERPRETERS: usize = 20;

/// Time after which the sessions are idle.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// A session whose variable `x` has a known value.
struct Session {
    id: String,
    value: usize,
}

pub(super) fn measure(setup: &Setup) -> Result<Section> {
    let python = setup.python()?;
    let requested = setup.workload.live_sessions;
    let server = setup.start_server(&format!("[sessions]\nmax_sessions = {}\n", requested + 64))?;
    server.warm_up("python", "x = 0")?;
    let start = Instant::now();
    let (sessions, mut not_measured) = create_sessions(&server, requested);
    let seconds = start.elapsed().as_secs_f64();
    std::thread::sleep(SETTLE_TIME);
    let mut rows = Vec::new();
    match measure_memory(&server, python, sessions.len()) {
        Ok(memory) => rows.extend(memory),
        Err(error) => not_measured.push(format!("memory of sessions: {error:#}; only root can read it")),
    }
    rows.push(Row::single("server, resident", "MB", resident_mb(server.pid())?));
    let created = format!("sessions created by {CLIENTS} clients");
    rows.push(Row::single(created, "/s", number(sessions.len()) / seconds));
    let mut client = server.connect()?;
    let mut has_value = |session: &&Session| {
        let result = client.call("execute_code", &json!({"session_id": session.id, "code": "x"}));
        let value = result.map(|result| result.result["structuredContent"]["result"].clone());
        value.is_ok_and(|value| value.as_str() == Some(&session.value.to_string()))
    };
    let responding = sessions.iter().filter(|session| has_value(session)).count();
    let responding = Row::single(format!("sessions that still respond, of {requested}"), "", number(responding));
    rows.push(responding.target(Figure::Value, Bound::AtLeast, number(requested)));
    Ok(Section { rows, not_measured })
}

/// Creates as many of the requested sessions as possible, and returns the first error with them.
fn create_sessions(server: &Server, requested: usize) -> (Vec<Session>, Vec<String>) {
    let create_some = |first: usize| -> (Vec<Session>, Option<String>) {
        let mut sessions = Vec::new();
        let mut create_all = || -> Result<()> {
            let mut client = server.connect()?;
            for value in (first..requested).step_by(CLIENTS) {
                let id = client.create_session("python", &format!("x = {value}"))?.session_id()?;
                sessions.push(Session { id, value });
            }
            Ok(())
        };
        let failure = create_all().err().map(|error| format!("{error:#}"));
        (sessions, failure)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS).map(|first| scope.spawn(move || create_some(first))).collect();
        let (mut all, mut failures) = (Vec::new(), Vec::new());
        for (sessions, failure) in threads.into_iter().filter_map(|thread| thread.join().ok()) {
            all.extend(sessions);
            failures.extend(failure.map(|error| format!("some sessions: {error}")));
        }
        failures.truncate(1);
        (all, failures)
    })
}

/// Measures the memory of each sandbox. Sandboxes in the pool count too: they are as idle as the sessions.
fn measure_memory(server: &Server, python: &Path, sessions: usize) -> Result<Vec<Row>> {
    let tree = ProcessTree::read();
    let launcher = server.launcher(&tree)?;
    let mut sandboxes = Vec::new();
    let mut zygotes = 0.0;
    for child in tree.children(launcher) {
        let memory = tree.subtree_pss_mb(*child)?;
        if is_sandboxed(*child)? {
            sandboxes.push(memory);
        } else {
            zygotes += memory;
        }
    }
    let bare = format!("idle python3 -I, one of {BARE_INTERPRETERS}, PSS");
    let bare = Row::of_samples(bare, "MB", bare_interpreters_pss_mb(python)?);
    let session = Row::of_samples("idle session, PSS", "MB", sandboxes).compared_with(Some(&bare));
    let per_session = tree.subtree_pss_mb(server.pid())? / number(sessions.max(1));
    Ok(vec![
        session.target(Figure::Value, Bound::AtMost, 4.0),
        bare,
        Row::single("all processes, per session, PSS", "MB", per_session),
        Row::single("zygote, PSS", "MB", zygotes),
    ])
}

/// Measures bare interpreters that have printed something and wait for input.
fn bare_interpreters_pss_mb(python: &Path) -> Result<Vec<f64>> {
    let start = |_| -> Result<KillOnDrop> {
        let mut command = Command::new(python);
        command.args(["-I", "-c", "print(1, flush=True); input()"]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut interpreter = KillOnDrop(child);
        let stdout = interpreter.0.stdout.take();
        stdout.context("python3 has no standard output")?.read_exact(&mut [0; 2])?;
        Ok(interpreter)
    };
    let interpreters = (0..BARE_INTERPRETERS).map(start).collect::<Result<Vec<_>>>()?;
    interpreters.iter().map(|interpreter| pss_mb(interpreter.0.id())).collect()
}

fn number(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}
