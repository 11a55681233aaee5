//! Sandboxes with running interpreters that wait for a session, a few of each template that has been asked for, and for a
//! while some more where there were too few.

use ringfence_core::sync::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::prepare::{self, Interpreter, Prepared};
use ringfence_backend::Launchers;
use ringfence_config::SessionSettings;
use ringfence_core::Flavor;
use ringfence_core::{Language, Template};

/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Inner>);

struct Inner {
    launchers: Launchers,
    settings: SessionSettings,
    shelves: Mutex<HashMap<Arc<str>, Shelf>>,
    /// Sandboxes that are being made for somebody who waits.
    wanted_now: watch::Sender<usize>,
    tasks: TaskTracker,
    end: CancellationToken,
}

/// What may wait beyond what is configured, while that was too little.
const MOST_MORE: usize = 12;

/// How long whoever waits for a sandbox of his own keeps others from being made: one that hangs must not for ever.
const MOST_PATIENCE: Duration = Duration::from_millis(500);

/// How long after there was last too little.
const KEPT: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Shelf {
    ready: VecDeque<Prepared>,
    is_filling: bool,
    /// Once at least: before, it is no wonder that there are too few.
    was_full: bool,
    demand: Demand,
}

/// What was asked of a shelf that it did not have.
#[derive(Default)]
struct Demand {
    more: usize,
    missed_at: Option<Instant>,
}

impl Demand {
    /// Notes that none was there, where there is room for so many; whether that is the first time in a while.
    fn miss(&mut self, now: Instant, room: usize) -> bool {
        self.more = (self.more + 1).min(MOST_MORE).min(room);
        self.missed_at.replace(now).is_none()
    }

    fn wanted(&self, configured: usize) -> usize {
        if configured == 0 { 0 } else { configured + self.more }
    }

    /// How long it must still be remembered. It is forgotten if that is over.
    fn left(&mut self, now: Instant) -> Option<Duration> {
        let left = KEPT.checked_sub(now.saturating_duration_since(self.missed_at?)).filter(|left| !left.is_zero());
        if left.is_none() {
            *self = Self::default();
        }
        left
    }
}

/// Held by whoever makes a sandbox that is waited for.
pub(crate) struct Precedence<'a>(&'a watch::Sender<usize>);

impl Drop for Precedence<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|wanted| *wanted -= 1);
    }
}

impl Pool {
    pub(crate) fn new(launchers: Launchers, settings: SessionSettings) -> Self {
        let (shelves, tasks, end) = (Mutex::default(), TaskTracker::new(), CancellationToken::new());
        Self(Arc::new(Inner { launchers, settings, shelves, wanted_now: watch::Sender::new(0), tasks, end }))
    }

    /// Takes one that is ready, if there is one, and sees to it that there are more.
    pub(crate) fn claim(&self, template: &Template, flavor: &Flavor) -> Option<Prepared> {
        // The only flavor that is kept: limits are part of a sandbox.
        if *flavor.name != *self.0.settings.default_flavor {
            return None;
        }
        let (claimed, is_scarce) = {
            let mut shelves = self.shelves();
            let others =
                |(name, shelf): (&Arc<str>, &Shelf)| if *name == template.name { 0 } else { shelf.demand.more };
            let others: usize = shelves.iter().map(others).sum();
            let Shelf { ready, was_full, demand, .. } = shelves.entry(template.name.clone()).or_default();
            // One that has died waiting is dropped here, and another is looked at.
            let claimed = std::iter::from_fn(|| ready.pop_front()).find(Prepared::is_alive);
            let room = self.room().saturating_sub(others);
            let is_scarce = claimed.is_none() && *was_full && demand.miss(Instant::now(), room);
            (claimed, is_scarce)
        };
        if is_scarce {
            self.remember(template);
        }
        self.refill(template);
        claimed
    }

    /// Lets those go that are too many, once there have been enough for a while.
    fn remember(&self, template: &Template) {
        let (pool, template) = (self.clone(), template.clone());
        let forget = async move {
            while let Some(left) = pool.demand_left(&template) {
                tokio::time::sleep(left).await;
            }
        };
        let end = self.0.end.clone();
        self.0.tasks.spawn(async move { end.run_until_cancelled(forget).await });
    }

    fn demand_left(&self, template: &Template) -> Option<Duration> {
        let (left, surplus) = {
            let mut shelves = self.shelves();
            let Shelf { ready, demand, .. } = shelves.get_mut(&template.name)?;
            let left = demand.left(Instant::now());
            let kept = if left.is_some() { ready.len() } else { ready.len().min(self.configured(template)) };
            (left, ready.split_off(kept))
        };
        drop(surplus);
        left
    }

    /// While this is held, none are made ahead: somebody waits.
    pub(crate) fn yield_to(&self) -> Precedence<'_> {
        self.0.wanted_now.send_modify(|wanted| *wanted += 1);
        Precedence(&self.0.wanted_now)
    }

    /// Ends those that wait.
    pub(crate) async fn end(&self) {
        self.0.end.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.shelves().clear();
    }

    fn refill(&self, template: &Template) {
        {
            let mut shelves = self.shelves();
            let shelf = shelves.entry(template.name.clone()).or_default();
            let is_full = shelf.ready.len() >= shelf.demand.wanted(self.configured(template));
            if shelf.is_filling || is_full || self.0.tasks.is_closed() {
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
        });
    }

    /// Until the shelf is full, and says so itself, or one cannot be made.
    async fn fill(&self, template: &Template) {
        if template.language == Language::Python {
            self.0.launchers.warm_up().await;
        }
        while self.has_room(template) {
            let mut wanted_now = self.0.wanted_now.subscribe();
            let _ = tokio::time::timeout(MOST_PATIENCE, wanted_now.wait_for(|wanted| *wanted == 0)).await;
            match self.make(template).await {
                Ok(prepared) => {
                    self.shelves().entry(template.name.clone()).or_default().ready.push_back(prepared);
                }
                // Whoever asks for a session makes it himself, and is told why that fails.
                Err(why) => {
                    tracing::debug!("no {} session could be made ahead: {why}", template.name);
                    self.shelves().entry(template.name.clone()).or_default().is_filling = false;
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

    fn configured(&self, template: &Template) -> usize {
        self.0.settings.pool.get(&*template.name).copied().unwrap_or(0)
    }

    fn has_room(&self, template: &Template) -> bool {
        let mut shelves = self.shelves();
        let Shelf { ready, was_full, demand, is_filling } = shelves.entry(template.name.clone()).or_default();
        let has_room = ready.len() < demand.wanted(self.configured(template));
        if !has_room {
            // In the same moment, so that whoever takes one after it has it filled again.
            *is_filling = false;
            *was_full |= !ready.is_empty();
        }
        has_room
    }

    /// For how many more than are configured: one that waits counts as a session.
    fn room(&self) -> usize {
        let settings = &self.0.settings;
        settings.max_sessions.saturating_sub(settings.pool.values().sum())
    }

    fn shelves(&self) -> MutexGuard<'_, HashMap<Arc<str>, Shelf>> {
        self.0.shelves.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_were_too_few_more_wait_for_a_while_but_not_without_bound() {
        let (mut demand, start) = (Demand::default(), Instant::now());
        assert_eq!((demand.wanted(4), demand.left(start)), (4, None));
        assert!(demand.miss(start, 9));
        assert!(!demand.miss(start + KEPT / 2, 9), "it is remembered already");
        assert_eq!((demand.wanted(4), demand.wanted(0)), (6, 0));
        assert_eq!(demand.left(start + KEPT), Some(KEPT / 2));
        assert_eq!(demand.wanted(4), 6);
        assert_eq!((demand.left(start + KEPT * 3 / 2), demand.wanted(4)), (None, 4));
        for _ in 0..100 {
            demand.miss(start, 100);
        }
        assert_eq!(demand.wanted(4), 4 + MOST_MORE);
        demand.miss(start, 3);
        assert_eq!(demand.wanted(4), 7, "no more than there is room for");
    }
}
