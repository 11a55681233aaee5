//! The commands that run in a session, concurrently with its code and with each other.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use ringfence_backend::{Event, Instance};
use tokio::time::{Instant, sleep_until};

use super::queues::{Call, Work};
use super::reports::{OpenCall, Reports, STOPPED_CALL_TIMEOUT, cancelled_in_queue, stopped};
use crate::api::Status;
use crate::calls::{Outcome, SANDBOX_KILLED, run_command};

/// Maximum number of running commands of a session. Further ones wait.
const MAX_RUNNING: usize = 8;

/// A command with its number.
type RunningCommand = Pin<Box<dyn Future<Output = (u64, Outcome)> + Send>>;

/// The running commands of a session. Dropping it abandons them; they end with the instance.
#[derive(Default)]
pub(super) struct RunningCommands {
    running: FuturesUnordered<RunningCommand>,
    open: BTreeMap<u64, OpenCall>,
}

impl RunningCommands {
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub(super) fn has_capacity(&self) -> bool {
        self.running.len() < MAX_RUNNING
    }

    /// Starts a command. Its result arrives only while the caller awaits [`Self::next`] and the events of the instance.
    pub(super) async fn start(&mut self, call: Call, instance: &Arc<Instance>, reports: &mut Reports) {
        let Some((open, work, deadline)) = reports.begin(call) else { return };
        let (Some(deadline), Work::Command(command)) = (deadline, work) else {
            return reports.complete(open, Ok(cancelled_in_queue()), instance, false).await;
        };
        let (number, instance) = (open.number, Arc::clone(instance));
        self.open.insert(number, open);
        self.running.push(Box::pin(async move { (number, run_command(&instance, &command, deadline).await) }));
    }

    /// Waits for the next command that ends. Never returns if none runs. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<(OpenCall, Outcome)> {
        match self.running.next().await {
            Some((number, outcome)) => self.open.remove(&number).map(|open| (open, outcome)),
            None => std::future::pending().await,
        }
    }

    /// Leaves the commands to the next owner of the instance, and replies to their callers.
    pub(super) async fn leave(&mut self, instance: &Instance, reports: &mut Reports) {
        self.running.clear();
        for open in std::mem::take(&mut self.open).into_values() {
            reports.complete(open, Ok(Outcome::new(Status::Cancelled)), instance, true).await;
        }
    }

    /// Ends all commands together with the instance, and replies to their callers.
    pub(super) async fn end(&mut self, instance: &Instance, reports: &mut Reports, is_stopped: bool) {
        if self.is_empty() {
            return;
        }
        instance.kill();
        let end = Instant::now() + STOPPED_CALL_TIMEOUT;
        let outcome_of = |outcome| if is_stopped { stopped(outcome) } else { outcome };
        let mut is_lost = false;
        while !self.is_empty() {
            tokio::select! {
                biased;
                Some((open, outcome)) = self.next() => {
                    reports.complete(open, Ok(outcome_of(outcome)), instance, true).await;
                }
                event = instance.event(), if !is_lost => is_lost = event == Event::Lost,
                () = sleep_until(end) => break,
            }
        }
        self.running.clear();
        for open in std::mem::take(&mut self.open).into_values() {
            let outcome = Outcome::not_run(Status::Killed, SANDBOX_KILLED.into());
            reports.complete(open, Ok(outcome_of(outcome)), instance, true).await;
        }
    }
}
