//! The egress proxy of a server's sandbox.

use std::net::TcpListener;
use std::sync::Arc;

use ringfence_egress::{DecisionLog, Policy, Proxy, Rule};

use super::stderr_tail::StderrTail;

/// Maximum number of proxy decisions that wait to be logged.
const MAX_PENDING_DECISIONS: usize = 64;

/// Serves a sandbox's egress proxy until the task is aborted. Refused connections are added to `stderr_tail`.
pub(super) fn spawn_proxy(
    listener: TcpListener,
    rules: Vec<Rule>,
    stderr_tail: Option<Arc<StderrTail>>,
) -> tokio::task::JoinHandle<()> {
    let (log, mut decisions) = DecisionLog::bounded(MAX_PENDING_DECISIONS);
    let proxy = Proxy::new(Policy { rules }, log);
    tokio::spawn(async move {
        let log_decisions = async {
            while let Some(decision) = decisions.recv().await {
                let host = decision.host.map_or_else(|| "an unknown host".into(), |host| host.to_string());
                let port = decision.port.map_or_else(String::new, |port| format!(":{port}"));
                let text = format!("ringfence: egress to {host}{port}: {}", decision.reason);
                tracing::debug!("{text}");
                if let Some(tail) = stderr_tail.as_ref().filter(|_| !decision.is_allowed) {
                    tail.add_line(&text);
                }
            }
        };
        let (served, ()) = tokio::join!(proxy.serve(listener, std::future::pending()), log_decisions);
        if let Err(error) = served {
            tracing::warn!("the egress proxy of a hosted server has stopped: {error}");
        }
    })
}
