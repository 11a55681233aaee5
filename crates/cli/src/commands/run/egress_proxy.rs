//! Runs the egress proxy of the sandbox in a separate thread.

use std::net::TcpListener;
use std::thread;

use ringfence_egress::{Decision, DecisionLog, Policy, Proxy, Rule};
use tokio::sync::oneshot;

use crate::failure::Failure;
use crate::output::notice;

/// Maximum number of decisions that wait to be shown. More are counted, but not shown.
const MAX_PENDING_DECISIONS: usize = 64;

/// The network access of the sandbox, and which decisions are shown.
pub(super) struct Egress {
    pub(super) rules: Vec<Rule>,
    pub(super) shown: ShownDecisions,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ShownDecisions {
    Refusals,
    All,
}

/// The running proxy. It stops with all its connections when this value is dropped.
pub(super) struct RunningProxy {
    _stop: oneshot::Sender<()>,
}

pub(super) fn serve(listener: TcpListener, egress: Egress) -> Result<RunningProxy, Failure> {
    let failed = |error: std::io::Error| Failure::new("cannot start the egress proxy").caused_by(&error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (log, mut decisions) = DecisionLog::bounded(MAX_PENDING_DECISIONS);
    let proxy = Proxy::new(Policy { rules: egress.rules }, log);
    let (stop, stopped) = oneshot::channel::<()>();
    let work = move || {
        runtime.block_on(async move {
            let show = async {
                while let Some(decision) = decisions.recv().await {
                    if !decision.is_allowed || egress.shown == ShownDecisions::All {
                        notice(&describe(&decision));
                    }
                }
            };
            let serve = proxy.serve(listener, async {
                let _ = stopped.await;
            });
            let (served, ()) = tokio::join!(serve, show);
            if let Err(error) = served {
                notice(&format!("the egress proxy stopped: {error}"));
            }
        });
    };
    thread::Builder::new().name("egress".into()).spawn(work).map_err(failed)?;
    Ok(RunningProxy { _stop: stop })
}

fn describe(decision: &Decision) -> String {
    let host = decision.host.as_ref().map_or_else(|| "an unknown host".to_owned(), ToString::to_string);
    let port = decision.port.map_or_else(String::new, |port| format!(":{port}"));
    match (decision.is_allowed, &decision.address) {
        (true, Some(address)) => format!("egress to {host}{port} allowed ({address})"),
        (true, None) => format!("egress to {host}{port} allowed"),
        (false, _) => format!("egress to {host}{port} refused: {}", decision.reason),
    }
}
