//! Serves the egress of the sandbox in a separate thread.

use std::thread;

use ringfence_core::EgressSockets;
use ringfence_egress::{DecisionLog, EgressSettings, Policy, Remedy, Rule};
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

/// The running egress. It stops with all its connections when this value is dropped.
pub(super) struct RunningEgress {
    _stop: oneshot::Sender<()>,
}

pub(super) fn serve(sockets: EgressSockets, egress: Egress) -> Result<RunningEgress, Failure> {
    let failed = |error: std::io::Error| Failure::new("cannot serve the network of the sandbox").caused_by(&error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (log, mut decisions) = DecisionLog::bounded(MAX_PENDING_DECISIONS);
    let settings = EgressSettings::new(Policy { rules: egress.rules }, log);
    let (stop, stopped) = oneshot::channel::<()>();
    let work = move || {
        runtime.block_on(async move {
            let show = async {
                while let Some(decision) = decisions.recv().await {
                    if !decision.is_allowed || egress.shown == ShownDecisions::All {
                        notice(&decision.describe(&Remedy::Run));
                    }
                }
            };
            let _served = match ringfence_egress::Egress::start(sockets, settings) {
                Ok(served) => served,
                Err(error) => return notice(&format!("the network of the sandbox cannot be served: {error}")),
            };
            tokio::select! {
                () = show => {}
                _ = stopped => {}
            }
        });
    };
    thread::Builder::new().name("egress".into()).spawn(work).map_err(failed)?;
    Ok(RunningEgress { _stop: stop })
}
