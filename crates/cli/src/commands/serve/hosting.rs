//! The MCP servers that are hosted beside the sandboxes.

use std::path::PathBuf;
use std::sync::Arc;

use ringfence_gateway::{Hosting, HostingOptions};
use ringfence_runtime::config::Configuration;
use ringfence_runtime::servers::{Host, HostSettings, ServerEntry, cache_directory};
use ringfence_runtime::session::Sessions;
use ringfence_runtime::store::Store;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use crate::failure::Failure;

/// Hosted servers, kept as their entries say.
pub(super) struct Hosted {
    pub(super) servers: Hosting,
    follower: AbortOnDropHandle<()>,
}

impl Hosted {
    pub(super) async fn shut_down(self) {
        drop(self.follower);
        self.servers.shut_down().await;
    }
}

pub(super) fn start(
    configuration: &Configuration,
    program: PathBuf,
    sessions: &Sessions,
    store: &Store,
) -> Result<Hosted, Failure> {
    let cache = cache_directory()
        .ok_or_else(|| Failure::new("there is no directory for packages").hint("set RINGFENCE_CACHE_DIR, or HOME"))?;
    let host =
        Host::new(HostSettings { accept: configuration.sessions.accept.clone(), ..HostSettings::new(program, cache) });
    let reload = Arc::new(Notify::new());
    let servers = Hosting::start(HostingOptions {
        host,
        profiles: configuration.profiles.clone(),
        audit: sessions.audit().clone(),
        store: store.clone(),
        reload: Arc::clone(&reload),
    });
    let configured = configuration.servers.iter().map(|server| server.entry.clone()).collect();
    let follower = follow(servers.clone(), store.clone(), configured, reload);
    Ok(Hosted { servers, follower: AbortOnDropHandle::new(tokio::spawn(follower)) })
}

async fn follow(servers: Hosting, store: Store, configured: Vec<ServerEntry>, reload: Arc<Notify>) {
    loop {
        let stored = store.servers().await.unwrap_or_default();
        let mut entries: Vec<ServerEntry> = stored.into_iter().filter_map(|stored| stored.entry.ok()).collect();
        for entry in &configured {
            if !entries.iter().any(|taken| taken.name == entry.name) {
                entries.push(entry.clone());
            }
        }
        servers.apply(entries);
        reload.notified().await;
    }
}
