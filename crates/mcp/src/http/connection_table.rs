//! The open connections, and which of them are closed when the server is full.
//!
//! A connection is authenticated once a request on it has passed the gate, or if its owner is known from the start.
//! Before that it never blocks another one: when the server is full, or one address has too many connections, the
//! oldest unauthenticated connection is closed.

use ringfence_core::sync::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, MutexGuard};

use ringfence_core::Principal;
use tokio_util::sync::CancellationToken;

use super::authenticator::Origin;
use crate::fair_pool::{Full, Permit, Pool, Principals};

/// Connections beyond the limit that are answered with 503.
pub(super) const EXTRA: usize = 64;

/// One address may have an eighth of all connections without authentication, but never fewer than a small minimum.
const ADDRESS_FRACTION: usize = 8;
const MIN_PER_ADDRESS: usize = 8;

pub(super) struct ConnectionTable {
    limit: usize,
    per_address: usize,
    shares: Pool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: usize,
    extra: usize,
    next_id: u64,
    /// By age: the ids ascend.
    unauthenticated: BTreeMap<u64, Unauthenticated>,
    per_address: HashMap<IpAddr, usize>,
}

struct Unauthenticated {
    address: IpAddr,
    evicted: CancellationToken,
}

impl State {
    fn insert(&mut self, id: u64, address: IpAddr, evicted: CancellationToken) {
        *self.per_address.entry(address).or_default() += 1;
        self.unauthenticated.insert(id, Unauthenticated { address, evicted });
    }

    fn remove(&mut self, id: u64) -> Option<Unauthenticated> {
        let removed = self.unauthenticated.remove(&id)?;
        if let Some(count) = self.per_address.get_mut(&removed.address) {
            *count -= 1;
            if *count == 0 {
                self.per_address.remove(&removed.address);
            }
        }
        Some(removed)
    }

    /// Closes the oldest unauthenticated connection of an address.
    fn evict(&mut self, address: IpAddr) {
        let oldest = self.unauthenticated.iter().find(|(_, connection)| connection.address == address);
        if let Some(removed) = oldest.map(|(id, _)| *id).and_then(|id| self.remove(id)) {
            removed.evicted.cancel();
            self.open -= 1;
        }
    }
}

impl ConnectionTable {
    pub(super) fn new(limit: usize, principals: Principals) -> Arc<Self> {
        let per_address = (limit / ADDRESS_FRACTION).max(MIN_PER_ADDRESS);
        Arc::new(Self { limit, per_address, shares: Pool::new(limit, principals), state: Mutex::default() })
    }

    /// Takes a slot for a new connection. None if there is not even a slot to answer it with 503.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr, origin: Origin) -> Option<Slot> {
        let address = network(address);
        let mut state = self.lock();
        // Not on loopback: many users and proxies share that address.
        let held = state.per_address.get(&address).copied().unwrap_or_default();
        if origin != Origin::Owner && !address.is_loopback() && held >= self.per_address {
            state.evict(address);
        }
        if state.open >= self.limit
            && let Some((busiest, _)) = state.per_address.iter().max_by_key(|(_, count)| **count)
        {
            let busiest = *busiest;
            state.evict(busiest);
        }
        let is_over_limit = state.open >= self.limit;
        if is_over_limit && state.extra >= EXTRA {
            return None;
        }
        let (id, evicted) = (state.next_id, CancellationToken::new());
        state.next_id += 1;
        let status = if is_over_limit {
            state.extra += 1;
            Status::OverLimit
        } else {
            state.open += 1;
            if origin == Origin::Owner {
                Status::Authenticated { _share: None }
            } else {
                state.insert(id, address, evicted.clone());
                Status::Unauthenticated
            }
        };
        let peer =
            PeerState { id, address, origin, is_over_limit, table: Arc::clone(self), status: Mutex::new(status) };
        Some(Slot { peer: Peer(Arc::new(peer)), evicted })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// All addresses of an IPv6 /64 count as one, because one host can choose freely among them.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

enum Status {
    /// Beyond the limit: requests only get a 503.
    OverLimit,
    Unauthenticated,
    /// Authenticated; counts towards the share of its principal.
    Authenticated {
        _share: Option<Permit>,
    },
    Closed,
}

/// The slot of an open connection, released on drop.
pub(super) struct Slot {
    pub(super) peer: Peer,
    /// Cancelled when the connection must be closed in favour of another.
    pub(super) evicted: CancellationToken,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let peer = &self.peer.0;
        let mut state = peer.table.lock();
        match std::mem::replace(&mut *peer.status(), Status::Closed) {
            Status::OverLimit => state.extra -= 1,
            Status::Authenticated { .. } => state.open -= 1,
            // One that was evicted is no longer counted.
            Status::Unauthenticated => state.open -= usize::from(state.remove(peer.id).is_some()),
            Status::Closed => {}
        }
    }
}

/// The client of a connection, known to each request on it.
#[derive(Clone)]
pub struct Peer(Arc<PeerState>);

struct PeerState {
    id: u64,
    address: IpAddr,
    origin: Origin,
    is_over_limit: bool,
    table: Arc<ConnectionTable>,
    /// Locked after the table.
    status: Mutex<Status>,
}

impl PeerState {
    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock()
    }
}

impl Peer {
    pub fn address(&self) -> IpAddr {
        self.0.address
    }

    pub fn origin(&self) -> Origin {
        self.0.origin
    }

    pub(super) fn is_over_limit(&self) -> bool {
        self.0.is_over_limit
    }

    pub fn is_authenticated(&self) -> bool {
        matches!(*self.0.status(), Status::Authenticated { .. })
    }

    /// Records that a request of this principal has passed the gate. The first one takes a connection from its share.
    pub(super) fn authenticate(&self, principal: &Principal) -> Result<(), Full> {
        if !matches!(*self.0.status(), Status::Unauthenticated) {
            return Ok(());
        }
        let permit = self.0.table.shares.try_acquire(principal)?;
        let mut state = self.0.table.lock();
        let mut status = self.0.status();
        if matches!(*status, Status::Unauthenticated) && state.remove(self.0.id).is_some() {
            *status = Status::Authenticated { _share: Some(permit) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOODING: &str = "192.0.2.1";
    const OTHER: &str = "192.0.2.2";

    fn admit(table: &Arc<ConnectionTable>, address: &str) -> Slot {
        table.admit(address.parse().unwrap(), Origin::Unknown).unwrap()
    }

    fn alive(slots: &[Slot]) -> usize {
        slots.iter().filter(|slot| !slot.evicted.is_cancelled()).count()
    }

    #[test]
    fn unauthenticated_connections_do_not_block_others() {
        let table = ConnectionTable::new(16, Principals::One);
        let unauthenticated: Vec<Slot> = (0..100).map(|_| admit(&table, "127.0.0.1")).collect();
        assert_eq!(alive(&unauthenticated), 16);
        let client = admit(&table, "127.0.0.1");
        assert!(!client.peer.is_over_limit());
        client.peer.authenticate(&Principal::named("ci")).unwrap();
        assert!(client.peer.is_authenticated());
        let more: Vec<Slot> = (0..100).map(|_| admit(&table, "127.0.0.1")).collect();
        assert!(!client.evicted.is_cancelled(), "an authenticated connection stays");
        assert_eq!(alive(&unauthenticated) + alive(&more), 15);
        drop((unauthenticated, more, client));
        let state = table.lock();
        assert_eq!((state.open, state.per_address.len()), (0, 0));
    }

    #[test]
    fn unauthenticated_connections_of_one_address_are_limited() {
        let table = ConnectionTable::new(128, Principals::One);
        let other = admit(&table, OTHER);
        let unauthenticated: Vec<Slot> = (0..300).map(|_| admit(&table, FLOODING)).collect();
        assert_eq!(alive(&unauthenticated), 16);
        assert!(!other.evicted.is_cancelled());
        let near: Vec<Slot> = (1..40).map(|host| admit(&table, &format!("2001:db8::{host:x}"))).collect();
        assert_eq!(alive(&near), 16, "the addresses of one /64 count as one");
    }

    #[test]
    fn connection_of_busiest_address_is_evicted_when_table_is_full() {
        let table = ConnectionTable::new(8, Principals::One);
        let other = admit(&table, OTHER);
        let unauthenticated: Vec<Slot> = (0..20).map(|_| admit(&table, FLOODING)).collect();
        assert!(!other.evicted.is_cancelled());
        assert_eq!(alive(&unauthenticated), 7);
    }

    #[test]
    fn authenticated_connections_are_shared_between_principals() {
        let table = ConnectionTable::new(8, Principals::Several);
        let [one, other] = ["one", "other"].map(Principal::named);
        let slots: Vec<Slot> = (0..8).map(|_| admit(&table, "127.0.0.1")).collect();
        let passed: Vec<_> = slots.iter().map(|slot| slot.peer.authenticate(&one)).collect();
        assert_eq!(passed[5..], [Ok(()), Err(Full::Share(6)), Err(Full::Share(6))]);
        let client = admit(&table, "127.0.0.1");
        assert_eq!(client.peer.authenticate(&other), Ok(()));
        drop(slots);
        assert_eq!(admit(&table, "127.0.0.1").peer.authenticate(&one), Ok(()));
    }

    #[test]
    fn connections_beyond_the_limit_are_answered_and_bounded() {
        let table = ConnectionTable::new(2, Principals::One);
        let owner = || table.admit("127.0.0.1".parse().unwrap(), Origin::Owner);
        let held: Vec<Slot> = (0..2 + EXTRA).map_while(|_| owner()).collect();
        assert_eq!(held.iter().filter(|slot| slot.peer.is_over_limit()).count(), EXTRA);
        assert!(owner().is_none());
        drop(held);
        assert!(owner().is_some_and(|slot| !slot.peer.is_over_limit()));
    }
}
