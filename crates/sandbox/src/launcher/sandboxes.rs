//! The sandboxes that a launcher has made, with what it keeps of each for a next owner.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::{Handed, BackgroundStreams, MAX_BACKGROUND_STREAMS};
use crate::error::Error;
use crate::pipe::is_at_eof;
use crate::sandbox::Sandbox;

/// How often sandboxes without a memory cgroup are looked at, at most.
const WATCH_INTERVAL: Duration = Duration::from_millis(25);

/// How many times as long as a look takes it rests before the next.
const WATCH_REST: u32 = 20;

/// Breaches that are remembered for whoever asks about them afterwards.
const REMEMBERED: usize = 64;

#[derive(Default)]
pub(super) struct Sandboxes {
    living: BTreeMap<i32, Kept>,
    breached: VecDeque<i32>,
    watch_at: Option<Instant>,
}

struct Kept {
    sandbox: Sandbox,
    is_warm: bool,
    listener: Option<OwnedFd>,
    streams: Option<(u32, Vec<OwnedFd>)>,
    leftovers: VecDeque<BackgroundStreams>,
    generation: u32,
}

impl Sandboxes {
    pub(super) fn is_empty(&self) -> bool {
        self.living.is_empty()
    }

    pub(super) fn pids(&self) -> Vec<i32> {
        self.living.keys().copied().collect()
    }

    /// Takes one into its keeping, and gives what its owner gets.
    pub(super) fn admit(
        &mut self,
        sandbox: Sandbox,
        is_warm: bool,
        listener: Option<OwnedFd>,
    ) -> Result<(Handed, Vec<OwnedFd>), Error> {
        let pid = sandbox.pid().as_raw_nonzero().get();
        let kept = Kept { sandbox, is_warm, listener, streams: None, leftovers: VecDeque::new(), generation: 0 };
        let handed = kept.hand()?;
        // It was the number of another before.
        self.breached.retain(|breached| *breached != pid);
        self.living.insert(pid, kept);
        Ok(handed)
    }

    pub(super) fn keep(&mut self, pid: i32, process: u32, streams: Vec<OwnedFd>) {
        if let Some(kept) = self.living.get_mut(&pid) {
            kept.streams = Some((process, streams));
        }
    }

    /// Of more than a next owner would take, the oldest are let go.
    pub(super) fn keep_leftover(&mut self, pid: i32, output: Vec<OwnedFd>) {
        let (Some(kept), Ok(leftover)) = (self.living.get_mut(&pid), BackgroundStreams::try_from(output)) else { return };
        kept.leftovers.retain(|leftover| !leftover.iter().all(is_at_eof));
        if kept.leftovers.len() == MAX_BACKGROUND_STREAMS {
            kept.leftovers.pop_front();
        }
        kept.leftovers.push_back(leftover);
    }

    /// Removes what others that were killed have left beside one.
    pub(super) fn sweep(&self, pid: i32) {
        if let Some(kept) = self.living.get(&pid) {
            kept.sandbox.remove_stale_cgroups();
        }
    }

    /// Parts one from its last owner, for the next.
    pub(super) fn take(&mut self, pid: i32) -> Result<(Handed, Vec<OwnedFd>), Error> {
        let kept = self.living.get_mut(&pid).ok_or(Error::LauncherLost)?;
        kept.generation += 1;
        kept.sandbox.renew(kept.streams.as_ref().map(|(process, _)| *process))?;
        kept.hand()
    }

    /// Ends one that nobody has.
    pub(super) fn discard(&mut self, pid: i32) {
        self.living.remove(&pid);
    }

    pub(super) fn is_breached(&self, pid: i32) -> bool {
        // Also while what it had is still being freed.
        self.breached.contains(&pid) || self.living.get(&pid).is_some_and(|kept| kept.sandbox.is_breached())
    }

    /// Looks at those that need it when it is time, and gives how long to wait for the next time.
    pub(super) fn watch(&mut self) -> Option<Duration> {
        if !self.living.values().any(|kept| kept.sandbox.needs_limit_checks()) {
            self.watch_at = None;
            return None;
        }
        let now = Instant::now();
        if self.watch_at.is_none_or(|at| now >= at) {
            for kept in self.living.values_mut() {
                // One that went over its limit is killed by this; its end comes as any other's.
                let _ = kept.sandbox.check_limits();
            }
            self.watch_at = Some(Instant::now() + WATCH_INTERVAL.max(now.elapsed() * WATCH_REST));
        }
        Some(self.watch_at.map_or(WATCH_INTERVAL, |at| at.saturating_duration_since(Instant::now())))
    }

    /// Frees what the ones that have ended had.
    pub(super) fn reap(&mut self) {
        let breached = &mut self.breached;
        self.living.retain(|pid, kept| {
            let has_ended = kept.sandbox.has_ended();
            if has_ended && kept.sandbox.is_breached() {
                breached.push_back(*pid);
            }
            !has_ended
        });
        while self.breached.len() > REMEMBERED {
            self.breached.pop_front();
        }
    }
}

impl Kept {
    fn hand(&self) -> Result<(Handed, Vec<OwnedFd>), Error> {
        let gauge = self.sandbox.gauge();
        let (control, pidfd) = self.sandbox.descriptors();
        let mut borrowed = vec![control, pidfd];
        borrowed.extend(self.listener.as_ref().map(AsFd::as_fd));
        borrowed.extend(gauge.iter().flat_map(|gauge| gauge.descriptors()));
        borrowed.extend(self.streams.iter().flat_map(|(_, streams)| streams).map(AsFd::as_fd));
        borrowed.extend(self.leftovers.iter().flatten().map(AsFd::as_fd));
        let owned = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, 3);
        let passed = borrowed.into_iter().map(owned).collect::<Result<_, _>>();
        let handed = Handed {
            pid: self.sandbox.pid().as_raw_nonzero().get(),
            enforcement: self.sandbox.enforcement(),
            is_warm: self.is_warm,
            has_listener: self.listener.is_some(),
            has_gauge: gauge.is_some(),
            leftovers: self.leftovers.len(),
            kept: self.streams.as_ref().map(|(process, streams)| (*process, streams.len())),
            generation: self.generation,
        };
        Ok((handed, passed.map_err(Error::setup("hand over a sandbox"))?))
    }
}
