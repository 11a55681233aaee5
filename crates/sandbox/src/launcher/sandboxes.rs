//! The sandboxes of a launcher, with the streams that it retains for a next owner.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::protocol::Handover;
use super::{BackgroundStreams, MAX_BACKGROUND_STREAMS};
use crate::error::Error;
use crate::pipe::is_at_eof;
use crate::sandbox::Sandbox;
use ringfence_core::{DEFAULT_EGRESS_PORTS, MAX_EGRESS_PORTS};

/// Minimum time between two checks of sandboxes without a memory cgroup.
const CHECK_INTERVAL: Duration = Duration::from_millis(25);

/// The pause after a check, as a multiple of its duration.
const CHECK_PAUSE_FACTOR: u32 = 20;

/// Maximum number of sockets for egress of a sandbox: the resolver has two, the proxy and the mirror one each.
const MAX_EGRESS_SOCKETS: usize = 4 + DEFAULT_EGRESS_PORTS.len() + MAX_EGRESS_PORTS;

/// Maximum number of ended sandboxes to remember that exceeded their memory limit.
const MAX_REMEMBERED: usize = 64;

#[derive(Default)]
pub(super) struct Sandboxes {
    running: BTreeMap<i32, RunningSandbox>,
    /// The inits of ended sandboxes that exceeded their memory limit.
    exceeded_memory: VecDeque<i32>,
    next_check: Option<Instant>,
}

struct RunningSandbox {
    sandbox: Sandbox,
    is_warm: bool,
    /// The sockets for egress, if a next owner may need them.
    egress: Vec<OwnedFd>,
    streams: Option<(u32, Vec<OwnedFd>)>,
    background_streams: VecDeque<BackgroundStreams>,
    /// The record of its credentials. See [`super::Launcher::store_credentials`].
    credentials: Option<OwnedFd>,
    previous_owners: u32,
}

impl Sandboxes {
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub(super) fn pids(&self) -> Vec<i32> {
        self.running.keys().copied().collect()
    }

    /// Adds a sandbox. Returns the reply for its owner, with the descriptors that it carries.
    pub(super) fn insert(
        &mut self,
        sandbox: Sandbox,
        is_warm: bool,
        egress: Vec<OwnedFd>,
    ) -> Result<(Handover, Vec<OwnedFd>), Error> {
        let pid = sandbox.pid().as_raw_nonzero().get();
        let running = RunningSandbox {
            sandbox,
            is_warm,
            egress,
            streams: None,
            background_streams: VecDeque::new(),
            credentials: None,
            previous_owners: 0,
        };
        let handover = running.handover()?;
        // The kernel may reuse the pid of an ended sandbox.
        self.exceeded_memory.retain(|ended| *ended != pid);
        self.running.insert(pid, running);
        Ok(handover)
    }

    pub(super) fn store_streams(&mut self, pid: i32, process: u32, streams: Vec<OwnedFd>) {
        if let Some(running) = self.running.get_mut(&pid) {
            running.streams = Some((process, streams));
        }
    }

    /// Retains the background streams of a command. The oldest ones over the limit are closed.
    pub(super) fn store_background_streams(&mut self, pid: i32, streams: Vec<OwnedFd>) {
        let (Some(running), Ok(streams)) = (self.running.get_mut(&pid), BackgroundStreams::try_from(streams)) else {
            return;
        };
        running.background_streams.retain(|streams| !streams.iter().all(is_at_eof));
        if running.background_streams.len() == MAX_BACKGROUND_STREAMS {
            running.background_streams.pop_front();
        }
        running.background_streams.push_back(streams);
    }

    /// Retains a listener for transparent connections. An init opens no more of them than are retained here.
    pub(super) fn store_egress_listener(&mut self, pid: i32, listener: Vec<OwnedFd>) {
        let Some(running) = self.running.get_mut(&pid) else { return };
        if running.egress.len() < MAX_EGRESS_SOCKETS {
            running.egress.extend(listener.into_iter().take(1));
        }
    }

    /// Retains the record of a sandbox's credentials.
    pub(super) fn store_credentials(&mut self, pid: i32, record: Vec<OwnedFd>) {
        if let Some(running) = self.running.get_mut(&pid) {
            running.credentials = record.into_iter().next();
        }
    }

    pub(super) fn credentials(&self, pid: i32) -> Option<BorrowedFd<'_>> {
        self.running.get(&pid)?.credentials.as_ref().map(AsFd::as_fd)
    }

    /// Closes the sockets for egress, of which only the owner then has duplicates: connections fail when it closes them.
    pub(super) fn close_egress(&mut self, pid: i32) {
        if let Some(running) = self.running.get_mut(&pid) {
            running.egress.clear();
        }
    }

    /// Removes the cgroups that killed processes have left beside that of a sandbox.
    pub(super) fn remove_stale_cgroups(&self, pid: i32) {
        if let Some(running) = self.running.get(&pid) {
            running.sandbox.remove_stale_cgroups();
        }
    }

    /// Prepares a sandbox for a new owner. Returns the reply for that owner, with the descriptors that it carries.
    pub(super) fn replace_owner(&mut self, pid: i32) -> Result<(Handover, Vec<OwnedFd>), Error> {
        let running = self.running.get_mut(&pid).ok_or(Error::SandboxLost)?;
        running.previous_owners += 1;
        running.sandbox.replace_owner(running.streams.as_ref().map(|(process, _)| *process))?;
        running.handover()
    }

    /// Ends a sandbox.
    pub(super) fn discard(&mut self, pid: i32) {
        self.running.remove(&pid);
    }

    /// Whether a sandbox was killed by [`Self::check_limits`].
    pub(super) fn has_exceeded_memory(&self, pid: i32) -> bool {
        let is_exceeded = |running: &RunningSandbox| running.sandbox.has_exceeded_memory();
        // A killed sandbox is in the map until it is reaped.
        self.exceeded_memory.contains(&pid) || self.running.get(&pid).is_some_and(is_exceeded)
    }

    /// Checks the memory limits of sandboxes without a memory cgroup if a check is due. Returns the time until the next
    /// check; `None` if no sandbox needs one.
    pub(super) fn check_limits(&mut self) -> Option<Duration> {
        if !self.running.values().any(|running| running.sandbox.needs_limit_checks()) {
            self.next_check = None;
            return None;
        }
        let now = Instant::now();
        if self.next_check.is_none_or(|at| now >= at) {
            for running in self.running.values_mut() {
                // Kills a sandbox over its limit. It is then reaped like any other.
                let _ = running.sandbox.check_limits();
            }
            self.next_check = Some(Instant::now() + CHECK_INTERVAL.max(now.elapsed() * CHECK_PAUSE_FACTOR));
        }
        Some(self.next_check.map_or(CHECK_INTERVAL, |at| at.saturating_duration_since(Instant::now())))
    }

    /// Drops the sandboxes that have ended.
    pub(super) fn reap(&mut self) {
        let exceeded_memory = &mut self.exceeded_memory;
        self.running.retain(|pid, running| {
            let has_ended = running.sandbox.has_ended();
            if has_ended && running.sandbox.has_exceeded_memory() {
                exceeded_memory.push_back(*pid);
            }
            !has_ended
        });
        while self.exceeded_memory.len() > MAX_REMEMBERED {
            self.exceeded_memory.pop_front();
        }
    }
}

impl RunningSandbox {
    fn handover(&self) -> Result<(Handover, Vec<OwnedFd>), Error> {
        let counters = self.sandbox.memory_counters();
        let (control, pidfd) = self.sandbox.descriptors();
        let mut borrowed = vec![control, pidfd];
        borrowed.extend(self.egress.iter().map(AsFd::as_fd));
        borrowed.extend(counters.iter().flat_map(|counters| counters.descriptors()));
        borrowed.extend(self.streams.iter().flat_map(|(_, streams)| streams).map(AsFd::as_fd));
        borrowed.extend(self.background_streams.iter().flatten().map(AsFd::as_fd));
        let duplicate = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, 3);
        let passed = borrowed.into_iter().map(duplicate).collect::<Result<_, _>>();
        let handover = Handover {
            pid: self.sandbox.pid().as_raw_nonzero().get(),
            enforcement: self.sandbox.enforcement(),
            is_warm: self.is_warm,
            egress_sockets: self.egress.len(),
            has_memory_counters: counters.is_some(),
            background_streams: self.background_streams.len(),
            streams: self.streams.as_ref().map(|(process, streams)| (*process, streams.len())),
            previous_owners: self.previous_owners,
        };
        Ok((handover, passed.map_err(Error::setup("pass the descriptors of a sandbox"))?))
    }
}
