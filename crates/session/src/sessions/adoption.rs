//! Adopts the sessions of a server that died: from the instances that it left, with the records in the store.
//!
//! An instance has one owner at a time, so a session never has two. An instance without a record was in the pool of the
//! dead server, and is ended. Instances of another scope, or of a supervisor that lives, are left to servers of those, or
//! to the end of their lease.

use std::collections::BTreeMap;

use ringfence_backend::Orphan;
use ringfence_backend::protected_names::ProtectedNames;
use ringfence_config::{SecretsRevision, SessionSettings};
use ringfence_core::{Network, Principal};
use ringfence_egress::Rule;
use ringfence_store::{SessionRecord, Store, StoreError};

use super::template_packages::{REUSE_TIMEOUT, with_packages};
use super::{Sessions, events};
use crate::instances::{self, PreparedInstance};
use crate::kernel::Kernel;
use crate::network::{InstanceNetwork, InstanceSecrets};
use crate::session::SessionDescriptor;

/// A session that belongs to this server now.
struct AdoptedSession {
    descriptor: SessionDescriptor,
    prepared: PreparedInstance,
    /// The rules that were added to its network while it ran.
    added_rules: Vec<Rule>,
}

impl Sessions {
    /// Adopts all sessions whose server has died.
    pub(super) async fn adopt(&self) -> Result<(), StoreError> {
        let Some(store) = &self.0.store else { return Ok(()) };
        let adopted = self.adopt_instances(store).await?;
        let count = adopted.len();
        for AdoptedSession { descriptor, prepared, added_rules } in adopted {
            match self.acquire_slot(&descriptor.id, &descriptor.principal, &descriptor.flavor).await {
                Ok(slot) => {
                    self.0.audit.record(events::adopted(&descriptor.principal, &descriptor.id));
                    let id = descriptor.id.clone();
                    let handle = self.start(descriptor, prepared, slot, added_rules);
                    if let Err(failure) = handle.apply_added_rules().await {
                        tracing::warn!("session {id}: {failure}");
                    }
                }
                Err(failure) => {
                    tracing::warn!("session {} of a dead server is ended: {failure}", descriptor.id);
                    store.remove_session(&descriptor.id).await?;
                }
            }
        }
        if count > 0 {
            tracing::info!("adopted {count} sessions of a server that died");
        }
        Ok(())
    }

    /// Adopts the instances, and removes the records of sessions that no longer have one.
    async fn adopt_instances(&self, store: &Store) -> Result<Vec<AdoptedSession>, StoreError> {
        let records = store.sessions().await?;
        let mut orphans = self.0.backend.find_orphans().await;
        let mut adopted = Vec::new();
        for orphan in std::mem::take(&mut orphans.instances) {
            let record = records.iter().find(|record| record.address == orphan.address());
            let added_rules = match record {
                Some(record) => parse_rules(record, &store.session_rules(&record.id).await?),
                None => Vec::new(),
            };
            adopted.extend(adopt_instance(orphan, record, added_rules, &self.0.settings).await);
        }
        for record in records {
            let is_ours = adopted.iter().any(|session| session.descriptor.id == record.id);
            if !is_ours && !orphans.is_in_use(&record.address) {
                store.remove_session(&record.id).await?;
            }
        }
        Ok(adopted)
    }
}

/// Adopts one instance. An instance without a record is adopted too, and ends by being dropped.
async fn adopt_instance(
    orphan: Orphan,
    record: Option<&SessionRecord>,
    added_rules: Vec<Rule>,
    settings: &SessionSettings,
) -> Option<AdoptedSession> {
    let mut known = record.and_then(|record| {
        let template = settings.templates.find(&record.template).ok()?.clone();
        let flavor = settings.flavors.find(&record.flavor).ok()?.clone();
        Some((record, template, flavor))
    });
    if let Some((record, template, _)) = &mut known {
        match with_packages(template, settings, REUSE_TIMEOUT).await {
            Ok(with_packages) => *template = with_packages,
            // The instance has the packages all the same.
            Err(failure) => tracing::warn!("session {}: {failure}", record.id),
        }
    }
    let (mut environment, mut secrets) = (BTreeMap::new(), InstanceSecrets::default());
    if let Some((_, template, flavor)) = &known {
        environment = instances::environment(template, flavor, settings);
        secrets = instances::restore_credentials(&orphan, template, settings).await;
        environment.extend(secrets.credentials.iter().flat_map(|credentials| credentials.environment()));
    }
    let adopted = orphan.adopt(environment).await?;
    let (record, template, flavor) = known?;
    let adopt_kernel = |interpreter| Kernel::adopt(template.language, interpreter, adopted.previous_owners);
    let kernel = adopted.interpreter.map(adopt_kernel);
    // A session whose template has no network any more loses it.
    let sockets = adopted.egress.filter(|_| settings.network.network(&template.name) != Network::None);
    let mut rules = settings.network.rules(&template.name);
    rules.extend(added_rules.iter().cloned());
    let network = InstanceNetwork::start(sockets, rules, &settings.network, secrets)
        .inspect_err(|error| tracing::warn!("session {} has no network: {error}", record.id))
        .unwrap_or_default();
    let (id, principal, created) = (record.id.clone(), Principal::named(record.principal.as_str()), record.created);
    Some(AdoptedSession {
        descriptor: SessionDescriptor { id, principal, template, flavor, created },
        prepared: PreparedInstance {
            instance: adopted.instance,
            kernel,
            starting: None,
            names: ProtectedNames::begin(&settings.volumes).await,
            network,
            secrets: SecretsRevision::default(),
        },
        added_rules,
    })
}

fn parse_rules(record: &SessionRecord, texts: &[String]) -> Vec<Rule> {
    let parse = |text: &String| {
        let invalid = |error: &_| tracing::warn!("session {}: a stored rule is ignored: {error}", record.id);
        text.parse::<Rule>().inspect_err(invalid).ok()
    };
    texts.iter().filter_map(parse).collect()
}
