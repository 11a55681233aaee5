//! Sandboxes with running interpreters that wait for a session, a few of each template that has been asked for.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringfence_sandbox::Volume;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::kernel::Kernel;
use super::launchers::Launchers;
use super::prepare::{self, Prepared};
use crate::flavor::Flavor;
use crate::template::Template;

/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub(super) struct Pool(Arc<Inner>);

struct Inner {
    launchers: Launchers,
    /// The only flavor that is kept: limits are part of a sandbox.
    flavor: Flavor,
    volumes: Vec<Volume>,
    python: usize,
    others: usize,
    shelves: Mutex<HashMap<&'static str, Shelf>>,
    tasks: TaskTracker,
    end: CancellationToken,
}

#[derive(Default)]
struct Shelf {
    ready: VecDeque<Prepared>,
    is_filling: bool,
}

impl Pool {
    pub(super) fn new(
        launchers: Launchers,
        flavor: Flavor,
        volumes: Vec<Volume>,
        python: usize,
        others: usize,
    ) -> Self {
        let (shelves, tasks, end) = (Mutex::default(), TaskTracker::new(), CancellationToken::new());
        Self(Arc::new(Inner { launchers, flavor, volumes, python, others, shelves, tasks, end }))
    }

    /// Takes one that is ready, if there is one, and sees to it that there are more.
    pub(super) fn claim(&self, template: Template, flavor: Flavor) -> Option<Prepared> {
        if flavor != self.0.flavor {
            return None;
        }
        let claimed = {
            let mut shelves = self.shelves();
            let ready = &mut shelves.entry(template.name()).or_default().ready;
            // One that has died waiting is dropped here, and another is looked at.
            std::iter::from_fn(|| ready.pop_front()).find(Prepared::is_alive)
        };
        self.refill(template);
        claimed
    }

    /// Ends those that wait.
    pub(super) async fn end(&self) {
        self.0.end.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.shelves().clear();
    }

    fn refill(&self, template: Template) {
        {
            let mut shelves = self.shelves();
            let shelf = shelves.entry(template.name()).or_default();
            if shelf.is_filling || shelf.ready.len() >= self.wanted(template) || self.0.tasks.is_closed() {
                return;
            }
            shelf.is_filling = true;
        }
        let pool = self.clone();
        self.0.tasks.spawn(async move {
            tokio::select! {
                () = pool.fill(template) => {}
                () = pool.0.end.cancelled() => {}
            }
            pool.shelves().entry(template.name()).or_default().is_filling = false;
        });
    }

    async fn fill(&self, template: Template) {
        if template == Template::Python {
            self.0.launchers.warm_up().await;
        }
        while self.ready(template) < self.wanted(template) {
            match self.make(template).await {
                Ok(prepared) => {
                    self.shelves().entry(template.name()).or_default().ready.push_back(prepared);
                }
                // Whoever asks for a session makes it himself, and is told why that fails.
                Err(why) => {
                    tracing::debug!("no {} session could be made ahead: {why}", template.name());
                    return;
                }
            }
        }
    }

    async fn make(&self, template: Template) -> Result<Prepared, String> {
        let prepared = prepare::sandbox(&self.0.launchers, template, self.0.flavor, &self.0.volumes);
        let mut prepared = prepared.await.map_err(|failure| failure.to_string())?;
        prepared.kernel = Some(Kernel::start(&mut prepared.guest, template).await?);
        Ok(prepared)
    }

    fn wanted(&self, template: Template) -> usize {
        if template == Template::Python { self.0.python } else { self.0.others }
    }

    fn ready(&self, template: Template) -> usize {
        self.shelves().get(template.name()).map_or(0, |shelf| shelf.ready.len())
    }

    fn shelves(&self) -> MutexGuard<'_, HashMap<&'static str, Shelf>> {
        self.0.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
