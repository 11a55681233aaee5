//! Sandboxes that several servers live in, because their entries ask for it.
//!
//! Those with the same limits, image and rules for the network share one; it ends with its last lodger. They have one
//! uid and see each other's processes and files: whoever shares trusts the others.
//!
//! One lodger is stopped without touching the others: its process group is ended, and then every process that has its
//! mark among its variables, which its descendants inherit even if they leave the group. A descendant that has
//! removed the mark lives on until the sandbox ends; a server that must not be able to do so should live alone.

use ringfence_core::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ringfence_core::{Command, WORKSPACE};
use rustix::process::Signal;

use crate::server_sandbox::{Cell, Ended, InmateHandle};

/// The variable that marks a lodger's processes.
pub(crate) const MARK: &str = "RINGFENCE_SERVER";

/// Kills what is marked until nothing is found, and removes the lodger's files.
const SWEEP: &str = r#"
for round in 1 2 3 4 5 6 7 8 9 10; do
    found=
    for process in /proc/[0-9]*; do
        if tr '\0' '\n' <"$process/environ" 2>/dev/null | grep -qxF "$1"; then
            kill -KILL "${process#/proc/}" 2>/dev/null && found=1
        fi
    done
    [ -n "$found" ] || break
done
rm -rf -- "$2"
"#;

/// For the sweep; whatever it has not found by then is left.
const PATIENCE: Duration = Duration::from_secs(10);

/// The shared sandboxes that there are, by what they have in common.
#[derive(Default)]
pub(crate) struct Lodgings(Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<Weak<Cell>>>>>);

impl Lodgings {
    /// The one of this kind, made if there is none.
    pub(crate) async fn enter<E>(
        &self,
        kind: String,
        make: impl Future<Output = Result<Cell, E>>,
    ) -> Result<Arc<Cell>, E> {
        let place = {
            let mut all = self.0.lock();
            // Those that nobody lives in, or waits for, are forgotten.
            all.retain(|_, place| {
                Arc::strong_count(place) > 1 || place.try_lock().map_or(true, |cell| cell.strong_count() > 0)
            });
            Arc::clone(all.entry(kind).or_default())
        };
        let mut place = place.lock().await;
        if let Some(cell) = place.upgrade().filter(|cell| !cell.is_lost()) {
            return Ok(cell);
        }
        let cell = Arc::new(make.await?);
        *place = Arc::downgrade(&cell);
        Ok(cell)
    }
}

/// A server in a shared sandbox, from its first file there. Dropped, its processes are killed in the background.
pub(crate) struct Lodger {
    cell: Option<Arc<Cell>>,
    process: Option<InmateHandle>,
    uuid: String,
}

impl Lodger {
    pub(crate) fn new(cell: Arc<Cell>, uuid: &str) -> Self {
        Self { cell: Some(cell), process: None, uuid: uuid.into() }
    }

    /// Its process has been started.
    pub(crate) fn runs(&mut self, process: InmateHandle) {
        self.process = Some(process);
    }

    /// Where its own files are.
    pub(crate) fn area(uuid: &str) -> String {
        format!("{WORKSPACE}/.mcp/{uuid}")
    }

    /// Its sandbox, until it leaves.
    pub(crate) fn cell(&self) -> Option<&Cell> {
        self.cell.as_deref()
    }

    pub(crate) async fn ended(&self) -> Ended {
        match &self.process {
            Some(process) => process.ended().await,
            None => Ended::Lost { for_memory: false },
        }
    }

    pub(crate) async fn leave(mut self, grace: Duration) {
        let Some(cell) = self.cell.take() else { return };
        if let Some(process) = &self.process {
            cell.signal(process, Signal::TERM);
            let _ = tokio::time::timeout(grace, process.ended()).await;
        }
        clear(cell, self.process.as_ref(), &self.uuid).await;
    }
}

impl Drop for Lodger {
    fn drop(&mut self) {
        let Some(cell) = self.cell.take() else { return };
        if let Some(process) = &self.process {
            cell.signal(process, Signal::KILL);
        }
        let (process, uuid) = (self.process.take(), std::mem::take(&mut self.uuid));
        // Where there is no runtime any more, the sandbox ends with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { clear(cell, process.as_ref(), &uuid).await });
        }
    }
}

/// Ends all of one lodger's processes; with the last lodger, the sandbox.
async fn clear(cell: Arc<Cell>, process: Option<&InmateHandle>, uuid: &str) {
    if let Some(process) = process {
        cell.signal(process, Signal::KILL);
    }
    let cell = match Arc::try_unwrap(cell) {
        Ok(last) => return last.end().await,
        Err(shared) => shared,
    };
    let mark = format!("{MARK}={uuid}");
    let argv = ["sh", "-c", SWEEP, "sweep", &mark, &Lodger::area(uuid)].map(Into::into).to_vec();
    let environment = [("PATH".to_owned(), ringfence_core::PATH.to_owned())].into();
    if let Ok(sweep) = cell.start(&Command { argv, workdir: "/".into() }, &environment) {
        let _ = tokio::time::timeout(PATIENCE, sweep.handle().ended()).await;
    }
    // Others may have left meanwhile.
    if let Ok(last) = Arc::try_unwrap(cell) {
        last.end().await;
    }
}
