//! What is known of servers without asking one that runs.

use std::path::PathBuf;

use ringfence_config::GuestWritable;
use ringfence_config::{Configuration, Sources};
use ringfence_servers::{EntryOrigin, Listing, guest_writable, list};
use ringfence_store::{DamageReport, Store};
use tokio::runtime::Runtime;

use crate::damage;
use crate::failure::Failure;

pub(crate) struct Registry {
    pub(crate) store: Store,
    configuration: Configuration,
    sources: Sources,
    runtime: Runtime,
    pub(crate) damage_reports: Vec<DamageReport>,
}

impl Registry {
    pub(crate) fn open(config: Option<&PathBuf>) -> Result<Self, Failure> {
        let sources = crate::commands::config::sources(config.cloned(), Vec::new());
        let configuration = ringfence_config::load(&sources)?;
        let (store, damage_reports) = damage::open(&configuration.state_directory()?)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::new("the store cannot be read").because(&error))?;
        Ok(Self { store, configuration, sources, runtime, damage_reports })
    }

    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// The paths that guests may write, according to the configuration and the store.
    pub(crate) fn guest_writable(&self) -> GuestWritable {
        let volumes = &self.configuration.sessions.volumes;
        self.wait(guest_writable(&self.configuration, volumes, &self.store))
    }

    /// All servers from all places.
    pub(crate) fn listing(&self) -> Listing {
        self.wait(list(self.sources.clone(), &self.configuration, &self.store))
    }

    /// Why a server that the store does not have cannot be changed here.
    pub(crate) fn missing(&self, name: &str) -> Failure {
        let listing = self.listing();
        let Some(listed) = listing.find(name) else {
            let failure = Failure::new(format!("server not found: {name}"));
            return if self.damage_reports.is_empty() {
                failure.hint("`ringfence server list` shows those there are")
            } else {
                failure.hint("it may have been lost with the damaged database; add it again")
            };
        };
        let failure = Failure::new(format!("the server `{name}` is not kept in the store, but in {}", listed.origin));
        match listed.origin {
            EntryOrigin::Client { .. } => {
                failure.hint("import it with `ringfence server import`, or set hosting.import = false")
            }
            _ => failure.hint("change it there; a server that runs takes it up within a second"),
        }
    }
}
