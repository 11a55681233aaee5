//! Serves the sandbox's way out to the network from a thread of its own.

use std::net::TcpListener;
use std::thread;

use ringfence_egress::{Decision, DecisionLog, Policy, Proxy, Rule};
use tokio::sync::oneshot;

use crate::failure::{Failure, notice};

/// Decisions that may wait to be shown; more are counted, not shown.
const PENDING: usize = 64;

/// What may leave the sandbox, and what is said about it.
pub(crate) struct Egress {
    pub(crate) rules: Vec<Rule>,
    pub(crate) logged: Logged,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Logged {
    Refusals,
    Everything,
}

/// Dropped, the proxy stops, and with it all traffic.
pub(super) struct Serving {
    _stop: oneshot::Sender<()>,
}

pub(super) fn serve(listener: TcpListener, egress: Egress) -> Result<Serving, Failure> {
    let failed = |error: std::io::Error| Failure::new("cannot start the egress proxy").because(&error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (log, mut decisions) = DecisionLog::bounded(PENDING);
    let proxy = Proxy::new(Policy { rules: egress.rules }, log);
    let (stop, stopped) = oneshot::channel::<()>();
    let work = move || {
        runtime.block_on(async move {
            let show = async {
                while let Some(decision) = decisions.recv().await {
                    if !decision.is_allowed || egress.logged == Logged::Everything {
                        notice(&describe(&decision));
                    }
                }
            };
            let serve = proxy.serve(listener, async {
                let _ = stopped.await;
            });
            let (served, ()) = tokio::join!(serve, show);
            if let Err(error) = served {
                notice(&format!("the egress proxy has stopped: {error}"));
            }
        });
    };
    thread::Builder::new().name("egress".into()).spawn(work).map_err(failed)?;
    Ok(Serving { _stop: stop })
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
