//! The paths of the host that servers may write according to their entries, and the checks that follow from them.

use ringfence_core::{Access, Volume};

use crate::install;
use crate::phase::StartFailure;
use crate::plan::{LaunchCommand, Plan};
use ringfence_config::Configuration;
use ringfence_config::GuestWritable;
use ringfence_entries::expand;
use ringfence_entries::{HostPathMode, ServerEntry, Transport};
use ringfence_store::Store;

/// Returns the read-write volumes of an entry's server, even if it is disabled, because it may have run before. Reads
/// files; may block.
pub fn read_write_volumes(entry: &ServerEntry) -> Vec<Volume> {
    let entry = expand(entry, &|name| std::env::var(name).ok()).unwrap_or_else(|_| entry.clone());
    let Transport::Stdio(settings) = &entry.transport else { return Vec::new() };
    let sandbox = &settings.sandbox_settings;
    if !settings.sandbox || sandbox.host_path_mode != HostPathMode::ReadWrite {
        return Vec::new();
    }
    if let Ok(plan) = Plan::of(&entry, settings) {
        return plan.volumes.into_iter().filter(|volume| volume.access == Access::ReadWrite).collect();
    }
    // The server cannot start now, but may have run before, or may start once a directory exists.
    let directories = sandbox.host_path.iter().chain(&settings.cwd).filter(|path| path.is_absolute());
    let volume =
        |host| Volume { host, guest: "/workspace/project".into(), access: Access::ReadWrite, allowed_root: None };
    directories.cloned().map(volume).collect()
}

/// Returns the paths that guests may write according to the configuration and the store: those of sessions (`volumes`)
/// and of hosted servers.
pub async fn guest_writable(configuration: &Configuration, volumes: &[Volume], store: &Store) -> GuestWritable {
    let writable = GuestWritable::from_volumes(volumes);
    let stored = store.servers().await.unwrap_or_default().into_iter().filter_map(|row| row.entry.ok());
    let entries = stored.chain(configuration.servers.iter().map(|server| server.entry.clone()));
    let entries: Vec<ServerEntry> = entries.collect();
    let shared = writable.clone();
    let added = tokio::task::spawn_blocking(move || {
        for entry in &entries {
            // No server runs yet; a volume that must not be mounted is refused when its server starts.
            let _ = shared.add(&read_write_volumes(entry));
        }
    });
    if added.await.is_err() {
        tracing::error!("the volumes of hosted servers cannot be determined");
    }
    writable
}

/// Checks that no guest could have written the registry settings that an installation of this entry would use. Reads
/// files; may block.
pub fn check_installation(entry: &ServerEntry, writable: &GuestWritable) -> Result<(), StartFailure> {
    let Ok(entry) = expand(entry, &|name| std::env::var(name).ok()) else { return Ok(()) };
    let Transport::Stdio(settings) = &entry.transport else { return Ok(()) };
    if !settings.sandbox || !settings.sandbox_settings.network {
        return Ok(());
    }
    // Other errors are reported when the server starts.
    let planned = Plan::of(&entry, settings).and_then(|plan| LaunchCommand::of(&plan, settings));
    let Ok(launch) = planned else { return Ok(()) };
    for dependency in &launch.dependencies {
        install::check_registry_settings(dependency.ecosystem(), writable)?;
    }
    Ok(())
}
