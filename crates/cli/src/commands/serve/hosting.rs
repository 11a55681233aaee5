//! Starts the hosting of MCP servers.

use std::path::PathBuf;

use ringfence_config::{
    Capability, Configuration, GuestWritable, PackageSettings, ProtectedPaths, Scope, Secrets, Sources, cache_directory,
};
use ringfence_egress::{Mirror, MirrorSettings};
use ringfence_gateway::{Hosting, HostingOptions};
use ringfence_servers::{FileTrust, Host, HostSettings, ListingWatcher};
use ringfence_session::Sessions;
use ringfence_store::{Audit, Store};

use crate::failure::Failure;

/// Creates the host of servers, which starts nothing yet.
pub(in crate::commands) fn host(
    configuration: &Configuration,
    program: PathBuf,
    guest_writable: GuestWritable,
    audit: Audit,
    scope: Option<&Scope>,
    protected_paths: ProtectedPaths,
    secrets: Secrets,
) -> Result<Host, Failure> {
    Ok(Host::new(HostSettings {
        accept: configuration.sessions.accept.clone(),
        install_allow: configuration.hosting.install_allow.clone(),
        confinement: scope.map(|scope| scope.confinement.clone()),
        guest_writable,
        strict_volumes: configuration.sessions.strict_volumes.clone(),
        audit,
        scope_tag: scope.map(|scope| scope.tag.clone()),
        protected_paths,
        secrets,
        ..HostSettings::new(program, cache()?)
    }))
}

/// Creates the mirror of package registries for sessions.
pub(super) fn package_mirror(host: &Host, settings: &PackageSettings) -> Result<Mirror, Failure> {
    let settings = MirrorSettings {
        cache_directory: cache()?,
        max_bytes: settings.max_bytes,
        registries: host.package_registries(settings),
    };
    Ok(Mirror::new(settings))
}

fn cache() -> Result<PathBuf, Failure> {
    cache_directory()
        .ok_or_else(|| Failure::new("no cache directory for packages").hint("set RINGFENCE_CACHE_DIR or HOME"))
}

pub(super) async fn start(
    sources: Sources,
    configuration: &Configuration,
    host: Host,
    sessions: &Sessions,
    store: &Store,
    scope: Option<&Scope>,
) -> Hosting {
    let trust = FileTrust::new(sessions.guest_writable().clone());
    if scope.is_some() {
        trust.freeze();
    }
    // A scope without this capability may use no server, so none is started.
    let source = if scope.is_none_or(|scope| scope.allows(Capability::Servers)) {
        ListingWatcher::start(sources, configuration, store.clone(), trust).await
    } else {
        ListingWatcher::empty()
    };
    Hosting::start(HostingOptions {
        host,
        profiles: configuration.profiles.clone(),
        audit: sessions.audit().clone(),
        store: store.clone(),
        source,
        pin_on_first_use: configuration.hosting.pin_on_first_use,
    })
}
