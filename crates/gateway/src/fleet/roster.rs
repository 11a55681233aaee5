//! The servers by uuid and by name.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use ringfence_entries::ServerEntry;

use super::slot::Slot;

/// A server is identified by its uuid: if it is renamed, or removed and added again, it is not started before the process
/// of that uuid has ended.
pub(super) struct Roster<L> {
    /// Includes removed servers that are being stopped.
    by_uuid: BTreeMap<String, Arc<Slot<L>>>,
    by_name: BTreeMap<String, Arc<Slot<L>>>,
    is_closed: bool,
}

/// An entry that was not accepted, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Skipped {
    pub(crate) name: String,
    pub(crate) reason: String,
}

pub(super) struct Applied<L> {
    pub(super) new: Vec<Arc<Slot<L>>>,
    pub(super) skipped: Vec<Skipped>,
}

impl<L> Roster<L> {
    pub(super) fn apply(&mut self, entries: Vec<ServerEntry>, max: usize) -> Applied<L> {
        let (entries, skipped) = if self.is_closed {
            let skip = |entry: ServerEntry| Skipped { name: entry.name, reason: "the server is shutting down".into() };
            (Vec::new(), entries.into_iter().map(skip).collect())
        } else {
            select_entries(entries, max)
        };
        let mut applied = Applied { new: Vec::new(), skipped };
        if self.is_closed {
            return applied;
        }
        let uuids: HashSet<&str> = entries.iter().map(|entry| entry.uuid.as_str()).collect();
        for (_, slot) in self.by_uuid.iter().filter(|(uuid, _)| !uuids.contains(uuid.as_str())) {
            slot.remove();
        }
        self.by_name.clear();
        for entry in entries {
            let name = entry.name.clone();
            let slot = if let Some(slot) = self.by_uuid.get(&entry.uuid) {
                slot.set_entry(entry);
                slot.clone()
            } else {
                let uuid = entry.uuid.clone();
                let slot = Arc::new(Slot::new(entry));
                self.by_uuid.insert(uuid, slot.clone());
                applied.new.push(slot.clone());
                slot
            };
            self.by_name.insert(name, slot);
        }
        applied
    }

    /// Requests the removal of all servers, and accepts no more entries. The servers can still be queried.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        for slot in self.by_uuid.values() {
            slot.remove();
        }
    }

    pub(super) fn remove(&mut self, uuid: &str) {
        self.by_uuid.remove(uuid);
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<Slot<L>>> {
        self.by_name.get(name).cloned()
    }

    pub(super) fn find(&self, name_or_uuid: &str) -> Option<Arc<Slot<L>>> {
        let by_uuid = || self.by_name.values().find(|slot| slot.desired.borrow().entry.uuid == name_or_uuid);
        self.by_name.get(name_or_uuid).or_else(by_uuid).cloned()
    }

    /// All servers, sorted by name.
    pub(super) fn all(&self) -> Vec<Arc<Slot<L>>> {
        self.by_name.values().cloned().collect()
    }

    #[cfg(test)]
    pub(super) fn len_with_removed(&self) -> usize {
        self.by_uuid.len()
    }
}

impl<L> Default for Roster<L> {
    fn default() -> Self {
        Self { by_uuid: BTreeMap::new(), by_name: BTreeMap::new(), is_closed: false }
    }
}

/// Accepts the first entry of each name and uuid, up to `max` entries.
fn select_entries(entries: Vec<ServerEntry>, max: usize) -> (Vec<ServerEntry>, Vec<Skipped>) {
    let (mut accepted, mut skipped) = (Vec::<ServerEntry>::new(), Vec::new());
    let (mut names, mut uuids) = (HashSet::new(), HashSet::new());
    for entry in entries {
        let reason = if names.contains(&entry.name) {
            "an earlier entry has the same name".into()
        } else if uuids.contains(&entry.uuid) {
            format!("an earlier entry has the same uuid {}", entry.uuid)
        } else if accepted.len() >= max {
            format!("the limit is {max} servers")
        } else {
            names.insert(entry.name.clone());
            uuids.insert(entry.uuid.clone());
            accepted.push(entry);
            continue;
        };
        skipped.push(Skipped { name: entry.name, reason });
    }
    (accepted, skipped)
}
