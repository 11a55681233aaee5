//! The addresses of names inside one sandbox.
//!
//! The resolver gives each allowed name an address of [`EGRESS_RANGE`], and a transparent connection is mapped back to
//! the name by the address that the guest dialled. A name has the same address for the life of the sandbox, unless the
//! table is full: then the least recently used name without an open connection loses its address. Addresses are reused
//! as late as possible, so that a stale address belongs to no name rather than to another one.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ringfence_core::sync::Mutex;
use ringfence_core::{EGRESS_PREFIX_LENGTH, EGRESS_RANGE};

use crate::rules::DnsName;

/// Maximum number of names of a sandbox.
const MAX_NAMES: usize = 4096;
/// Number of addresses in the range, including the first and the last, which no name gets.
const RANGE_SIZE: u32 = 1 << (32 - EGRESS_PREFIX_LENGTH);

/// The names of one sandbox.
#[derive(Debug, Clone)]
pub(crate) struct NameTable(Arc<Mutex<Table>>);

#[derive(Debug)]
struct Table {
    range: Ipv4Addr,
    max_names: usize,
    next_offset: u32,
    addresses: HashMap<Arc<DnsName>, Ipv4Addr>,
    entries: HashMap<Ipv4Addr, Entry>,
    /// The entries without an open connection, by their last use.
    unused: BTreeMap<u64, Ipv4Addr>,
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    name: Arc<DnsName>,
    last_use: u64,
    connections: usize,
}

impl NameTable {
    pub(crate) fn new() -> Self {
        Self::with_range(EGRESS_RANGE, MAX_NAMES)
    }

    /// Creates a table for the [`RANGE_SIZE`] addresses from `range` on.
    pub(crate) fn with_range(range: Ipv4Addr, max_names: usize) -> Self {
        Self(Arc::new(Mutex::new(Table {
            range,
            max_names,
            next_offset: 1,
            addresses: HashMap::new(),
            entries: HashMap::new(),
            unused: BTreeMap::new(),
            uses: 0,
        })))
    }

    /// Returns the address of a name; adds the name if necessary. `None` if every name has an open connection.
    pub(crate) fn address_of(&self, name: &DnsName) -> Option<Ipv4Addr> {
        let mut table = self.0.lock();
        if let Some(&address) = table.addresses.get(name) {
            table.touch(address);
            return Some(address);
        }
        table.add(name)
    }

    /// Returns the name of an address, if it has one.
    pub(crate) fn name_of(&self, address: Ipv4Addr) -> Option<Arc<DnsName>> {
        self.0.lock().entries.get(&address).map(|entry| Arc::clone(&entry.name))
    }

    /// Returns the name of an address for a connection. The name stays in the table until the value is dropped.
    pub(crate) fn open(&self, address: IpAddr) -> Option<NameInUse> {
        let IpAddr::V4(address) = address.to_canonical() else { return None };
        let mut table = self.0.lock();
        let table = &mut *table;
        let entry = table.entries.get_mut(&address)?;
        entry.connections += 1;
        table.unused.remove(&entry.last_use);
        Some(NameInUse { table: self.clone(), address, name: Arc::clone(&entry.name) })
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().entries.len()
    }
}

impl Table {
    fn add(&mut self, name: &DnsName) -> Option<Ipv4Addr> {
        if self.entries.len() >= self.max_names {
            let (_, oldest) = self.unused.pop_first()?;
            if let Some(entry) = self.entries.remove(&oldest) {
                self.addresses.remove(&entry.name);
            }
        }
        let address = loop {
            let address = Ipv4Addr::from_bits(self.range.to_bits() + self.next_offset);
            // The last host address of the range belongs to the loopback interface.
            self.next_offset = if self.next_offset == RANGE_SIZE - 3 { 1 } else { self.next_offset + 1 };
            if !self.entries.contains_key(&address) {
                break address;
            }
        };
        let name = Arc::new(name.clone());
        self.addresses.insert(Arc::clone(&name), address);
        self.entries.insert(address, Entry { name, last_use: 0, connections: 0 });
        self.touch(address);
        Some(address)
    }

    fn touch(&mut self, address: Ipv4Addr) {
        let Some(entry) = self.entries.get_mut(&address) else { return };
        self.unused.remove(&entry.last_use);
        self.uses += 1;
        entry.last_use = self.uses;
        if entry.connections == 0 {
            self.unused.insert(entry.last_use, address);
        }
    }
}

/// A name with an open connection.
#[derive(Debug)]
pub(crate) struct NameInUse {
    table: NameTable,
    address: Ipv4Addr,
    pub(crate) name: Arc<DnsName>,
}

impl Drop for NameInUse {
    fn drop(&mut self) {
        let mut table = self.table.0.lock();
        if let Some(entry) = table.entries.get_mut(&self.address) {
            entry.connections -= 1;
        }
        table.touch(self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DnsName {
        text.parse().unwrap()
    }

    fn open(table: &NameTable, address: Ipv4Addr) -> Option<String> {
        table.open(address.into()).map(|open| open.name.as_str().to_owned())
    }

    #[test]
    fn names_keep_their_address() {
        let table = NameTable::new();
        let first = table.address_of(&name("a.test")).unwrap();
        let second = table.address_of(&name("b.test")).unwrap();
        assert_eq!((first, second), (Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)));
        assert_eq!(table.address_of(&name("A.test.")), Some(first));
        assert_eq!(open(&table, first).as_deref(), Some("a.test"));
        assert_eq!(table.open("::ffff:198.18.0.2".parse().unwrap()).unwrap().name.as_str(), "b.test");
        assert_eq!(open(&table, Ipv4Addr::new(198, 18, 0, 3)), None);
        assert!(table.open("::1".parse().unwrap()).is_none());
    }

    #[test]
    fn full_table_reuses_the_oldest_name_without_connection() {
        let table = NameTable::with_range(EGRESS_RANGE, 3);
        let first = ["a", "b", "c"].map(|text| table.address_of(&name(text)).unwrap());
        let connection = table.open(first[0].into()).unwrap();
        table.address_of(&name("b")).unwrap();
        let fourth = table.address_of(&name("d")).unwrap();
        assert_eq!(open(&table, first[2]), None, "c was the oldest without a connection");
        assert_eq!(open(&table, fourth).as_deref(), Some("d"));
        let _others = [first[1], fourth].map(|address| table.open(address.into()).unwrap());
        assert_eq!(table.address_of(&name("e")), None, "every name has a connection");
        drop(connection);
        let fifth = table.address_of(&name("e")).unwrap();
        assert!(fifth != fourth && !first.contains(&fifth), "addresses are reused as late as possible");
        assert_eq!((open(&table, first[0]), table.len()), (None, 3));
    }

    #[test]
    fn addresses_wrap_around_inside_the_range() {
        let table = NameTable::with_range(EGRESS_RANGE, 2);
        table.0.lock().next_offset = RANGE_SIZE - 3;
        let last = table.address_of(&name("a")).unwrap();
        assert_eq!(last, Ipv4Addr::new(198, 19, 255, 253));
        assert_eq!(table.address_of(&name("b")).unwrap(), Ipv4Addr::new(198, 18, 0, 1));
    }

    #[test]
    fn second_connection_keeps_a_name_in_use() {
        let table = NameTable::with_range(EGRESS_RANGE, 1);
        let a = table.address_of(&name("a")).unwrap();
        let connections = [table.open(a.into()).unwrap(), table.open(a.into()).unwrap()];
        let [first, second] = connections;
        drop(first);
        assert_eq!(table.address_of(&name("b")), None);
        drop(second);
        assert!(table.address_of(&name("b")).is_some());
    }
}
