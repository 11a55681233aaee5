//! Takes over the sessions of a server that died: from the launchers that it left behind, by what the store knows.
//!
//! A launcher has one client at a time, so a session never has two owners. What a launcher has and the store does not
//! know was waiting in the pool of the dead server, and is ended. What was made within another scope, or under a
//! supervisor that lives, is left to a server of those, or to the end of its lease.

use ringfence_backend::LauncherSockets;
use ringfence_backend::native::Orphan as OrphanInstance;
use ringfence_backend::protected_names::ProtectedNames;
use ringfence_config::SessionSettings;
use ringfence_core::Principal;
use ringfence_store::{SessionRecord, Store, StoreError};

use crate::kernel::Kernel;
use crate::prepare::{self, Prepared};
use crate::session_record::SessionDescriptor;

/// Where sessions are remembered, for a next server.
#[derive(Clone)]
pub(crate) struct Keeping {
    pub(crate) store: Store,
    /// Where the sockets of launchers are.
    pub(crate) doors: LauncherSockets,
}

/// A session that is ours now.
pub(crate) struct Orphan {
    pub(crate) descriptor: SessionDescriptor,
    pub(crate) prepared: Prepared,
}

impl Keeping {
    /// Adopts every session whose server has died. Forgets the sessions that no launcher has any more.
    pub(crate) async fn adopt(&self, settings: &SessionSettings) -> Result<Vec<Orphan>, StoreError> {
        let records = self.store.sessions().await?;
        let found = self.doors.find_orphans(settings.lease).await;
        let mut orphans = Vec::new();
        for instance in found.instances {
            let record = records.iter().find(|record| record.address == instance.address);
            orphans.extend(adopt_one(instance, record, settings).await);
        }
        for record in records {
            let is_held = found.held.iter().any(|socket| record.address.starts_with(&*socket.to_string_lossy()));
            let is_ours = orphans.iter().any(|orphan| orphan.descriptor.id == record.id);
            if !is_held && !is_ours {
                self.store.remove_session(&record.id).await?;
            }
        }
        Ok(orphans)
    }
}

/// Adopts one instance. An instance that the store does not know is adopted too, and then ends by being dropped.
async fn adopt_one(
    instance: OrphanInstance,
    record: Option<&SessionRecord>,
    settings: &SessionSettings,
) -> Option<Orphan> {
    let known = record.and_then(|record| {
        let template = settings.templates.find(&record.template).ok()?.clone();
        let flavor = settings.flavors.find(&record.flavor).ok()?.clone();
        Some((record, template, flavor))
    });
    let environment = known.as_ref().map(|(_, template, flavor)| prepare::environment(template, flavor, settings));
    let adopted = instance.adopt(environment.unwrap_or_default()).await?;
    let (record, template, flavor) = known?;
    let resume = |(process, streams)| Kernel::resume(template.language, process, streams, adopted.generation);
    let kernel = adopted.kernel.and_then(resume);
    let (id, principal, created) = (record.id.clone(), Principal::named(record.principal.as_str()), record.created);
    Some(Orphan {
        descriptor: SessionDescriptor { id, principal, template, flavor, created },
        prepared: Prepared {
            guest: adopted.instance,
            kernel,
            starting: None,
            names: ProtectedNames::begin(&settings.volumes).await,
        },
    })
}
