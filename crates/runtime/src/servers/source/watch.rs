//! Has the kernel tell of changes. Where it cannot, looking from time to time must do.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

pub(super) struct Watcher {
    /// Nothing where the kernel has no means for it, or no more.
    inner: Option<RecommendedWatcher>,
    directories: BTreeSet<PathBuf>,
    events: mpsc::Receiver<()>,
}

impl Watcher {
    pub(super) fn new() -> Self {
        // One that waits says all: that something has happened.
        let (sender, events) = mpsc::channel(1);
        let inner = notify::recommended_watcher(move |_| {
            let _ = sender.try_send(());
        });
        let inner = inner.inspect_err(|error| tracing::debug!("files are not watched, but looked at: {error}")).ok();
        Self { inner, directories: BTreeSet::new(), events }
    }

    /// Watches the directories of these files: a file is often replaced, and its directory tells of that too.
    pub(super) fn look_at(&mut self, files: &[PathBuf]) {
        let Some(inner) = &mut self.inner else { return };
        let parent = |path: &PathBuf| {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            parent.is_dir().then(|| parent.to_owned())
        };
        let wanted: BTreeSet<PathBuf> = files.iter().filter_map(parent).collect();
        for gone in self.directories.difference(&wanted) {
            let _ = inner.unwatch(gone);
        }
        let is_watched = |directory: &PathBuf| {
            self.directories.contains(directory) || inner.watch(directory, RecursiveMode::NonRecursive).is_ok()
        };
        self.directories = wanted.into_iter().filter(is_watched).collect();
    }

    /// Waits until something has happened.
    pub(super) async fn event(&mut self) {
        if self.events.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    pub(super) fn forget(&mut self) {
        while self.events.try_recv().is_ok() {}
    }
}
