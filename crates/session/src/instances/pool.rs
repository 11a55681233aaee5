//! Instances with a running interpreter that wait for a session: a configured number for each template that was
//! requested, and for a while more where there were too few.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use ringfence_backend::Backend;
use ringfence_config::SessionSettings;
use ringfence_core::sync::Mutex;
use ringfence_core::{Flavor, Language, Template};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{InterpreterNeed, PreparedInstance};
use crate::calls::CallDeadline;

/// Cheap to clone; clones share the instances.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Inner>);

struct Inner {
    backend: Backend,
    settings: SessionSettings,
    /// By the name of the template.
    shelves: Mutex<HashMap<Arc<str>, Shelf>>,
    /// The number of instances that are being created for callers.
    foreground_launches: watch::Sender<usize>,
    tasks: TaskTracker,
    end: CancellationToken,
}

/// Maximum number of instances beyond the configured number.
const MAX_EXTRA: usize = 12;

/// Maximum time that foreground launches may delay a refill. A launch that hangs must not block refills.
const MAX_REFILL_DELAY: Duration = Duration::from_millis(500);

/// Duration for which extra instances are provided after the last miss.
const EXTRA_TIME: Duration = Duration::from_secs(60);

/// Maximum time for the import of modules in advance. Packages that were never used are read from the disk.
const PRELOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// The instances of one template.
#[derive(Default)]
struct Shelf {
    ready: VecDeque<PreparedInstance>,
    is_filling: bool,
    /// Whether the shelf was full at least once. Misses before that do not mean that the configured number is too small.
    was_full: bool,
    demand: Demand,
}

/// Requests that a shelf could not serve.
#[derive(Default)]
struct Demand {
    extra: usize,
    missed_at: Option<Instant>,
}

impl Demand {
    /// Records a miss, with the maximum number of extra instances. Returns whether it is the first in a while.
    fn miss(&mut self, now: Instant, max_extra: usize) -> bool {
        self.extra = (self.extra + 1).min(MAX_EXTRA).min(max_extra);
        self.missed_at.replace(now).is_none()
    }

    /// The number of instances to provide.
    fn target(&self, configured: usize) -> usize {
        if configured == 0 { 0 } else { configured + self.extra }
    }

    /// The remaining time of the extra instances. Resets the demand when it is over.
    fn remaining(&mut self, now: Instant) -> Option<Duration> {
        let since_miss = now.saturating_duration_since(self.missed_at?);
        let remaining = EXTRA_TIME.checked_sub(since_miss).filter(|remaining| !remaining.is_zero());
        if remaining.is_none() {
            *self = Self::default();
        }
        remaining
    }
}

/// Delays refills while an instance is created for a caller.
pub(crate) struct ForegroundLaunch<'a>(&'a watch::Sender<usize>);

impl Drop for ForegroundLaunch<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|launches| *launches -= 1);
    }
}

impl Pool {
    pub(crate) fn new(backend: Backend, settings: SessionSettings) -> Self {
        let (shelves, tasks, end) = (Mutex::default(), TaskTracker::new(), CancellationToken::new());
        let foreground_launches = watch::Sender::new(0);
        Self(Arc::new(Inner { backend, settings, shelves, foreground_launches, tasks, end }))
    }

    /// Takes an instance if one is ready, and refills the pool.
    pub(crate) fn claim(&self, template: &Template, flavor: &Flavor) -> Option<PreparedInstance> {
        // Limits are a part of an instance, so only instances of the default flavor are pooled.
        if *flavor.name != *self.0.settings.default_flavor {
            return None;
        }
        let secrets = self.0.settings.network.secrets_revision(&template.name);
        let (claimed, is_scarce) = {
            let mut shelves = self.shelves();
            let extra_of_others =
                |(name, shelf): (&Arc<str>, &Shelf)| if *name == template.name { 0 } else { shelf.demand.extra };
            let extra_of_others: usize = shelves.iter().map(extra_of_others).sum();
            let Shelf { ready, was_full, demand, .. } = shelves.entry(template.name.clone()).or_default();
            // Instances that have ended while they waited, or whose secrets have changed, are dropped here.
            let is_usable = |prepared: &PreparedInstance| prepared.secrets == secrets && prepared.is_alive();
            let claimed = std::iter::from_fn(|| ready.pop_front()).find(is_usable);
            let max_extra = self.max_extra().saturating_sub(extra_of_others);
            let is_scarce = claimed.is_none() && *was_full && demand.miss(Instant::now(), max_extra);
            (claimed, is_scarce)
        };
        if is_scarce {
            self.remove_extra_later(template);
        }
        self.refill(template);
        claimed
    }

    /// Removes the extra instances once the demand is over.
    fn remove_extra_later(&self, template: &Template) {
        let (pool, template) = (self.clone(), template.clone());
        let remove = async move {
            while let Some(remaining) = pool.remove_extra_if_due(&template) {
                tokio::time::sleep(remaining).await;
            }
        };
        let end = self.0.end.clone();
        self.0.tasks.spawn(async move { end.run_until_cancelled(remove).await });
    }

    fn remove_extra_if_due(&self, template: &Template) -> Option<Duration> {
        let (remaining, surplus) = {
            let mut shelves = self.shelves();
            let Shelf { ready, demand, .. } = shelves.get_mut(&template.name)?;
            let remaining = demand.remaining(Instant::now());
            let target = if remaining.is_some() { ready.len() } else { ready.len().min(self.configured(template)) };
            (remaining, ready.split_off(target))
        };
        // Without the lock: to end instances takes time.
        drop(surplus);
        remaining
    }

    /// Delays refills until the result is dropped.
    pub(crate) fn begin_foreground_launch(&self) -> ForegroundLaunch<'_> {
        self.0.foreground_launches.send_modify(|launches| *launches += 1);
        ForegroundLaunch(&self.0.foreground_launches)
    }

    /// Ends all instances of the pool.
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
            let is_full = shelf.ready.len() >= shelf.demand.target(self.configured(template));
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

    /// Creates instances until the shelf is full, or one cannot be created. Then `is_filling` is false.
    async fn fill(&self, template: &Template) {
        if template.language == Language::Python {
            self.0.backend.warm_up().await;
        }
        while self.needs_more(template) {
            let mut launches = self.0.foreground_launches.subscribe();
            let _ = tokio::time::timeout(MAX_REFILL_DELAY, launches.wait_for(|launches| *launches == 0)).await;
            match self.create(template).await {
                Ok(prepared) => {
                    self.shelves().entry(template.name.clone()).or_default().ready.push_back(prepared);
                }
                // Callers create an instance themselves, and get the error.
                Err(error) => {
                    tracing::debug!("cannot create a pooled instance of template {}: {error}", template.name);
                    self.shelves().entry(template.name.clone()).or_default().is_filling = false;
                    return;
                }
            }
        }
    }

    async fn create(&self, template: &Template) -> Result<PreparedInstance, String> {
        let settings = &self.0.settings;
        let flavor = settings.flavors.find(&settings.default_flavor).map_err(|error| error.to_string())?;
        let created = super::create(&self.0.backend, template, flavor, settings, InterpreterNeed::Immediately).await;
        let mut prepared = created.map_err(|failure| failure.to_string())?;
        if let Some(starting) = prepared.starting.take() {
            prepared.kernel = Some(starting.finish(&prepared.instance).await?);
        }
        // A fork of the warm interpreter has imported them already.
        if !template.packages.is_empty()
            && let Some(kernel) = &mut prepared.kernel
        {
            let deadline = CallDeadline::new(PRELOAD_TIMEOUT, self.0.end.clone());
            if !kernel.preload(&prepared.instance, &settings.preload, deadline).await {
                return Err("its modules cannot be imported in advance".to_owned());
            }
        }
        Ok(prepared)
    }

    fn configured(&self, template: &Template) -> usize {
        self.0.settings.pool.get(&*template.name).copied().unwrap_or(0)
    }

    fn needs_more(&self, template: &Template) -> bool {
        let mut shelves = self.shelves();
        let Shelf { ready, was_full, demand, is_filling } = shelves.entry(template.name.clone()).or_default();
        let needs_more = ready.len() < demand.target(self.configured(template));
        if !needs_more {
            // Under the same lock, so that the next claim starts a refill.
            *is_filling = false;
            *was_full |= !ready.is_empty();
        }
        needs_more
    }

    /// Maximum number of extra instances of all templates: a pooled instance counts as a session.
    fn max_extra(&self) -> usize {
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
    fn misses_raise_the_target_for_a_while_up_to_a_limit() {
        let (mut demand, start) = (Demand::default(), Instant::now());
        assert_eq!((demand.target(4), demand.remaining(start)), (4, None));
        assert!(demand.miss(start, 9));
        assert!(!demand.miss(start + EXTRA_TIME / 2, 9), "not the first miss");
        assert_eq!((demand.target(4), demand.target(0)), (6, 0));
        assert_eq!(demand.remaining(start + EXTRA_TIME), Some(EXTRA_TIME / 2));
        assert_eq!(demand.target(4), 6);
        assert_eq!((demand.remaining(start + EXTRA_TIME * 3 / 2), demand.target(4)), (None, 4));
        for _ in 0..100 {
            demand.miss(start, 100);
        }
        assert_eq!(demand.target(4), 4 + MAX_EXTRA);
        demand.miss(start, 3);
        assert_eq!(demand.target(4), 7, "no more than the limit of sessions allows");
    }
}
