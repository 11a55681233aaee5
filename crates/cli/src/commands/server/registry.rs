//! The entries of MCP servers in the configuration and the store, without a running ringfence server.

use std::path::PathBuf;
use std::process::ExitCode;

use ringfence_config::{Configuration, GuestWritable, Sources};
use ringfence_servers::{EntryOrigin, Listing, guest_writable, list};
use ringfence_store::{DamageReport, Store};
use tokio::runtime::Runtime;

use crate::database;
use crate::failure::Failure;
use crate::output::print;

pub(crate) struct Registry {
    pub(crate) store: Store,
    pub(crate) configuration: Configuration,
    sources: Sources,
    runtime: Runtime,
    pub(crate) damage_reports: Vec<DamageReport>,
}

/// The state to which a server is switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Switch {
    On,
    Off,
}

impl Registry {
    pub(crate) fn open(config: Option<&PathBuf>) -> Result<Self, Failure> {
        let sources = crate::configuration::sources(config.cloned(), Vec::new());
        let configuration = ringfence_config::load(&sources)?;
        Self::with(sources, configuration)
    }

    /// As [`Self::open`], with a configuration that may name secrets that do not exist.
    pub(crate) fn with_missing_secrets(sources: Sources) -> Result<Self, Failure> {
        let configuration = ringfence_config::load_with_missing_secrets(&sources)?;
        Self::with(sources, configuration)
    }

    fn with(sources: Sources, configuration: Configuration) -> Result<Self, Failure> {
        let (store, damage_reports) = database::open(&configuration.state_directory()?)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::new("cannot read the state database").caused_by(&error))?;
        Ok(Self { store, configuration, sources, runtime, damage_reports })
    }

    /// Runs a future to its end.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Returns the paths that guests may write, according to the configuration and the store.
    pub(crate) fn guest_writable(&self) -> GuestWritable {
        let volumes = &self.configuration.sessions.volumes;
        self.wait(guest_writable(&self.configuration, volumes, &self.store))
    }

    /// Returns the servers of all sources.
    pub(crate) fn listing(&self) -> Listing {
        self.wait(list(self.sources.clone(), &self.configuration, &self.store))
    }

    /// Enables or disables servers of the store.
    pub(crate) fn switch(&self, names: &[String], switch: Switch) -> Result<ExitCode, Failure> {
        for name in names {
            if !self.wait(self.store.enable_server(name, switch == Switch::On))? {
                return Err(self.not_in_store(name));
            }
            let done = if switch == Switch::On { "enabled" } else { "disabled" };
            print(&format!("{done} {name}\n"))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the reason why a server that is not in the store cannot be changed.
    pub(crate) fn not_in_store(&self, name: &str) -> Failure {
        let listing = self.listing();
        let Some(listed) = listing.find(name) else {
            let failure = Failure::new(format!("server not found: {name}"));
            return if self.damage_reports.is_empty() {
                failure.hint("list all servers with `ringfence server list`")
            } else {
                failure.hint("its entry may have been lost with the damaged database; add it again")
            };
        };
        let failure = Failure::new(format!("the server `{name}` is defined in {}, not in the store", listed.origin));
        match listed.origin {
            EntryOrigin::Client { .. } => {
                failure.hint("import it with `ringfence server import`, or set hosting.import = false")
            }
            EntryOrigin::Discovered(_) => failure.hint(
                "change it there, add it to the store with `ringfence server import --from directories`, or set \
                 hosting.discover = false",
            ),
            EntryOrigin::Store { .. } | EntryOrigin::Configuration(_) | EntryOrigin::File(_) => {
                failure.hint("change it there; a running ringfence server applies the change within a second")
            }
        }
    }
}
