//! Whether a server that is connected still lives.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};

use super::connect::{Link, LinkEnd};

/// So many probes without an answer in a row mean that a server is down.
const MAX_MISSED_PROBES: u32 = 3;

/// Watches until the server is down.
pub(super) async fn watch<L: Link>(link: Arc<L>, period: Duration) -> LinkEnd {
    let ended = link.ended();
    tokio::pin!(ended);
    let mut ticks = tokio::time::interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut missed = 0;
    loop {
        let is_well = tokio::select! {
            biased;
            end = &mut ended => return end,
            is_well = check(&*link, &mut ticks, period) => is_well,
        };
        missed = if is_well { 0 } else { missed + 1 };
        if missed == MAX_MISSED_PROBES {
            let message = format!("it was silent and did not answer {MAX_MISSED_PROBES} probes in a row");
            return LinkEnd { message, hints: Vec::new() };
        }
    }
}

async fn check<L: Link>(link: &L, ticks: &mut tokio::time::Interval, period: Duration) -> bool {
    ticks.tick().await;
    !link.is_silent() || tokio::time::timeout(period, link.probe()).await.unwrap_or(false)
}
