//! The files in `/etc` that determine how programs resolve host names.

use std::path::Path;

use super::RootEntry;
use ringfence_core::Network;

/// The names of [`files`] in `/etc`.
pub(super) const NAMES: [&str; 3] = ["hosts", "nsswitch.conf", "resolv.conf"];

const HOSTS: &str = "127.0.0.1 localhost ringfence\n::1 localhost\n";

/// Returns the files. With egress, names that are not in `hosts` are sent to the host's resolver.
pub(super) fn files(network: &Network) -> impl Iterator<Item = RootEntry> {
    let (switch, resolver) = match network {
        Network::None => ("hosts: files", "# this sandbox has no network\n"),
        Network::Egress { .. } => ("hosts: files dns", "nameserver 127.0.0.1\noptions timeout:5 attempts:2\n"),
    };
    let texts = [HOSTS.into(), format!("passwd: files\ngroup: files\n{switch}\n"), resolver.into()];
    NAMES.into_iter().zip(texts).map(|(name, text)| RootEntry::File { guest: Path::new("etc").join(name), text })
}
