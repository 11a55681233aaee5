//! Lists sessions with the usage of their limits.

use std::time::Duration;

use ringfence_backend::{Meter, Usage, WorkspaceRequest};
use ringfence_core::{Failure, Principal, SessionId};

use super::Sessions;
use crate::api::{SessionInfo, SessionUsage};
use crate::session::SessionHandle;

/// Timeout for the responses of all sandboxes that are measured concurrently: a guest can prevent its own response.
const WORKSPACE_TIMEOUT: Duration = Duration::from_millis(300);

/// Each request is an open descriptor.
const MAX_CONCURRENT_REQUESTS: usize = 32;

impl Sessions {
    /// The sessions of a principal, with their usage.
    pub async fn list(&self, principal: &Principal) -> Vec<SessionInfo> {
        let visible: Vec<SessionHandle> = {
            let live = self.live();
            live.values().filter(|handle| handle.is_visible_to(principal)).cloned().collect()
        };
        let mut infos = self.measure(visible).await;
        infos.sort_by(|left, right| (left.created, &left.session_id).cmp(&(right.created, &right.session_id)));
        infos
    }

    /// One session of a principal, with its usage.
    pub async fn info(&self, principal: &Principal, id: &SessionId) -> Result<SessionInfo, Failure> {
        let handle = self.find(principal, id).map_err(|failure| self.refused(principal, Some(id), failure))?;
        let measured = self.measure(vec![handle]).await;
        measured.into_iter().next().ok_or_else(|| Failure::session_not_found(id))
    }

    async fn measure(&self, handles: Vec<SessionHandle>) -> Vec<SessionInfo> {
        let mut described: Vec<(SessionInfo, Meter)> =
            handles.into_iter().map(|handle| (handle.describe(&self.0.settings), handle.instance.meter)).collect();
        let without_usage: Vec<SessionInfo> = described.iter().map(|(info, _)| info.clone()).collect();
        let measuring = tokio::task::spawn_blocking(move || {
            for chunk in described.chunks_mut(MAX_CONCURRENT_REQUESTS) {
                let requests: Vec<WorkspaceRequest> =
                    chunk.iter().map(|(_, meter)| meter.request_workspace(WORKSPACE_TIMEOUT)).collect();
                for ((info, meter), request) in chunk.iter_mut().zip(requests) {
                    if let Some(usage) = meter.usage(request) {
                        add_usage(info, usage);
                    }
                }
            }
            described.into_iter().map(|(info, _)| info).collect()
        });
        measuring.await.unwrap_or(without_usage)
    }
}

fn add_usage(info: &mut SessionInfo, usage: Usage) {
    info.memory_bytes = info.memory_bytes.or(usage.memory_bytes);
    info.usage = Some(SessionUsage {
        cpu_ms: usage.cpu_ms,
        processes: usage.tasks,
        workspace_bytes: usage.workspace.map(|usage| usage.bytes),
        workspace_inodes: usage.workspace.map(|usage| usage.inodes),
    });
}
