//! Serves the egress of the sandbox in a separate thread.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use ringfence_core::{EgressSockets, Spec};
use ringfence_egress::{
    Decision, DecisionLog, EgressSettings, GuestFiles, Policy, RefusedHosts, Remedy, Rule, SandboxCredentials,
};
use tokio::sync::oneshot;

use crate::failure::Failure;
use crate::output::notice;

/// Maximum number of decisions that wait to be shown. More are counted, but not shown.
const MAX_PENDING_DECISIONS: usize = 64;

/// The network access of the sandbox, and which decisions are shown.
pub(super) struct Egress {
    pub(super) rules: Vec<Rule>,
    pub(super) shown: ShownDecisions,
    pub(super) authority: Option<Authority>,
}

/// The certificate authority with which requests to hosts are checked whose rules have methods or paths.
pub(super) struct Authority {
    credentials: Arc<SandboxCredentials>,
    /// Removed when the command has ended.
    _files: GuestFiles,
}

impl Authority {
    /// Makes the authority of a sandbox and lets its programs trust it. `None` if no rule needs one.
    pub(super) fn add_to(spec: &mut Spec, rules: &[Rule]) -> Result<Option<Self>, Failure> {
        if !rules.iter().any(|rule| rule.requests().is_limited()) {
            return Ok(None);
        }
        let failed = |cause: &dyn std::error::Error| {
            Failure::new("cannot make the certificate authority of the sandbox").caused_by(cause)
        };
        let credentials = SandboxCredentials::generate(&[]).map_err(|error| failed(&error))?;
        let files = credentials.write_guest_files(&std::env::temp_dir()).map_err(|error| failed(&error))?;
        spec.volumes.extend(files.volumes(&spec.root));
        for (name, value) in credentials.environment() {
            spec.environment.entry(name).or_insert(value);
        }
        Ok(Some(Self { credentials: Arc::new(credentials), _files: files }))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ShownDecisions {
    /// The first refusal of each host.
    Refusals,
    All,
}

/// The running egress. When this value is dropped, it stops with all its connections, and shows what it has refused.
pub(super) struct RunningEgress {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for RunningEgress {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

pub(super) fn serve(sockets: EgressSockets, egress: Egress) -> Result<RunningEgress, Failure> {
    let failed = |error: std::io::Error| Failure::new("cannot serve the network of the sandbox").caused_by(&error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (log, mut decisions) = DecisionLog::bounded(MAX_PENDING_DECISIONS);
    let Egress { rules, shown, authority } = egress;
    let credentials = authority.as_ref().map(|authority| Arc::clone(&authority.credentials));
    let settings = EgressSettings { credentials, ..EgressSettings::new(Policy { rules }, log) };
    let (stop, mut stopped) = oneshot::channel::<()>();
    let mut notices = Notices { shown, refused: RefusedHosts::default(), lines: 0 };
    let work = move || {
        runtime.block_on(async {
            let _served = match ringfence_egress::Egress::start(sockets, settings) {
                Ok(served) => served,
                Err(error) => return notice(&format!("the network of the sandbox cannot be served: {error}")),
            };
            loop {
                tokio::select! {
                    Some(decision) = decisions.recv() => notices.add(&decision),
                    _ = &mut stopped => break,
                }
            }
        });
        // The guest learns of a refusal after it is recorded, so those of a command that has ended are here.
        while let Ok(decision) = decisions.try_recv() {
            notices.add(&decision);
        }
        notices.finish();
        // A lookup that hangs does not delay the end.
        runtime.shutdown_background();
        drop(authority);
    };
    let thread = thread::Builder::new().name("egress".into()).spawn(work).map_err(failed)?;
    Ok(RunningEgress { stop: Some(stop), thread: Some(thread) })
}

/// Writes decisions to standard error.
struct Notices {
    shown: ShownDecisions,
    refused: RefusedHosts,
    /// The number of refusals that were shown.
    lines: usize,
}

impl Notices {
    fn add(&mut self, decision: &Decision) {
        let is_shown = match self.shown {
            ShownDecisions::All => true,
            ShownDecisions::Refusals => self.refused.add(decision).is_some() && self.lines < RefusedHosts::MAX_LINES,
        };
        if is_shown {
            notice(&decision.describe(&Remedy::Run));
            self.lines += 1;
        }
    }

    /// Shows the number of hosts that were refused besides those that were shown.
    fn finish(&self) {
        self.refused.lines(&Remedy::Run).iter().skip(self.lines).for_each(|line| notice(line));
    }
}
