//! Many live sessions: what an idle one holds, and whether each still answers.

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::json;

use super::effort::Effort;
use super::host::Host;
use super::memory::{Tree, is_sandboxed, pss_mb, resident_mb};
use super::report::Section;
use super::rows::{Bound, Figure, Row};
use super::server::Server;

/// Clients that make sessions side by side.
const CLIENTS: usize = 8;

/// Bare interpreters that wait, to compare with.
const BARE: usize = 20;

/// For the host to come to rest.
const REST: Duration = Duration::from_secs(1);

/// A session, and what it was told to remember.
struct Made {
    id: String,
    number: usize,
}

pub(super) fn measure(effort: &Effort, host: &Host) -> Result<Section> {
    let python = host.python.as_ref().context("there is no python3")?;
    let server = Server::start(&format!("[sessions]\nmax_sessions = {}\n", effort.sessions + 64))?;
    server.warm_up("python", "x = 0")?;
    let start = Instant::now();
    let (made, mut left_out) = make(&server, effort.sessions);
    let seconds = start.elapsed().as_secs_f64();
    std::thread::sleep(REST);
    let mut rows = Vec::new();
    match weigh(&server, python, made.len()) {
        Ok(weighed) => rows.extend(weighed),
        Err(error) => left_out.push(format!("memory of sessions: {error:#}; root can read it")),
    }
    rows.push(Row::single("server, resident", "MB", resident_mb(server.pid())?));
    rows.push(Row::single(format!("sessions made by {CLIENTS} clients"), "/s", count(made.len()) / seconds));
    let mut client = server.connect()?;
    let mut remembers = |made: &&Made| {
        let answered = client.call("execute_code", &json!({"session_id": made.id, "code": "x"}));
        let shown = answered.map(|answered| answered.result["structuredContent"]["result"].clone());
        shown.is_ok_and(|shown| shown.as_str() == Some(&made.number.to_string()))
    };
    let answering = made.iter().filter(|made| remembers(made)).count();
    let answering = Row::single(format!("of {} sessions still answer", effort.sessions), "", count(answering));
    rows.push(answering.target(Figure::Value, Bound::AtLeast, count(effort.sessions)));
    Ok(Section { rows, left_out })
}

/// Makes as many sessions as can be, and says why the first of the others could not.
fn make(server: &Server, wanted: usize) -> (Vec<Made>, Vec<String>) {
    let make_some = |first: usize| -> (Vec<Made>, Option<String>) {
        let mut made = Vec::new();
        let mut make_all = || -> Result<()> {
            let mut client = server.connect()?;
            for number in (first..wanted).step_by(CLIENTS) {
                let id = client.create("python", &format!("x = {number}"))?.session_id()?;
                made.push(Made { id, number });
            }
            Ok(())
        };
        let failure = make_all().err().map(|error| format!("{error:#}"));
        (made, failure)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS).map(|first| scope.spawn(move || make_some(first))).collect();
        let (mut all, mut failures) = (Vec::new(), Vec::new());
        for (made, failure) in threads.into_iter().filter_map(|thread| thread.join().ok()) {
            all.extend(made);
            failures.extend(failure.map(|why| format!("some sessions: {why}")));
        }
        failures.truncate(1);
        (all, failures)
    })
}

/// Adds up what the processes of each sandbox hold, those that wait in the pool included: they are idle too.
fn weigh(server: &Server, python: &Path, sessions: usize) -> Result<Vec<Row>> {
    let tree = Tree::look();
    let launcher = server.launcher(&tree)?;
    let weigh_family = |pid: u32| tree.family(pid).into_iter().map(pss_mb).sum::<Result<f64>>();
    let mut sandboxes = Vec::new();
    let mut zygotes = 0.0;
    for child in tree.children(launcher) {
        let weight = weigh_family(*child)?;
        if is_sandboxed(*child)? {
            sandboxes.push(weight);
        } else {
            zygotes += weight;
        }
    }
    let bare = Row::of(format!("python3 -I, one of {BARE} that wait, PSS"), "MB", weigh_bare(python)?);
    let session = Row::of("idle session, PSS", "MB", sandboxes).against(Some(&bare));
    let all = weigh_family(server.pid())? / count(sessions.max(1));
    Ok(vec![
        session.target(Figure::Value, Bound::AtMost, 4.0),
        bare,
        Row::single("all processes together for each session, PSS", "MB", all),
        Row::single("zygote, PSS", "MB", zygotes),
    ])
}

/// Bare interpreters that have printed and wait for input.
fn weigh_bare(python: &Path) -> Result<Vec<f64>> {
    let start = |_| -> Result<Waiting> {
        let mut command = Command::new(python);
        command.args(["-I", "-c", "print(1, flush=True); input()"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let stdout = child.stdout.take();
        let waiting = Waiting(child);
        stdout.context("it has no standard output")?.read_exact(&mut [0; 2])?;
        Ok(waiting)
    };
    let waiting = (0..BARE).map(start).collect::<Result<Vec<_>>>()?;
    waiting.iter().map(|process| pss_mb(process.0.id())).collect()
}

/// A process that is ended when it is no longer wanted.
struct Waiting(Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn count(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::INFINITY, f64::from)
}
