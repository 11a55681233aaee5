//! The server process: program size, start-up time, and memory when idle.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::json;

use super::Setup;
use crate::process_memory::{ProcessTree, resident_mb};
use crate::report::{Bound, Figure, Row, Section};
use crate::sampling::{Candidate, sample_in_turns};
use crate::server::Server;

/// Time after which a started server is idle.
const SETTLE_TIME: Duration = Duration::from_millis(300);

pub(super) fn measure(setup: &Setup) -> Result<Section> {
    let ringfence = setup.ringfence()?;
    let size = std::fs::metadata(ringfence)?.len();
    let size = f64::from(u32::try_from(size >> 10)?) * 1024.0 / 1e6;
    let (mut resident, mut echo_resident) = (Vec::new(), Vec::new());
    let mut candidates = vec![
        Candidate::new("ringfence, start to /health", || {
            let prepared = Server::prepare(ringfence, "")?;
            let start = Instant::now();
            let server = prepared.start()?;
            server.connect()?.health()?;
            let time = start.elapsed();
            std::thread::sleep(SETTLE_TIME);
            resident.push(resident_mb(server.pid())?);
            Ok(time)
        }),
        Candidate::new("bare rmcp, start to first response", || {
            let prepared = Server::prepare_echo()?;
            let start = Instant::now();
            let server = prepared.start()?;
            server.connect()?.call("echo", &json!({"message": "x"}))?;
            let time = start.elapsed();
            std::thread::sleep(SETTLE_TIME);
            echo_resident.push(resident_mb(server.pid())?);
            Ok(time)
        }),
    ];
    // Each sample starts and stops a whole server, so there are fewer.
    sample_in_turns(&mut candidates, setup.workload.starts.div_ceil(5));
    let Section { rows, mut not_measured } = Section::of_candidates(candidates);
    let [start, echo_start] = <[_; 2]>::try_from(rows).ok().with_context(|| not_measured.join("; "))?;
    let echo_resident = Row::of_samples("bare rmcp, resident", "MB", echo_resident);
    let resident = Row::of_samples("ringfence, resident when idle", "MB", resident);
    let mut rows = vec![
        Row::single("program size", "MB", size).target(Figure::Value, Bound::AtMost, 40.0),
        start.compared_with(Some(&echo_start)).target(Figure::Value, Bound::AtMost, 150.0),
        echo_start,
        resident.compared_with(Some(&echo_resident)).target(Figure::Value, Bound::AtMost, 40.0),
        echo_resident,
    ];
    match pss_with_pool_mb(setup) {
        Ok(memory) => rows.push(Row::single("all processes with a full Python pool, PSS", "MB", memory)),
        Err(error) => not_measured.push(format!("memory with a pool: {error:#}; only root can read it")),
    }
    Ok(Section { rows, not_measured })
}

/// Returns the memory of the server, its launcher, the zygote and the sandboxes in the Python pool.
fn pss_with_pool_mb(setup: &Setup) -> Result<f64> {
    let server = setup.start_server("")?;
    server.warm_up("python", "x = 0")?;
    ProcessTree::read().subtree_pss_mb(server.pid())
}
