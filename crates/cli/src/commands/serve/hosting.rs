//! Starts the hosting of MCP servers.

use std::path::PathBuf;

use ringfence_config::{Capability, Configuration, ProtectedPaths, Scope, Sources, cache_directory};
use ringfence_gateway::{Hosting, HostingOptions};
use ringfence_servers::{FileTrust, Host, HostSettings, ListingWatcher};
use ringfence_session::Sessions;
use ringfence_store::Store;

use crate::failure::Failure;

pub(super) async fn start(
    sources: Sources,
    configuration: &Configuration,
    program: PathBuf,
    sessions: &Sessions,
    store: &Store,
    scope: Option<&Scope>,
    protected_paths: ProtectedPaths,
) -> Result<Hosting, Failure> {
    let cache = cache_directory()
        .ok_or_else(|| Failure::new("no cache directory for packages").hint("set RINGFENCE_CACHE_DIR or HOME"))?;
    let guest_writable = sessions.guest_writable().clone();
    let trust = FileTrust::new(guest_writable.clone());
    if scope.is_some() {
        trust.freeze();
    }
    let host = Host::new(HostSettings {
        accept: configuration.sessions.accept.clone(),
        install_allow: configuration.hosting.install_allow.clone(),
        confinement: scope.map(|scope| scope.confinement.clone()),
        guest_writable,
        strict_volumes: configuration.sessions.strict_volumes.clone(),
        audit: sessions.audit().clone(),
        scope_tag: scope.map(|scope| scope.tag.clone()),
        protected_paths,
        ..HostSettings::new(program, cache)
    });
    // A scope without this capability may use no server, so none is started.
    let source = if scope.is_none_or(|scope| scope.allows(Capability::Servers)) {
        ListingWatcher::start(sources, configuration, store.clone(), trust).await
    } else {
        ListingWatcher::empty()
    };
    Ok(Hosting::start(HostingOptions {
        host,
        profiles: configuration.profiles.clone(),
        audit: sessions.audit().clone(),
        store: store.clone(),
        source,
        pin_on_first_use: configuration.hosting.pin_on_first_use,
    }))
}
