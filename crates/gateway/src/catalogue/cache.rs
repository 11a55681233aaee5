//! Caches the known servers of each profile until something may have changed.

use std::sync::Arc;

use ringfence_entries::Profile;

use super::index::KnownServers;

/// Maximum number of cached profiles.
const MAX_PROFILES: usize = 32;

#[derive(Default)]
pub(crate) struct CatalogueCache {
    revision: Revision,
    by_profile: Vec<(Profile, Arc<KnownServers>)>,
}

/// Identifies a state of everything that an entry depends on.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Revision {
    /// Of the lists that are offered to clients.
    pub(crate) lists: u64,
    pub(crate) fleet: u64,
    /// The state of the fleet for which pins were last loaded.
    pub(crate) pins: u64,
    /// Of the stored catalogues.
    pub(crate) stored: u64,
}

impl CatalogueCache {
    pub(crate) fn get(&self, revision: Revision, profile: &Profile) -> Option<Arc<KnownServers>> {
        let found = self.by_profile.iter().find(|(cached, _)| cached == profile);
        found.filter(|_| self.revision == revision).map(|(_, known)| Arc::clone(known))
    }

    pub(crate) fn insert(&mut self, revision: Revision, profile: &Profile, known: &Arc<KnownServers>) {
        if self.revision != revision || self.by_profile.len() >= MAX_PROFILES {
            self.by_profile.clear();
        }
        self.revision = revision;
        self.by_profile.push((profile.clone(), Arc::clone(known)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_valid_for_one_revision_and_profile() {
        let mut cache = CatalogueCache::default();
        let (now, later) = (Revision { fleet: 1, ..Revision::default() }, Revision { fleet: 2, ..Revision::default() });
        let (all, some) = (Profile::default(), Profile { prefix: false, ..Profile::default() });
        let known = Arc::new(KnownServers::default());
        cache.insert(now, &all, &known);
        assert!(cache.get(now, &all).is_some() && cache.get(now, &some).is_none() && cache.get(later, &all).is_none());
        cache.insert(now, &some, &known);
        assert!(cache.get(now, &all).is_some() && cache.get(now, &some).is_some());
        cache.insert(later, &all, &known);
        assert!(cache.get(later, &all).is_some() && cache.get(later, &some).is_none());
    }

    #[test]
    fn number_of_profiles_is_bounded() {
        let mut cache = CatalogueCache::default();
        for number in 0..10 * MAX_PROFILES {
            let profile = Profile { servers: Some(vec![number.to_string()]), ..Profile::default() };
            cache.insert(Revision::default(), &profile, &Arc::default());
            assert!(cache.by_profile.len() <= MAX_PROFILES);
        }
    }
}
