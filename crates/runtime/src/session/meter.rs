//! What sessions use of what they may: counted when somebody asks, from outside as far as that goes.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringfence_sandbox::cgroup::MemoryGauge;
use ringfence_sandbox::usage::{self, Memory};
use ringfence_sandbox::{Control, Filling, Measuring};
use rustix::process::Pid;

use super::guest::is_alive;
use super::tenancy::Handle;
use super::{Failure, Principal, SessionId, SessionInfo, SessionUsage, Sessions};

/// How long sandboxes may take to say how full they are, those that are asked at once together: a guest can keep its own
/// from that.
const PATIENCE: Duration = Duration::from_millis(300);

/// How many times as long as memory took to be summed up the sum is good for: the guest decides how long that takes, and
/// whoever asks how often.
const SUM_IS_GOOD_FOR: u32 = 20;

/// Each question is an open descriptor.
const ASKED_AT_ONCE: usize = 32;

/// Reads what the sandbox of a session uses.
#[derive(Clone)]
pub(super) struct Meter {
    pub(super) pid: Pid,
    /// Tells whether the number is still its own.
    pub(super) pidfd: Arc<OwnedFd>,
    pub(super) gauge: Option<Arc<MemoryGauge>>,
    pub(super) control: Arc<Control>,
    pub(super) most_tasks: u32,
    /// Where no cgroup counts it.
    pub(super) last_sum: Arc<Mutex<Option<Sum>>>,
}

/// The memory of all processes together, at some moment.
pub(super) struct Sum {
    good_until: Instant,
    bytes: Option<u64>,
}

impl Meter {
    /// What a cgroup counts; cheap.
    pub(super) fn memory_bytes(&self) -> Option<u64> {
        self.gauge.as_ref().map(|gauge| gauge.bytes())
    }

    /// Fills in what only asking tells. Blocks.
    fn complete(&self, info: &mut SessionInfo, filling: Option<Filling>) {
        // Held until it is summed up: who asks meanwhile has the same answer.
        let mut sum = self.last_sum.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        let is_known = self.gauge.is_some() || sum.as_ref().is_some_and(|sum| start < sum.good_until);
        let memory = if is_known { Memory::LeftOut } else { Memory::Counted };
        let Some(used) = usage::of(self.pid, self.most_tasks, memory).filter(|_| is_alive(&self.pidfd)) else { return };
        if !is_known {
            let good_until = Instant::now() + start.elapsed() * SUM_IS_GOOD_FOR;
            *sum = Some(Sum { good_until, bytes: used.memory_bytes });
        }
        info.memory_bytes = info.memory_bytes.or_else(|| sum.as_ref()?.bytes);
        info.usage = Some(SessionUsage {
            cpu_ms: used.cpu_ms,
            processes: used.tasks,
            workspace_bytes: filling.map(|filling| filling.bytes),
            workspace_inodes: filling.map(|filling| filling.inodes),
        });
    }
}

impl Sessions {
    /// The caller's sessions, with what they use.
    pub async fn list(&self, principal: &Principal) -> Vec<SessionInfo> {
        let own: Vec<Handle> = {
            let live = self.live();
            live.values().filter(|handle| handle.is_there_for(principal)).cloned().collect()
        };
        let mut infos = self.measure(own).await;
        infos.sort_by(|one, other| (one.created, &one.session_id).cmp(&(other.created, &other.session_id)));
        infos
    }

    pub async fn info(&self, principal: &Principal, id: &SessionId) -> Result<SessionInfo, Failure> {
        let handle = self.find(principal, id).map_err(|failure| self.refused(principal, Some(id), failure))?;
        let measured = self.measure(vec![handle]).await;
        measured.into_iter().next().ok_or_else(|| Failure::not_found(id))
    }

    async fn measure(&self, handles: Vec<Handle>) -> Vec<SessionInfo> {
        let mut described: Vec<_> =
            handles.into_iter().map(|handle| (handle.describe(&self.0.settings), handle.meter)).collect();
        let known: Vec<SessionInfo> = described.iter().map(|(info, _)| info.clone()).collect();
        let measuring = tokio::task::spawn_blocking(move || {
            for some in described.chunks_mut(ASKED_AT_ONCE) {
                // All are asked before any is waited for: none takes the time of the others.
                let ask = |(_, meter): &(_, Meter)| meter.control.measure_workspace(PATIENCE).ok();
                let asked: Vec<Option<Measuring>> = some.iter().map(ask).collect();
                for ((info, meter), asked) in some.iter_mut().zip(asked) {
                    meter.complete(info, asked.and_then(|asked| asked.finish().ok()));
                }
            }
            described.into_iter().map(|(info, _)| info).collect()
        });
        measuring.await.unwrap_or(known)
    }
}
