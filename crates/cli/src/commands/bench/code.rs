//! A tool called from code in a session, beside the same call through the gateway.
//!
//! Both reach the same server over standard streams, which is hosted in a sandbox. What is called from code is timed in
//! there, by its own clock: a few calls, one after another.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::client::Client;
use super::effort::Effort;
use super::gateway::{Program, pipe_entry};
use super::memory::{forget_peak, peak_mb, resident_mb};
use super::report::Section;
use super::rows::{Bound, Figure, Row, of_contestants};
use super::server::Server;
use super::turns::{Contestant, take_turns};

const GATEWAY: &str = "through the gateway";
const CODE: &str = "from code";

/// Calls in one turn of the code.
const IN_ONE_TURN: u32 = 10;

/// Calls that are made at once.
const AT_ONCE: u32 = 1000;

/// Of one result.
const LARGE: u32 = 50_000_000;

const PREPARE: &str = "import asyncio, time\nawait mcp_pipe.echo(message='x')";

pub(super) fn measure(effort: &Effort) -> Result<Section> {
    let program = Program::copy()?;
    let server = Server::start(&pipe_entry(&program)?)?;
    let mut client = server.connect()?;
    client.call("pipe__echo", &json!({"message": "x"})).context("the server is not there")?;
    let mut code = Code::open(&server)?;
    let mut contestants = vec![
        Contestant::new(GATEWAY, || Ok(client.call("pipe__echo", &json!({"message": "x"}))?.time)),
        Contestant::new(CODE, || code.time(&one_by_one(), IN_ONE_TURN)),
    ];
    take_turns(&mut contestants, effort.calls);
    let (mut rows, left_out) = of_contestants(contestants);
    if let [gateway, from_code] = rows.as_slice() {
        let row = Row::of(CODE, from_code.unit, from_code.samples.clone());
        rows[1] = row.against(Some(gateway)).target(Figure::Ratio, Bound::AtMost, 2.0);
    }
    let all = code.time(&at_once(), AT_ONCE)?.as_secs_f64();
    rows.push(Row::single(format!("{AT_ONCE} calls in one gather"), "calls/s", 1.0 / all));
    forget_peak(server.pid())?;
    let before = resident_mb(server.pid())?;
    let large = code.time(&whole(), 1)?;
    rows.push(Row::single("a result of 50 MB", "MB/s", f64::from(LARGE) / 1e6 / large.as_secs_f64()));
    let growth = peak_mb(server.pid())? - before;
    rows.push(Row::single("growth of the server's memory by it, at its peak", "MB", growth));
    Ok(Section { rows, left_out })
}

fn one_by_one() -> String {
    format!(
        "start = time.perf_counter()\n\
         for _ in range({IN_ONE_TURN}):\n    await mcp_pipe.echo(message='x')\n\
         print(time.perf_counter() - start)"
    )
}

fn at_once() -> String {
    format!(
        "start = time.perf_counter()\n\
         await asyncio.gather(*(mcp_pipe.echo(message='x') for _ in range({AT_ONCE})))\n\
         print(time.perf_counter() - start)"
    )
}

fn whole() -> String {
    format!(
        "start = time.perf_counter()\n\
         text = await mcp_pipe.text(bytes={LARGE})\n\
         took = time.perf_counter() - start\n\
         assert len(text) == {LARGE}\n\
         del text\n\
         print(took)"
    )
}

/// A session that may call the server.
struct Code {
    client: Client,
    session_id: String,
}

impl Code {
    fn open(server: &Server) -> Result<Self> {
        let mut client = server.connect()?;
        let made = client.call("execute_code", &json!({"code": PREPARE, "servers": ["pipe"]}))?;
        Ok(Self { session_id: made.session_id()?, client })
    }

    /// What the code says that each of so many calls took.
    fn time(&mut self, code: &str, calls: u32) -> Result<Duration> {
        let ran = self.client.call("execute_code", &json!({"code": code, "session_id": self.session_id}))?;
        let said = ran.result["structuredContent"]["stdout"].as_str().unwrap_or_default().trim();
        let seconds: f64 = said.parse().with_context(|| format!("the code said {said:?}"))?;
        Ok(Duration::try_from_secs_f64(seconds)? / calls)
    }
}
