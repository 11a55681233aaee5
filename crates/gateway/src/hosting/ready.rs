//! What is known of servers, kept ready for each profile until something of it may have changed.

use std::collections::HashMap;
use std::sync::Arc;

use ringfence_entries::Profile;

use super::known::{Candidate, KnownServers};
use super::link::{ServerLink, lock};
use super::{Changes, Inner};
use crate::fleet::Status;

/// Profiles for which it is kept.
const MOST_PROFILES: usize = 32;

#[derive(Default)]
pub(super) struct Ready {
    moment: Moment,
    by_profile: Vec<(Profile, Arc<KnownServers>)>,
}

/// Another one whenever something may be.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
struct Moment {
    changes: Changes,
    fleet: u64,
    remembered: u64,
}

impl Ready {
    fn at(&self, moment: Moment, profile: &Profile) -> Option<Arc<KnownServers>> {
        let found = self.by_profile.iter().find(|(made_for, _)| made_for == profile);
        found.filter(|_| self.moment == moment).map(|(_, known)| Arc::clone(known))
    }

    fn put(&mut self, moment: Moment, profile: &Profile, known: &Arc<KnownServers>) {
        if self.moment != moment || self.by_profile.len() >= MOST_PROFILES {
            self.by_profile.clear();
        }
        self.moment = moment;
        self.by_profile.push((profile.clone(), Arc::clone(known)));
    }
}

impl Inner {
    pub(super) fn known_servers(&self, profile: &Profile) -> Arc<KnownServers> {
        // Taken before anything is looked at: what changes meanwhile makes another.
        let moment = Moment {
            changes: *self.changes.borrow(),
            fleet: *self.fleet.changes().borrow(),
            remembered: self.remembered.revision(),
        };
        if let Some(known) = lock(&self.ready).at(moment, profile) {
            return known;
        }
        let listing = self.source.current();
        let statuses: HashMap<String, Status> =
            self.fleet.all().into_iter().map(|info| (info.name, info.status)).collect();
        let all: Vec<Candidate<'_>> = listing
            .servers
            .iter()
            .map(|listed| {
                // One that the fleet has no place for.
                let status = statuses.get(&listed.entry.name).copied().unwrap_or(Status::Stopped);
                Candidate::of(&listed.entry, status.name(), &self.remembered, &self.pins)
            })
            .collect();
        let known = Arc::new(KnownServers::of(profile, &all));
        lock(&self.ready).put(moment, profile, &known);
        known
    }

    /// Takes note of what connected servers offer; names those of which that is new.
    pub(super) fn remember(&self) -> Vec<String> {
        let listing = self.source.current();
        let is_listed = |uuid: &str| listing.servers.iter().any(|listed| listed.entry.uuid == uuid);
        let is_new = |link: &ServerLink, uuid: &str| self.remembered.learn(uuid, &link.catalogue().tools);
        let connected = self.fleet.connected().into_iter();
        let new = connected.filter(|(entry, link)| is_listed(&entry.uuid) && is_new(link, &entry.uuid));
        new.map(|(entry, _)| entry.uuid.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ready_is_of_one_moment_and_profile() {
        let mut ready = Ready::default();
        let (now, later) = (Moment { fleet: 1, ..Moment::default() }, Moment { fleet: 2, ..Moment::default() });
        let (all, some) = (Profile::default(), Profile { prefix: false, ..Profile::default() });
        let known = Arc::new(KnownServers::default());
        ready.put(now, &all, &known);
        assert!(ready.at(now, &all).is_some() && ready.at(now, &some).is_none() && ready.at(later, &all).is_none());
        ready.put(now, &some, &known);
        assert!(ready.at(now, &all).is_some() && ready.at(now, &some).is_some());
        ready.put(later, &all, &known);
        assert!(ready.at(later, &all).is_some() && ready.at(later, &some).is_none());
    }

    #[test]
    fn it_is_bounded() {
        let mut ready = Ready::default();
        for number in 0..10 * MOST_PROFILES {
            let profile = Profile { servers: Some(vec![number.to_string()]), ..Profile::default() };
            ready.put(Moment::default(), &profile, &Arc::default());
            assert!(ready.by_profile.len() <= MOST_PROFILES);
        }
    }
}
