//! The server itself: its size, its start, and what it holds when idle.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::json;

use super::effort::Effort;
use super::memory::{Tree, pss_mb, resident_mb};
use super::report::Section;
use super::rows::{Bound, Figure, Row, of_contestants};
use super::server::Server;
use super::turns::{Contestant, take_turns};

/// For a server to have done what it does at its start.
const REST: Duration = Duration::from_millis(300);

pub(super) fn measure(effort: &Effort) -> Result<Section> {
    let size = std::fs::metadata(std::env::current_exe()?)?.len();
    let size = f64::from(u32::try_from(size >> 10)?) * 1024.0 / 1e6;
    let (mut resident, mut echo_resident) = (Vec::new(), Vec::new());
    let mut contestants = vec![
        Contestant::new("ringfence, start to /health", || {
            let start = Instant::now();
            let server = Server::start("")?;
            server.connect()?.health()?;
            let time = start.elapsed();
            std::thread::sleep(REST);
            resident.push(resident_mb(server.pid())?);
            Ok(time)
        }),
        Contestant::new("bare rmcp, start to its first answer", || {
            let start = Instant::now();
            let echo = Server::start_echo()?;
            echo.connect()?.call("echo", &json!({"message": "x"}))?;
            let time = start.elapsed();
            std::thread::sleep(REST);
            echo_resident.push(resident_mb(echo.pid())?);
            Ok(time)
        }),
    ];
    // Each start is a whole server; a few tell enough.
    take_turns(&mut contestants, effort.turns.div_ceil(5));
    let (rows, mut left_out) = of_contestants(contestants);
    let [ready, echo] = <[_; 2]>::try_from(rows).ok().with_context(|| left_out.join("; "))?;
    let echo_resident = Row::of("bare rmcp, resident", "MB", echo_resident);
    let resident = Row::of("ringfence, resident when idle", "MB", resident).against(Some(&echo_resident));
    let mut rows = vec![
        Row::single("size of the program", "MB", size).target(Figure::Value, Bound::AtMost, 40.0),
        ready.against(Some(&echo)).target(Figure::Value, Bound::AtMost, 150.0),
        echo,
        resident.target(Figure::Value, Bound::AtMost, 40.0),
        echo_resident,
    ];
    match weigh_filled() {
        Ok(weight) => rows.push(Row::single("with a Python pool waiting, all processes, PSS", "MB", weight)),
        Err(error) => left_out.push(format!("memory with a pool: {error:#}; root can read it")),
    }
    Ok(Section { rows, left_out })
}

/// The server, its helpers and the sandboxes that wait, once Python has been asked for.
fn weigh_filled() -> Result<f64> {
    let server = Server::start("")?;
    server.warm_up("python", "x = 0")?;
    Tree::look().family(server.pid()).into_iter().map(pss_mb).sum()
}
