//! Sandboxes with running interpreters that wait for a session, a few of each template that has been asked for.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Settings;
use super::launchers::Launchers;
use super::prepare::{self, Interpreter, Prepared};
use crate::flavor::Flavor;
use crate::template::{Language, Template};

/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub(super) struct Pool(Arc<Inner>);

struct Inner {
    launchers: Launchers,
    settings: Settings,
    shelves: Mutex<HashMap<Arc<str>, Shelf>>,
    /// Sandboxes that are being made for somebody who waits.
    wanted_now: watch::Sender<usize>,
    tasks: TaskTracker,
    end: CancellationToken,
}

#[derive(Default)]
struct Shelf {
    ready: VecDeque<Prepared>,
    is_filling: bool,
}

/// Held by whoever makes a sandbox that is waited for.
pub(super) struct Precedence<'a>(&'a watch::Sender<usize>);

impl Drop for Precedence<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|wanted| *wanted -= 1);
    }
}

impl Pool {
    pub(super) fn new(launchers: Launchers, settings: Settings) -> Self {
        let (shelves, tasks, end) = (Mutex::default(), TaskTracker::new(), CancellationToken::new());
        Self(Arc::new(Inner { launchers, settings, shelves, wanted_now: watch::Sender::new(0), tasks, end }))
    }

    /// Takes one that is ready, if there is one, and sees to it that there are more.
    pub(super) fn claim(&self, template: &Template, flavor: &Flavor) -> Option<Prepared> {
        // The only flavor that is kept: limits are part of a sandbox.
        if *flavor.name != *self.0.settings.default_flavor {
            return None;
        }
        let claimed = {
            let mut shelves = self.shelves();
            let ready = &mut shelves.entry(template.name.clone()).or_default().ready;
            // One that has died waiting is dropped here, and another is looked at.
            std::iter::from_fn(|| ready.pop_front()).find(Prepared::is_alive)
        };
        self.refill(template);
        claimed
    }

    /// While this is held, none are made ahead: somebody waits.
    pub(super) fn yield_to(&self) -> Precedence<'_> {
        self.0.wanted_now.send_modify(|wanted| *wanted += 1);
        Precedence(&self.0.wanted_now)
    }

    /// Ends those that wait.
    pub(super) async fn end(&self) {
        self.0.end.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.shelves().clear();
    }

    fn refill(&self, template: &Template) {
        {
            let mut shelves = self.shelves();
            let shelf = shelves.entry(template.name.clone()).or_default();
            if shelf.is_filling || shelf.ready.len() >= self.wanted(template) || self.0.tasks.is_closed() {
                return;
            }
            shelf.is_filling = true;
        }
        let (pool, template) = (self.clone(), template.clone());
        self.0.tasks.spawn(async move {
            tokio::select! {
                () = pool.fill(&template) => {}
                () = pool.0.end.cancelled() => {}
            }
            pool.shelves().entry(template.name).or_default().is_filling = false;
        });
    }

    async fn fill(&self, template: &Template) {
        if template.language == Language::Python {
            self.0.launchers.warm_up().await;
        }
        while self.ready(template) < self.wanted(template) {
            let _ = self.0.wanted_now.subscribe().wait_for(|wanted| *wanted == 0).await;
            match self.make(template).await {
                Ok(prepared) => {
                    self.shelves().entry(template.name.clone()).or_default().ready.push_back(prepared);
                }
                // Whoever asks for a session makes it himself, and is told why that fails.
                Err(why) => {
                    tracing::debug!("no {} session could be made ahead: {why}", template.name);
                    return;
                }
            }
        }
    }

    async fn make(&self, template: &Template) -> Result<Prepared, String> {
        let settings = &self.0.settings;
        let flavor = settings.flavors.find(&settings.default_flavor).map_err(|error| error.to_string())?;
        let prepared = prepare::sandbox(&self.0.launchers, template, flavor, settings, Interpreter::NeededNow);
        let mut prepared = prepared.await.map_err(|failure| failure.to_string())?;
        if let Some(starting) = prepared.starting.take() {
            prepared.kernel = Some(starting.finish(&prepared.guest).await?);
        }
        Ok(prepared)
    }

    fn wanted(&self, template: &Template) -> usize {
        self.0.settings.pool.get(&*template.name).copied().unwrap_or(0)
    }

    fn ready(&self, template: &Template) -> usize {
        self.shelves().get(&template.name).map_or(0, |shelf| shelf.ready.len())
    }

    fn shelves(&self) -> MutexGuard<'_, HashMap<Arc<str>, Shelf>> {
        self.0.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
