//! Start and end of a sandbox, compared with bubblewrap; then many cycles, and a check that they leave nothing behind.
//!
//! `cargo bench --bench start [-- ROUNDS CYCLES]`. The candidates take turns, so that changes in the machine's speed
//! affect all alike. Times are only printed; growth fails the run.
#![allow(clippy::print_stdout, clippy::cast_precision_loss)]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_core::Flavors;
use ringfence_core::{Language, Template};
use ringfence_sandbox::{Event, ExitStatus};
use ringfence_testkit::HostSnapshot;

const RINGFENCE: &str = env!("CARGO_BIN_EXE_ringfence");

fn main() {
    // cargo adds `--bench`, which is not a number.
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let rounds: usize = numbers.next().unwrap_or(400);
    let cycles: usize = numbers.next().unwrap_or(1000);
    compare(rounds);
    check_host(cycles);
    check_process(cycles);
}

struct Candidate {
    name: &'static str,
    command: Vec<String>,
    times: Vec<Duration>,
}

fn compare(rounds: usize) {
    let mut candidates = vec![
        Candidate::new("fork+exec of /bin/true", vec!["/bin/true".into()]),
        Candidate::new("ringfence run", [RINGFENCE, "run", "--", "/bin/true"].map(Into::into).into()),
    ];
    if let Some(command) = bubblewrap() {
        candidates.push(Candidate::new("bwrap --unshare-all", command));
    } else {
        println!("bubblewrap is not installed: no comparison");
    }
    for round in 0..rounds + 20 {
        for candidate in &mut candidates {
            let time = candidate.run();
            // The first rounds fill caches.
            if round >= 20 {
                candidate.times.push(time);
            }
        }
    }
    println!("start and end of /bin/true, {rounds} rounds, taking turns");
    println!("{:24} {:>10} {:>10} {:>10}", "", "median ms", "p90 ms", "p99 ms");
    for candidate in &mut candidates {
        candidate.times.sort_unstable();
        let [median, p90, p99] = [50, 90, 99].map(|percent| candidate.percentile(percent));
        println!("{:24} {median:>10.2} {p90:>10.2} {p99:>10.2}", candidate.name);
    }
    if let [_, ringfence, bubblewrap] = &candidates[..] {
        let ratio = |percent| ringfence.percentile(percent) / bubblewrap.percentile(percent);
        println!("ringfence / bwrap: median {:.2}, p90 {:.2}, p99 {:.2}", ratio(50), ratio(90), ratio(99));
    }
}

impl Candidate {
    fn new(name: &'static str, command: Vec<String>) -> Self {
        Self { name, command, times: Vec::new() }
    }

    fn run(&self) -> Duration {
        let start = Instant::now();
        let mut command = Command::new(&self.command[0]);
        let status = command.args(&self.command[1..]).stdin(Stdio::null()).stdout(Stdio::null()).status();
        let time = start.elapsed();
        assert!(status.is_ok_and(|status| status.success()), "{} failed", self.name);
        time
    }

    fn percentile(&self, percent: usize) -> f64 {
        let index = (self.times.len() - 1) * percent / 100;
        self.times.get(index).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
    }
}

/// Returns a bubblewrap command with the same host directories and private /proc, /dev and writable directories as our
/// sandbox, if bubblewrap is installed. It has no seccomp filter, Landlock rules or cgroup.
fn bubblewrap() -> Option<Vec<String>> {
    let is_installed = Command::new("bwrap").arg("--version").output().is_ok_and(|output| output.status.success());
    let mut command: Vec<String> = ["bwrap", "--unshare-all", "--die-with-parent"].map(Into::into).into();
    for name in ["usr", "bin", "sbin", "lib", "lib64"] {
        let path = format!("/{name}");
        if let Ok(target) = fs::read_link(&path) {
            command.extend(["--symlink".into(), target.display().to_string(), path]);
        } else if Path::new(&path).exists() {
            command.extend(["--ro-bind".into(), path.clone(), path]);
        }
    }
    for name in ["ld.so.cache", "alternatives", "ssl", "ca-certificates", "fonts", "mime.types", "services"] {
        let path = format!("/etc/{name}");
        if Path::new(&path).exists() {
            command.extend(["--ro-bind".into(), path.clone(), path]);
        }
    }
    let options = "--proc /proc --dev /dev --tmpfs /tmp --tmpfs /workspace --chdir /workspace -- /bin/true";
    command.extend(options.split(' ').map(Into::into));
    is_installed.then_some(command)
}

/// Returns the kernel memory in KiB that leaked namespaces, mounts and cgroups would increase.
fn kernel_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let value = |key: &str| {
        text.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse::<u64>().ok())
    };
    value("SUnreclaim:").unwrap_or(0) + value("Percpu:").unwrap_or(0)
}

/// Starts each sandbox from a new process, and checks that nothing remains on the host.
fn check_host(cycles: usize) {
    let ringfence = Candidate::new("cycle", [RINGFENCE, "run", "--", "/bin/true"].map(Into::into).into());
    let settle = || std::thread::sleep(Duration::from_secs(2));
    let run = |times: usize| (0..times).map(|_| ringfence.run()).sum::<Duration>();
    run(50);
    settle();
    let (before, memory_before) = (HostSnapshot::take(), kernel_memory());
    let rate = cycles as f64 / run(cycles).as_secs_f64();
    settle();
    let (after, memory_after) = (HostSnapshot::take(), kernel_memory());
    println!("\n{cycles} cycles of `ringfence run`, {rate:.0} a second");
    println!("before: {before:?}, kernel memory {memory_before} KiB");
    println!("after:  {after:?}, kernel memory {memory_after} KiB");
    assert_eq!(before, after, "mounts, cgroups, namespaces or processes remain");
}

/// Starts all sandboxes from one process, as a server does, and checks that the process does not grow.
fn check_process(cycles: usize) {
    let flavors = Flavors::default();
    let flavor = flavors.find("small").expect("the flavor is built in");
    let spec = Template::builtin(Language::Bash).spec(flavor, vec!["/bin/true".into()]);
    let run_once = || {
        let (sandbox, streams) =
            ringfence_sandbox::start(&spec, ringfence_sandbox::Stdio::Pipes).expect("the sandbox starts");
        assert_eq!(sandbox.control().next_event(), Event::Ended { process: 0, status: ExitStatus::Exited(0) });
        drop(streams);
        sandbox.finish(None);
    };
    let descriptors = || fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let resident = || {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    (0..50).for_each(|_| run_once());
    let before = (descriptors(), resident());
    let start = Instant::now();
    (0..cycles).for_each(|_| run_once());
    let rate = cycles as f64 / start.elapsed().as_secs_f64();
    let after = (descriptors(), resident());
    println!("\n{cycles} cycles in one process, {rate:.0} a second");
    println!("before: {} descriptors, {} KiB; after: {} descriptors, {} KiB", before.0, before.1, after.0, after.1);
    assert_eq!(before.0, after.0, "descriptors remained open");
    assert!(after.1 <= before.1 + 256, "memory of the process grew");
}
