//! What sessions use of what they may: counted when somebody asks, from outside as far as that goes.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

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
}

impl Meter {
    /// What a cgroup counts; cheap.
    pub(super) fn memory_bytes(&self) -> Option<u64> {
        self.gauge.as_ref().map(|gauge| gauge.bytes())
    }

    /// Fills in what only asking tells. Blocks.
    fn complete(&self, info: &mut SessionInfo, filling: Option<Filling>) {
        let memory = if self.gauge.is_some() { Memory::LeftOut } else { Memory::Counted };
        let Some(used) = usage::of(self.pid, self.most_tasks, memory).filter(|_| is_alive(&self.pidfd)) else { return };
        info.memory_bytes = info.memory_bytes.or(used.memory_bytes);
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
            live.values().filter(|handle| principal.sees(&handle.tenancy.principal)).cloned().collect()
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
