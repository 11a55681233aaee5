//! A guest that prints without end: how fast it is drained, and what the server holds of it.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::effort::Effort;
use super::host::Host;
use super::memory::{forget_peak, peak_mb, resident_mb};
use super::report::Section;
use super::rows::{Bound, Figure, Row};
use super::server::Server;

/// The longest that a call may ask for.
const TIMEOUT_S: u32 = 120;

pub(super) fn measure(effort: &Effort, host: &Host) -> Result<Section> {
    let python = host.python.as_ref().context("there is no python3")?;
    let code = format!("import os\nfor _ in range({}): os.write(1, b'x' * 65536)", effort.flood_bytes >> 16);
    let server = Server::start("")?;
    let mut client = server.connect()?;
    let id = client.create("python", "x = 0")?.session_id()?;
    let (mut ours, mut bare, mut growth) = (Vec::new(), Vec::new(), Vec::new());
    let rate = |time: Duration| megabytes(effort.flood_bytes) / time.as_secs_f64();
    for _ in 0..effort.floods {
        forget_peak(server.pid())?;
        let before = resident_mb(server.pid())?;
        let call = json!({"session_id": id, "code": code, "timeout": TIMEOUT_S});
        let answered = client.call_for_long("execute_code", &call)?;
        let fields = &answered.result["structuredContent"];
        let drained = drained_bytes(fields["stdout"].as_str().unwrap_or_default());
        ensure!(drained == Some(effort.flood_bytes), "{drained:?} bytes of {} were drained", effort.flood_bytes);
        growth.push(peak_mb(server.pid())? - before);
        ours.push(rate(answered.time));
        bare.push(rate(drain_bare(python, &code)?));
    }
    let size = effort.flood_bytes >> 20;
    let bare = Row::of_few(format!("python3 -I, {size} MiB into a pipe"), "MB/s", bare);
    let ours = Row::of_few(format!("ringfence, {size} MiB drained"), "MB/s", ours).against(Some(&bare));
    let growth = Row::of_few("growth of the server's memory, at its peak", "MB", growth);
    let rows =
        vec![ours.target(Figure::Value, Bound::AtLeast, 200.0), bare, growth.target(Figure::Value, Bound::AtMost, 8.0)];
    Ok(Section { rows, left_out: Vec::new() })
}

/// What was kept of the flood, and what the server says it has dropped in between.
fn drained_bytes(shown: &str) -> Option<u64> {
    let kept = shown.bytes().filter(|byte| *byte == b'x').count();
    let dropped = shown.split_once("[… ")?.1.split_once(" bytes dropped")?.0;
    Some(dropped.parse::<u64>().ok()? + kept as u64)
}

/// The same code, outside, read by somebody who only throws it away.
fn drain_bare(python: &Path, code: &str) -> Result<Duration> {
    let start = Instant::now();
    let mut command = Command::new(python);
    command.args(["-I", "-c", code]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = command.spawn()?;
    let mut stdout = process.stdout.take().context("it has no standard output")?;
    let mut buffer = vec![0; 64 << 10];
    while stdout.read(&mut buffer)? > 0 {}
    process.wait()?;
    Ok(start.elapsed())
}

#[allow(clippy::cast_precision_loss)] // figures of a flood are small
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_counts_as_drained() {
        assert_eq!(drained_bytes("xxx\n[… 1000 bytes dropped …]\nxx"), Some(1005));
        assert_eq!(drained_bytes("xxx"), None);
    }
}
