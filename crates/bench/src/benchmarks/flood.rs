//! A guest that prints without end: how fast its output is read, and how much the server's memory grows.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::Setup;
use crate::process_memory::{peak_mb, reset_peak, resident_mb};
use crate::report::{Bound, Figure, Row, Section};

/// Maximum timeout of a call.
const TIMEOUT_S: u32 = 120;

pub(super) fn measure(setup: &Setup) -> Result<Section> {
    let python = setup.python()?;
    let bytes = setup.workload.flood_bytes;
    let code = format!("import os\nfor _ in range({}): os.write(1, b'x' * 65536)", bytes >> 16);
    let server = setup.start_server("")?;
    let mut client = server.connect()?;
    let id = client.create_session("python", "x = 0")?.session_id()?;
    let (mut rates, mut bare_rates, mut growth) = (Vec::new(), Vec::new(), Vec::new());
    let rate = |time: Duration| megabytes(bytes) / time.as_secs_f64();
    for _ in 0..setup.workload.floods {
        reset_peak(server.pid())?;
        let before = resident_mb(server.pid())?;
        let arguments = json!({"session_id": id, "code": code, "timeout": TIMEOUT_S});
        let result = client.call_without_stream("execute_code", &arguments)?;
        let drained = drained_bytes(result.result["content"][0]["text"].as_str().unwrap_or_default());
        ensure!(drained == Some(bytes), "{drained:?} of {bytes} bytes were drained");
        growth.push(peak_mb(server.pid())? - before);
        rates.push(rate(result.time));
        bare_rates.push(rate(drain_bare(python, &code)?));
    }
    let size = bytes >> 20;
    let bare = Row::of_few_samples(format!("python3 -I, {size} MiB into a pipe"), "MB/s", bare_rates);
    let session =
        Row::of_few_samples(format!("ringfence, {size} MiB drained"), "MB/s", rates).compared_with(Some(&bare));
    let growth = Row::of_few_samples("peak growth of server memory", "MB", growth);
    let rows = vec![
        session.target(Figure::Value, Bound::AtLeast, 200.0),
        bare,
        growth.target(Figure::Value, Bound::AtMost, 8.0),
    ];
    Ok(Section { rows, not_measured: Vec::new() })
}

/// Returns the number of bytes that the server read: those in the result, and those that it reports as dropped.
fn drained_bytes(stdout: &str) -> Option<u64> {
    // The status line may contain the letter, too.
    let shown: usize = stdout.lines().filter(|line| line.bytes().all(|byte| byte == b'x')).map(str::len).sum();
    let dropped = stdout.split_once("[… ")?.1.split_once(" bytes dropped")?.0;
    Some(dropped.parse::<u64>().ok()? + shown as u64)
}

/// Runs the same code in a bare interpreter and discards its output.
fn drain_bare(python: &Path, code: &str) -> Result<Duration> {
    let start = Instant::now();
    let mut command = Command::new(python);
    command.args(["-I", "-c", code]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = command.spawn()?;
    let mut stdout = process.stdout.take().context("python3 has no standard output")?;
    let mut buffer = vec![0; 64 << 10];
    while stdout.read(&mut buffer)? > 0 {}
    process.wait()?;
    Ok(start.elapsed())
}

#[allow(clippy::cast_precision_loss)] // a flood has far less than 2^53 bytes
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_bytes_count_as_drained() {
        assert_eq!(drained_bytes("xxx\n[… 1000 bytes dropped …]\nxx\n[ok; session_id s-x]"), Some(1005));
        assert_eq!(drained_bytes("xxx"), None);
    }
}
