//! Takes over the sessions of a server that died: from the launchers that it left behind, by what the store knows.
//!
//! A launcher has one client at a time, so a session never has two owners. What a launcher has and the store does not
//! know was waiting in the pool of the dead server, and is ended. What was made within another scope, or under a
//! supervisor that lives, is left to a server of those, or to the end of its lease.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_sandbox::launcher::{Launcher, Reachable};
use rustix::process::Pid;
use tokio::task::JoinHandle;

use super::doors::{self, Doors};
use super::guest::Guest;
use super::kernel::Kernel;
use super::launcher::LauncherHandle;
use super::prepare::{self, Prepared};
use super::tenancy::Tenancy;
use super::{Principal, Settings};
use crate::protected_names::ProtectedNames;
use crate::scope::Scope;
use crate::store::{SessionRecord, Store, StoreError};
use crate::supervision::Identity;

/// For a launcher that may still be busy with what a server that died had asked for. Nobody is served meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);

/// For one whose sandboxes would end with its lease anyway.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// Where sessions are remembered, for a next server.
#[derive(Clone)]
pub(super) struct Keeping {
    pub(super) store: Store,
    /// Where the sockets of launchers are.
    pub(super) doors: Doors,
}

/// A session that is ours now.
pub(super) struct Orphan {
    pub(super) tenancy: Tenancy,
    pub(super) prepared: Prepared,
}

impl Keeping {
    /// Takes all that nobody has.
    pub(super) async fn adopt(&self, settings: &Settings) -> Result<Vec<Orphan>, StoreError> {
        let records = self.store.sessions().await?;
        let mut orphans = Vec::new();
        let (ours, others): (Vec<PathBuf>, _) = self.doors.all().into_iter().partition(|door| self.doors.is_ours(door));
        let (abandoned, mut held): (Vec<_>, _) = others.into_iter().partition(|door| doors::is_abandoned(door));
        for door in abandoned {
            let _ = std::fs::remove_file(&door);
        }
        // Side by side: one that does not answer takes no more time than all.
        let knocks: Vec<_> = ours.into_iter().map(|door| (knock(door.clone(), settings.lease), door)).collect();
        for (knock, door) in knocks {
            match knock.await.unwrap_or(Reachable::Busy) {
                Reachable::Taken(launcher, pids) => {
                    let Ok(launcher) = LauncherHandle::adopted(launcher, door.clone()) else {
                        held.push(door);
                        continue;
                    };
                    for pid in pids {
                        let address = address(&door, pid);
                        let record = records.iter().find(|record| record.address == address);
                        orphans.extend(take(&launcher, pid, record, settings).await);
                    }
                }
                Reachable::Busy => held.push(door),
                Reachable::Gone => {
                    let _ = std::fs::remove_file(&door);
                }
            }
        }
        for record in records {
            let is_held = held.iter().any(|door| record.address.starts_with(&*door.to_string_lossy()));
            let is_ours = orphans.iter().any(|orphan| orphan.tenancy.id == record.id);
            if !is_held && !is_ours {
                self.store.remove_session(&record.id).await?;
            }
        }
        Ok(orphans)
    }
}

/// Ends every sandbox that the workers of one supervisor have made and nobody has, instead of waiting for its lease.
/// `directory` is where the sockets of launchers are. Blocks.
pub(crate) fn end_orphans(directory: &Path, scope: Option<&Scope>, keeper: Identity) {
    let mark = scope.map(|scope| scope.tag.clone());
    let doors = Doors { directory: directory.to_owned(), mark, keeper: Some(keeper) };
    for door in doors.all().into_iter().filter(|door| doors.was_made_by_us(door)) {
        if let Reachable::Taken(launcher, _) = Launcher::adopt(&door, Duration::ZERO, LAST_PATIENCE) {
            launcher.end();
        }
    }
}

/// How a session's launcher and init are written down.
pub(super) fn address(door: &Path, pid: Pid) -> String {
    format!("{}#{}", door.display(), pid.as_raw_nonzero())
}

fn knock(door: PathBuf, lease: Duration) -> JoinHandle<Reachable> {
    tokio::task::spawn_blocking(move || Launcher::adopt(&door, lease, PATIENCE))
}

/// Takes one; one that cannot be gone on with is ended by being dropped.
async fn take(
    launcher: &LauncherHandle,
    pid: Pid,
    record: Option<&SessionRecord>,
    settings: &Settings,
) -> Option<Orphan> {
    let adopted = launcher.take(pid).await.ok()?;
    let known = record.and_then(|record| {
        let template = settings.templates.find(&record.template).ok()?.clone();
        let flavor = settings.flavors.find(&record.flavor).ok()?.clone();
        Some((record, template, flavor))
    });
    let environment = known.as_ref().map(|(_, template, flavor)| prepare::environment(template, flavor, settings));
    let mut guest = Guest::new(adopted.launched, launcher.clone(), environment.unwrap_or_default()).ok()?;
    guest.count_from(adopted.generation);
    guest.resume(adopted.leftovers);
    let (record, template, flavor) = known?;
    let resume = |(process, streams)| Kernel::resume(template.language, process, streams, adopted.generation);
    let kernel = adopted.kept.and_then(resume);
    let (id, principal, created) = (record.id.clone(), Principal::named(record.principal.as_str()), record.created);
    Some(Orphan {
        tenancy: Tenancy { id, principal, template, flavor, created },
        prepared: Prepared { guest, kernel, starting: None, names: ProtectedNames::begin(&settings.volumes).await },
    })
}
