//! Checks whether a connected server still responds.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};

use super::connect::{Link, LinkEnd};

/// Number of consecutive probes without a response after which a server counts as down.
const MAX_MISSED_PROBES: u32 = 3;

/// Returns when the server has ended or counts as down.
pub(super) async fn watch<L: Link>(link: Arc<L>, period: Duration) -> LinkEnd {
    let ended = link.ended();
    tokio::pin!(ended);
    let mut ticks = tokio::time::interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut missed = 0;
    loop {
        let is_alive = tokio::select! {
            biased;
            end = &mut ended => return end,
            is_alive = check(&*link, &mut ticks, period) => is_alive,
        };
        missed = if is_alive { 0 } else { missed + 1 };
        if missed == MAX_MISSED_PROBES {
            let message = format!("no message and no response to {MAX_MISSED_PROBES} health probes in a row");
            return LinkEnd { message, hints: Vec::new() };
        }
    }
}

/// Waits for the next tick. Probes the server only if it has sent nothing since the last check.
async fn check<L: Link>(link: &L, ticks: &mut tokio::time::Interval, period: Duration) -> bool {
    ticks.tick().await;
    !link.is_silent() || tokio::time::timeout(period, link.probe()).await.unwrap_or(false)
}
