//! The host paths that entries let their servers write, and the settings files that must not be used because of them.

use ringfence_core::{Access, Volume};

use super::needs::Needs;
use super::phase::StartFailure;
use super::plan::Plan;
use super::registries;
use ringfence_config::Configuration;
use ringfence_config::GuestWritable;
use ringfence_entries::expand;
use ringfence_entries::{HostPathMode, ServerEntry, Transport};
use ringfence_store::Store;

/// The read-write volumes of an entry's server, enabled or not: it may have run before. Looks at files; may block.
pub fn read_write_volumes(entry: &ServerEntry) -> Vec<Volume> {
    let entry = expand(entry, &|name| std::env::var(name).ok()).unwrap_or_else(|_| entry.clone());
    let Transport::Stdio(settings) = &entry.transport else { return Vec::new() };
    let walls = &settings.sandbox_settings;
    if !settings.sandbox || walls.host_path_mode != HostPathMode::ReadWrite {
        return Vec::new();
    }
    if let Ok(plan) = Plan::of(&entry, settings) {
        return plan.volumes.into_iter().filter(|volume| volume.access == Access::ReadWrite).collect();
    }
    // The server cannot start now, but may have run before, or may start once a directory exists.
    let named = walls.host_path.iter().chain(&settings.cwd).filter(|path| path.is_absolute());
    let volume =
        |host| Volume { host, guest: "/workspace/project".into(), access: Access::ReadWrite, allowed_root: None };
    named.cloned().map(volume).collect()
}

/// What guests may write according to the configuration and the store: sessions and hosted servers.
pub async fn guest_writable(configuration: &Configuration, volumes: &[Volume], store: &Store) -> GuestWritable {
    let writable = GuestWritable::from_volumes(volumes);
    let stored = store.servers().await.unwrap_or_default().into_iter().filter_map(|row| row.entry.ok());
    let entries = stored.chain(configuration.servers.iter().map(|server| server.entry.clone()));
    let entries: Vec<ServerEntry> = entries.collect();
    let shared = writable.clone();
    let added = tokio::task::spawn_blocking(move || {
        for entry in &entries {
            // Nothing is executed yet.
            let _ = shared.add(&read_write_volumes(entry));
        }
    });
    if added.await.is_err() {
        tracing::error!("the volumes of hosted servers cannot be determined");
    }
    writable
}

/// Why the packages of an entry cannot be installed, if a guest could have written a setting that names registries.
/// Reads files; may block.
pub fn check_installation(entry: &ServerEntry, writable: &GuestWritable) -> Result<(), StartFailure> {
    let Ok(entry) = expand(entry, &|name| std::env::var(name).ok()) else { return Ok(()) };
    let Transport::Stdio(settings) = &entry.transport else { return Ok(()) };
    if !settings.sandbox || !settings.sandbox_settings.network {
        return Ok(());
    }
    // What else is wrong with it is reported when it starts.
    let Ok(needs) = Plan::of(&entry, settings).and_then(|plan| Needs::of(&plan, settings)) else { return Ok(()) };
    for need in &needs.wanted {
        registries::check(need.kind(), writable)?;
    }
    Ok(())
}
