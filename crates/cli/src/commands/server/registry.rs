//! What is known of servers without asking one that runs.

use std::path::PathBuf;

use ringfence_runtime::config::{Configuration, Sources};
use ringfence_runtime::own::GuestWritable;
use ringfence_runtime::servers::{EntryOrigin, Listing, guest_writable, list};
use ringfence_runtime::store::Store;
use tokio::runtime::Runtime;

use crate::failure::Failure;

pub(in crate::commands) struct Registry {
    pub(in crate::commands) store: Store,
    configuration: Configuration,
    sources: Sources,
    runtime: Runtime,
}

impl Registry {
    pub(in crate::commands) fn open(config: Option<&PathBuf>) -> Result<Self, Failure> {
        let sources = crate::commands::config::sources(config.cloned(), Vec::new());
        let configuration = ringfence_runtime::config::load(&sources)?;
        let store = Store::open(&configuration.state_directory()?)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::new("the store cannot be read").because(&error))?;
        Ok(Self { store, configuration, sources, runtime })
    }

    pub(in crate::commands) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// What guests may write according to the configuration and the store.
    pub(super) fn guest_writable(&self) -> GuestWritable {
        let volumes = &self.configuration.sessions.volumes;
        self.wait(guest_writable(&self.configuration, volumes, &self.store))
    }

    /// All servers from all places.
    pub(in crate::commands) fn listing(&self) -> Listing {
        self.wait(list(self.sources.clone(), &self.configuration, &self.store))
    }

    /// Why a server that the store does not have cannot be changed here.
    pub(in crate::commands) fn missing(&self, name: &str) -> Failure {
        let listing = self.listing();
        let Some(listed) = listing.find(name) else {
            return Failure::new(format!("server not found: {name}"))
                .hint("`ringfence server list` shows those there are");
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
