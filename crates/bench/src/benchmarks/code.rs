//! A tool called from code in a session, compared with the same call through the gateway.
//!
//! Both call the same stdio server, which is hosted in a sandbox. Calls from code are timed inside the session, several
//! sequential calls in one sample.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::Setup;
use super::gateway::{STDIO_SERVER, STDIO_TOOL, stdio_server_entry};
use crate::client::Client;
use crate::process_memory::{peak_mb, reset_peak, resident_mb};
use crate::programs::OwnCopy;
use crate::report::{Bound, Figure, Row, Section};
use crate::sampling::{Candidate, sample_in_turns};
use crate::server::Server;

const GATEWAY: &str = "through the gateway";
const CODE: &str = "from code";

/// Sequential calls in one sample.
const CALLS_PER_SAMPLE: u32 = 10;

const CONCURRENT_CALLS: u32 = 1000;

const LARGE_RESULT_BYTES: u32 = 50_000_000;

pub(super) fn measure(setup: &Setup) -> Result<Section> {
    let echo_program = OwnCopy::create()?;
    let server = setup.start_server(&stdio_server_entry(&echo_program)?)?;
    let mut client = server.connect()?;
    let message = json!({"message": "x"});
    client.call(STDIO_TOOL, &message).context("the hosted server did not start")?;
    let mut session = CodeSession::open(&server)?;
    let mut candidates = vec![
        Candidate::new(GATEWAY, || Ok(client.call(STDIO_TOOL, &message)?.time)),
        Candidate::new(CODE, || session.time_per_call(&sequential_calls(), CALLS_PER_SAMPLE)),
    ];
    sample_in_turns(&mut candidates, setup.workload.calls);
    let Section { mut rows, not_measured } = Section::of_candidates(candidates);
    if let [gateway, from_code] = rows.as_slice() {
        let row = Row::of_samples(CODE, from_code.unit, from_code.samples.clone());
        rows[1] = row.compared_with(Some(gateway)).target(Figure::Ratio, Bound::AtMost, 2.0);
    }
    let time = session.time_per_call(&concurrent_calls(), CONCURRENT_CALLS)?.as_secs_f64();
    rows.push(Row::single(format!("{CONCURRENT_CALLS} calls in one gather"), "calls/s", 1.0 / time));
    reset_peak(server.pid())?;
    let before = resident_mb(server.pid())?;
    let time = session.time_per_call(&large_result(), 1)?.as_secs_f64();
    rows.push(Row::single("50 MB result", "MB/s", f64::from(LARGE_RESULT_BYTES) / 1e6 / time));
    let growth = peak_mb(server.pid())? - before;
    rows.push(Row::single("50 MB result, peak growth of server memory", "MB", growth));
    Ok(Section { rows, not_measured })
}

fn sequential_calls() -> String {
    format!(
        "start = time.perf_counter()\n\
         for _ in range({CALLS_PER_SAMPLE}):\n    await mcp_{STDIO_SERVER}.echo(message='x')\n\
         print(time.perf_counter() - start)"
    )
}

fn concurrent_calls() -> String {
    format!(
        "start = time.perf_counter()\n\
         await asyncio.gather(*(mcp_{STDIO_SERVER}.echo(message='x') for _ in range({CONCURRENT_CALLS})))\n\
         print(time.perf_counter() - start)"
    )
}

fn large_result() -> String {
    format!(
        "start = time.perf_counter()\n\
         text = await mcp_{STDIO_SERVER}.text(bytes={LARGE_RESULT_BYTES})\n\
         took = time.perf_counter() - start\n\
         assert len(text) == {LARGE_RESULT_BYTES}\n\
         del text\n\
         print(took)"
    )
}

/// A session whose code may call the hosted server.
struct CodeSession {
    client: Client,
    session_id: String,
}

impl CodeSession {
    fn open(server: &Server) -> Result<Self> {
        let mut client = server.connect()?;
        let code = format!("import asyncio, time\nawait mcp_{STDIO_SERVER}.echo(message='x')");
        let created = client.call("execute_code", &json!({"code": code, "servers": [STDIO_SERVER]}))?;
        Ok(Self { session_id: created.session_id()?, client })
    }

    /// Executes code that prints the time of `calls` calls in seconds, and returns the time of one.
    fn time_per_call(&mut self, code: &str, calls: u32) -> Result<Duration> {
        let executed = self.client.call("execute_code", &json!({"code": code, "session_id": self.session_id}))?;
        let printed = executed.result["structuredContent"]["stdout"].as_str().unwrap_or_default().trim();
        let seconds: f64 = printed.parse().with_context(|| format!("the code printed {printed:?}"))?;
        Ok(Duration::try_from_secs_f64(seconds)? / calls)
    }
}
