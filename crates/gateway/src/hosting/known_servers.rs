//! The servers with their tools, whether they run or not: current tools of connected servers, stored ones of the others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ringfence_entries::{Profile, ServerEntry};
use ringfence_store::{Store, StoreError};

use super::{Hosting, Inner};
use crate::authorize::Pins;
use crate::catalogue::{Candidate, CatalogueStore, KnownServers, Revision};
use crate::connection::ServerLink;
use crate::fleet::Status;

/// Maximum time for the stored catalogues to be loaded after the start; it takes milliseconds.
const LOAD_TIMEOUT: Duration = Duration::from_secs(5);

impl Hosting {
    /// All servers of a profile with their tools, whether they run or not. Cached until something changes.
    pub async fn known_servers(&self, profile: &Profile) -> Arc<KnownServers> {
        let mut changes = self.0.changes.subscribe();
        let _ = tokio::time::timeout(LOAD_TIMEOUT, changes.wait_for(|changes| changes.fleet > 0)).await;
        self.0.known_servers(profile)
    }
}

impl Inner {
    fn known_servers(&self, profile: &Profile) -> Arc<KnownServers> {
        // Read before anything else: a change in the meantime makes the cached entry invalid.
        let changes = *self.changes.borrow();
        let revision = Revision {
            lists: changes.version,
            fleet: *self.fleet.changes().borrow(),
            pins: changes.fleet,
            stored: self.catalogues.revision(),
        };
        if let Some(known) = self.cache.lock().get(revision, profile) {
            return known;
        }
        let listing = self.source.current();
        let statuses: HashMap<String, Status> =
            self.fleet.all().into_iter().map(|info| (info.name, info.status)).collect();
        let candidates: Vec<Candidate<'_>> = listing
            .servers
            .iter()
            .map(|listed| {
                // Entries over the limit of the fleet have no status.
                let status = statuses.get(&listed.entry.name).copied().unwrap_or(Status::Stopped);
                candidate(&listed.entry, status.name(), &self.catalogues, &self.pins)
            })
            .collect();
        let known = Arc::new(KnownServers::new(profile, &candidates));
        self.cache.lock().insert(revision, profile, &known);
        known
    }

    /// Updates the stored catalogues of connected servers in memory. Returns the servers whose tools have changed.
    pub(super) fn update_catalogues(&self) -> Vec<String> {
        let listing = self.source.current();
        let is_listed = |uuid: &str| listing.servers.iter().any(|listed| listed.entry.uuid == uuid);
        let has_changed = |link: &ServerLink, uuid: &str| self.catalogues.update(uuid, &link.catalogue().tools);
        let connected = self.fleet.connected().into_iter();
        let changed = connected.filter(|(entry, link)| is_listed(&entry.uuid) && has_changed(link, &entry.uuid));
        changed.map(|(entry, _)| entry.uuid.clone()).collect()
    }
}

fn candidate<'a>(
    entry: &'a ServerEntry,
    status: &'static str,
    catalogues: &CatalogueStore,
    pins: &Pins,
) -> Candidate<'a> {
    let list = catalogues.get(&entry.uuid);
    let withheld = list.as_ref().map(|list| pins.withheld_tools(&entry.uuid, list.tools())).unwrap_or_default();
    Candidate { entry, status, list, withheld }
}

/// Returns the servers with their stored tools, without running any. `entries` must be all entries.
pub async fn stored_servers(store: &Store, entries: &[ServerEntry]) -> Result<KnownServers, StoreError> {
    let uuids: Vec<String> = entries.iter().map(|entry| entry.uuid.clone()).collect();
    let (catalogues, pins) = (CatalogueStore::new(store.clone()), Pins::new(store.clone(), false));
    catalogues.load(&uuids).await?;
    pins.refresh(&uuids).await?;
    let status = |entry: &ServerEntry| if entry.enable { "not running" } else { "disabled" };
    let candidates: Vec<Candidate<'_>> =
        entries.iter().map(|entry| candidate(entry, status(entry), &catalogues, &pins)).collect();
    Ok(KnownServers::new(&Profile::default(), &candidates))
}

#[cfg(test)]
mod tests {
    use ringfence_entries::entry_from_json;
    use ringfence_store::OnConflict;
    use serde_json::json;

    use super::*;
    use crate::catalogue::{Catalogue, name_of};

    #[tokio::test]
    async fn stored_servers_have_their_accepted_tools() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        let entry = entry_from_json("a", &json!({"command": "x"})).unwrap().0;
        let entry = store.add_server(entry, None, OnConflict::Refuse).await.unwrap();
        let [seen, changed] = [json!({"name": "seen"}), json!({"name": "changed", "description": "was"})];
        store.set_catalogue(&entry.uuid, &[seen.clone(), changed.clone()]).await.unwrap();
        let accepted = Catalogue { tools: vec![seen.clone(), changed], ..Catalogue::default() };
        Pins::new(store.clone(), false).accept(&entry.uuid, &accepted, None).await.unwrap();
        store.set_catalogue(&entry.uuid, &[seen, json!({"name": "changed", "description": "is"})]).await.unwrap();
        let known = stored_servers(&store, &[entry]).await.unwrap();
        let server = &known.servers()[0];
        assert_eq!(server.tools.iter().map(name_of).collect::<Vec<_>>(), ["seen"]);
        assert_eq!(server.status, "not running");
    }
}
