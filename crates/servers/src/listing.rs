//! The list of all servers, from all sources, updated while ringfence runs.
//!
//! Precedence: entries of the store (`ringfence server add`), the configuration, the files in `hosting.files`, and the
//! settings of MCP clients, or else the files in `~/MCPs`, whose servers start on demand. The first definition of a name
//! wins, and the others are reported. If a source cannot be read any more, its previous entries stay in use. A file that
//! guests may write is no source of entries, and is reported.

mod file_stamps;
mod files;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use crate::guest_access::guest_writable;
use file_stamps::FileStamps;
use files::Files;
use ringfence_config::GuestWritable;
use ringfence_config::{Configuration, Sources};
use ringfence_entries::ServerEntry;
use ringfence_store::Store;

/// The interval between checks for changes of files, and of the store by other processes. inotify would need watches on
/// whole directories, one of them the working directory of ringfence, where every build would cause wake-ups.
///
/// The interval is shorter than the idle timeout of tokio's blocking threads, so that one always exists. If the host
/// allows no further thread, blocking work then waits for that thread; without any thread, tokio would panic.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Delay between a change and the read, because editors write a file in several steps.
const SETTLE_DELAY: Duration = Duration::from_millis(100);

/// All servers at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Listing {
    /// Sorted by name.
    pub servers: Vec<ListedServer>,
    pub problems: Vec<Problem>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ListedServer {
    pub entry: ServerEntry,
    pub origin: EntryOrigin,
}

/// The source of an entry, where it can be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryOrigin {
    Store {
        /// The client and file that it was imported from, if any.
        imported: Option<String>,
    },
    Configuration(PathBuf),
    File(PathBuf),
    Client {
        title: &'static str,
        path: PathBuf,
    },
    /// A file in `~/MCPs`.
    Discovered(PathBuf),
}

/// A problem with a source, or with one server in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub source: String,
    pub server: Option<String>,
    pub message: String,
}

impl Listing {
    pub fn entries(&self) -> Vec<ServerEntry> {
        self.servers.iter().map(|listed| listed.entry.clone()).collect()
    }

    pub fn find(&self, name: &str) -> Option<&ListedServer> {
        self.servers.iter().find(|listed| listed.entry.name == name)
    }
}

impl std::fmt::Display for EntryOrigin {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store { imported: None } => formatter.write_str("store"),
            Self::Store { imported: Some(from) } => write!(formatter, "store, from {from}"),
            Self::Configuration(path) | Self::File(path) | Self::Discovered(path) => {
                write!(formatter, "{}", path.display())
            }
            Self::Client { title, path } => write!(formatter, "{title}, {}", path.display()),
        }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}: ", self.source)?;
        if let Some(server) = &self.server {
            write!(formatter, "server `{}`: ", server.escape_debug())?;
        }
        formatter.write_str(&self.message)
    }
}

/// Decides which files may define servers. Clones share one state.
///
/// A file that guests may write never may, even if it does not exist yet. The store always may, because no guest can
/// write it.
#[derive(Debug, Clone, Default)]
pub struct FileTrust {
    is_frozen: Arc<AtomicBool>,
    writable: GuestWritable,
}

impl FileTrust {
    pub fn new(writable: GuestWritable) -> Self {
        Self { is_frozen: Arc::default(), writable }
    }

    /// Stops reading files again; entries that were read before stay in use.
    pub fn freeze(&self) {
        self.is_frozen.store(true, Ordering::SeqCst);
    }

    fn is_frozen(&self) -> bool {
        self.is_frozen.load(Ordering::SeqCst)
    }
}

/// Reads all sources once.
pub async fn list(sources: Sources, configuration: &Configuration, store: &Store) -> Listing {
    let writable = guest_writable(configuration, &configuration.sessions.volumes, store).await;
    Reader::new(sources, configuration, store.clone(), FileTrust::new(writable)).read().await
}

/// Updates the listing whenever a source changes, until it is dropped.
pub struct ListingWatcher {
    listings: watch::Receiver<Arc<Listing>>,
    refresh: mpsc::Sender<oneshot::Sender<()>>,
    task: AbortHandle,
}

impl ListingWatcher {
    pub async fn start(sources: Sources, configuration: &Configuration, store: Store, trust: FileTrust) -> Self {
        let mut reader = Reader::new(sources, configuration, store, trust);
        let stamps = reader.stamps().await;
        let first = reader.read().await;
        log_new_problems(&first.problems, &[]);
        let (sender, listings) = watch::channel(Arc::new(first));
        let (refresh, requests) = mpsc::channel(16);
        let task = tokio::spawn(watch_sources(reader, stamps, sender, requests)).abort_handle();
        Self { listings, refresh, task }
    }

    /// Returns a watcher whose listing is always empty, whatever is configured.
    pub fn empty() -> Self {
        let (_, listings) = watch::channel(Arc::default());
        let (refresh, _) = mpsc::channel(1);
        Self { listings, refresh, task: tokio::spawn(async {}).abort_handle() }
    }

    pub fn current(&self) -> Arc<Listing> {
        Arc::clone(&self.listings.borrow())
    }

    pub fn subscribe(&self) -> watch::Receiver<Arc<Listing>> {
        self.listings.clone()
    }

    /// Reads all sources now, so that [`Self::current`] contains the changes that this process has just made.
    pub async fn refresh(&self) {
        let (done, is_done) = oneshot::channel();
        if self.refresh.send(done).await.is_ok() {
            let _ = is_done.await;
        }
    }
}

impl Drop for ListingWatcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch_sources(
    mut reader: Reader,
    mut stamps: (Option<u64>, FileStamps),
    listings: watch::Sender<Arc<Listing>>,
    mut requests: mpsc::Receiver<oneshot::Sender<()>>,
) {
    let mut ticks = tokio::time::interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let mut refresh_request = None;
        tokio::select! {
            request = requests.recv() => match request {
                Some(request) => refresh_request = Some(request),
                None => return,
            },
            _ = ticks.tick() => {}
        }
        let mut now = reader.stamps().await;
        if refresh_request.is_some() || now != stamps {
            if refresh_request.is_none() {
                tokio::time::sleep(SETTLE_DELAY).await;
                now = reader.stamps().await;
            }
            stamps = now;
            let listing = reader.read().await;
            listings.send_if_modified(|current| {
                let is_new = **current != listing;
                if is_new {
                    log_new_problems(&listing.problems, &current.problems);
                    *current = Arc::new(listing);
                }
                is_new
            });
        }
        if let Some(request) = refresh_request {
            let _ = request.send(());
        }
    }
}

/// Logs the problems that were not in the previous listing.
fn log_new_problems(problems: &[Problem], previous: &[Problem]) {
    for problem in problems.iter().filter(|problem| !previous.contains(problem)) {
        tracing::warn!("{problem}");
    }
}

/// Reads all sources, and remembers the last entries of each.
struct Reader {
    store: Store,
    files: Files,
    trust: FileTrust,
    /// The entries and problems of all files when they were last read.
    file_entries: Option<(Vec<ListedServer>, Vec<Problem>)>,
    /// The last entries of the store.
    stored: Vec<ListedServer>,
}

impl Reader {
    fn new(sources: Sources, configuration: &Configuration, store: Store, trust: FileTrust) -> Self {
        let files = Files::new(sources, configuration, trust.writable.clone());
        Self { store, files, trust, file_entries: None, stored: Vec::new() }
    }

    /// Returns a value that differs after any change of a source.
    async fn stamps(&self) -> (Option<u64>, FileStamps) {
        let watched = if self.trust.is_frozen() { Vec::new() } else { self.files.watched_files() };
        let files = tokio::task::spawn_blocking(move || FileStamps::of(&watched)).await.unwrap_or_default();
        (self.store.server_changes().await.ok(), files)
    }

    async fn read(&mut self) -> Listing {
        let mut problems = Vec::new();
        self.read_store(&mut problems).await;
        self.files.stored = self.stored.iter().map(|listed| listed.entry.clone()).collect();
        if !self.trust.is_frozen() || self.file_entries.is_none() {
            self.read_files().await;
        }
        let mut all = self.stored.clone();
        if let Some((listed, more)) = &self.file_entries {
            all.extend(listed.iter().cloned());
            problems.extend(more.iter().cloned());
        }
        merge(all, problems)
    }

    async fn read_files(&mut self) {
        let mut files = std::mem::take(&mut self.files);
        let read = tokio::task::spawn_blocking(move || {
            let (listed, problems) = files.read();
            (files, listed, problems)
        });
        let Ok((files, listed, problems)) = read.await else { return };
        self.files = files;
        self.file_entries = Some((listed, problems));
    }

    async fn read_store(&mut self, problems: &mut Vec<Problem>) {
        let problem = |server: Option<String>, message: String| Problem { source: "store".into(), server, message };
        let rows = match self.store.servers().await {
            Ok(rows) => rows,
            Err(error) => return problems.push(problem(None, format!("the entries cannot be read: {error}"))),
        };
        self.stored.clear();
        for row in rows {
            match row.entry {
                Ok(entry) => {
                    self.stored.push(ListedServer { entry, origin: EntryOrigin::Store { imported: row.origin } });
                }
                Err(error) => problems.push(problem(Some(row.name), error.to_string())),
            }
        }
    }
}

/// Retains the first entry of each name, and reports the others, except for discovered ones: they are only a fallback.
fn merge(all: Vec<ListedServer>, mut problems: Vec<Problem>) -> Listing {
    let mut servers: BTreeMap<String, ListedServer> = BTreeMap::new();
    for listed in all {
        match servers.get(&listed.entry.name) {
            Some(_) if matches!(listed.origin, EntryOrigin::Discovered(_)) => {}
            Some(first) => problems.push(Problem {
                source: listed.origin.to_string(),
                server: Some(listed.entry.name),
                message: format!("not used: a server of this name is already in {}", first.origin),
            }),
            None => drop(servers.insert(listed.entry.name.clone(), listed)),
        }
    }
    Listing { servers: servers.into_values().collect(), problems }
}

#[cfg(test)]
mod tests;
