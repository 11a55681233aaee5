//! All servers there are, from all places, kept up to date while a server runs.
//!
//! What was added at run time comes before the configuration, that before the files it names, and those before what
//! clients are configured with. The first definition of a name wins and the others are reported. A place that cannot
//! be read any more keeps what it last had. A file that guests may write is no source of entries, and is reported.

mod files;
mod stamp;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use super::guest_writable;
use files::Files;
use ringfence_config::GuestWritable;
use ringfence_config::{Configuration, Sources};
use ringfence_entries::ServerEntry;
use ringfence_store::Store;
use stamp::Stamps;

/// How often is looked for changes, of the store by other processes and of files. To be told of them by the kernel would
/// take a watch on whole directories, of which one is whatever ringfence was started in: every build there would wake it.
/// More often than tokio ends a thread for blocking work that is idle, so that there always is one: where the host has
/// none to give, work that blocks waits for its turn, but asking for a first thread would end the program.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// An editor writes a file in several steps.
const SETTLES_IN: Duration = Duration::from_millis(100);

/// All servers at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Listing {
    /// By name.
    pub servers: Vec<Listed>,
    pub problems: Vec<Problem>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    pub entry: ServerEntry,
    pub origin: EntryOrigin,
}

/// Where an entry is, and so where it can be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryOrigin {
    Store {
        /// What it was imported from, if it was.
        imported: Option<String>,
    },
    Configuration(PathBuf),
    File(PathBuf),
    Client {
        title: &'static str,
        path: PathBuf,
    },
}

/// Something about one place, or one server in it, that a person should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub place: String,
    pub server: Option<String>,
    pub message: String,
}

impl Listing {
    pub fn entries(&self) -> Vec<ServerEntry> {
        self.servers.iter().map(|listed| listed.entry.clone()).collect()
    }

    pub fn find(&self, name: &str) -> Option<&Listed> {
        self.servers.iter().find(|listed| listed.entry.name == name)
    }
}

impl std::fmt::Display for EntryOrigin {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store { imported: None } => formatter.write_str("store"),
            Self::Store { imported: Some(from) } => write!(formatter, "store, from {from}"),
            Self::Configuration(path) | Self::File(path) => write!(formatter, "{}", path.display()),
            Self::Client { title, path } => write!(formatter, "{title}, {}", path.display()),
        }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}: ", self.place)?;
        if let Some(server) = &self.server {
            write!(formatter, "server `{}`: ", server.escape_debug())?;
        }
        formatter.write_str(&self.message)
    }
}

/// Decides which files may still define servers. Clones share one state.
///
/// A file that guests may write never may, even if it does not exist yet. The store, which no guest can write, always
/// may.
#[derive(Debug, Clone, Default)]
pub struct Following {
    has_ended: Arc<AtomicBool>,
    writable: GuestWritable,
}

impl Following {
    pub fn new(writable: GuestWritable) -> Self {
        Self { has_ended: Arc::default(), writable }
    }

    /// From now on no file is read again.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }
}

/// Reads everything once.
pub async fn list(sources: Sources, configuration: &Configuration, store: &Store) -> Listing {
    let writable = guest_writable(configuration, &configuration.sessions.volumes, store).await;
    Reader::new(sources, configuration, store.clone(), Following::new(writable)).read().await
}

/// Reads everything whenever something changes. Dropped, it no longer looks.
pub struct ServerSource {
    listings: watch::Receiver<Arc<Listing>>,
    refresh: mpsc::Sender<oneshot::Sender<()>>,
    task: AbortHandle,
}

impl ServerSource {
    pub async fn start(sources: Sources, configuration: &Configuration, store: Store, following: Following) -> Self {
        let mut reader = Reader::new(sources, configuration, store, following);
        let stamps = reader.stamps().await;
        let first = reader.read().await;
        tell(&first.problems, &[]);
        let (sender, listings) = watch::channel(Arc::new(first));
        let (refresh, requests) = mpsc::channel(16);
        let task = tokio::spawn(follow(reader, stamps, sender, requests)).abort_handle();
        Self { listings, refresh, task }
    }

    /// Of no servers, whatever is configured.
    pub fn none() -> Self {
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

    /// Reads everything now; what this process has just changed is in [`Self::current`] afterwards.
    pub async fn refresh(&self) {
        let (done, is_done) = oneshot::channel();
        if self.refresh.send(done).await.is_ok() {
            let _ = is_done.await;
        }
    }
}

impl Drop for ServerSource {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow(
    mut reader: Reader,
    mut stamps: (Option<u64>, Stamps),
    listings: watch::Sender<Arc<Listing>>,
    mut requests: mpsc::Receiver<oneshot::Sender<()>>,
) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let mut asked = None;
        tokio::select! {
            request = requests.recv() => match request {
                Some(request) => asked = Some(request),
                None => return,
            },
            _ = ticks.tick() => {}
        }
        let mut now = reader.stamps().await;
        if asked.is_some() || now != stamps {
            if asked.is_none() {
                tokio::time::sleep(SETTLES_IN).await;
                now = reader.stamps().await;
            }
            stamps = now;
            let listing = reader.read().await;
            listings.send_if_modified(|current| {
                let is_new = **current != listing;
                if is_new {
                    tell(&listing.problems, &current.problems);
                    *current = Arc::new(listing);
                }
                is_new
            });
        }
        if let Some(asked) = asked {
            let _ = asked.send(());
        }
    }
}

/// What is newly wrong is logged once.
fn tell(problems: &[Problem], before: &[Problem]) {
    for problem in problems.iter().filter(|problem| !before.contains(problem)) {
        tracing::warn!("{problem}");
    }
}

/// Reads all places, and remembers what each last had.
struct Reader {
    store: Store,
    files: Files,
    following: Following,
    /// What files last had.
    of_files: Option<(Vec<Listed>, Vec<Problem>)>,
    stored: Vec<Listed>,
}

impl Reader {
    fn new(sources: Sources, configuration: &Configuration, store: Store, following: Following) -> Self {
        let files = Files::new(sources, configuration, following.writable.clone());
        Self { store, files, following, of_files: None, stored: Vec::new() }
    }

    /// Changes when anything that is read does.
    async fn stamps(&self) -> (Option<u64>, Stamps) {
        let watched = if self.following.has_ended() { Vec::new() } else { self.files.watched() };
        let files = tokio::task::spawn_blocking(move || Stamps::of(&watched)).await.unwrap_or_default();
        (self.store.server_changes().await.ok(), files)
    }

    async fn read(&mut self) -> Listing {
        let mut problems = Vec::new();
        self.read_store(&mut problems).await;
        self.files.stored = self.stored.iter().map(|listed| listed.entry.clone()).collect();
        if !self.following.has_ended() || self.of_files.is_none() {
            self.read_files().await;
        }
        let mut all = self.stored.clone();
        if let Some((listed, more)) = &self.of_files {
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
        self.of_files = Some((listed, problems));
    }

    async fn read_store(&mut self, problems: &mut Vec<Problem>) {
        let problem = |server: Option<String>, message: String| Problem { place: "store".into(), server, message };
        let rows = match self.store.servers().await {
            Ok(rows) => rows,
            Err(error) => return problems.push(problem(None, format!("it cannot be read: {error}"))),
        };
        self.stored.clear();
        for row in rows {
            match row.entry {
                Ok(entry) => {
                    self.stored.push(Listed { entry, origin: EntryOrigin::Store { imported: row.origin } });
                }
                Err(error) => problems.push(problem(Some(row.name), error.to_string())),
            }
        }
    }
}

/// The first of each name.
fn merge(all: Vec<Listed>, mut problems: Vec<Problem>) -> Listing {
    let mut servers: BTreeMap<String, Listed> = BTreeMap::new();
    for listed in all {
        match servers.get(&listed.entry.name) {
            Some(first) => problems.push(Problem {
                place: listed.origin.to_string(),
                server: Some(listed.entry.name),
                message: format!("it is not used: there is one of this name in {}", first.origin),
            }),
            None => drop(servers.insert(listed.entry.name.clone(), listed)),
        }
    }
    Listing { servers: servers.into_values().collect(), problems }
}

#[cfg(test)]
mod tests;
