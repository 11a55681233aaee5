//! The order of timeouts: call < request < drain < client.
//!
//! Each party must still be waiting when an inner timeout expires; otherwise it gives up before it gets the error
//! response. Values that the user set are never changed: two that leave no time for the timeouts between them are
//! refused. Defaults are moved to fit.

use std::time::Duration;

use crate::configuration::{SessionSettings, Timeouts};
use crate::error::ConfigError;
use crate::values::Values;

/// Maximum distance between a moved default and the value that it was moved past.
const MARGIN_S: u64 = 30;

/// One timeout of the chain, which is ordered from the shortest to the longest.
struct Link {
    key: &'static str,
    seconds: u64,
    /// Set by the user, not a default.
    is_set: bool,
}

/// Refuses timeouts that cannot be ordered, and moves defaults into order.
pub(super) fn reconcile(
    sessions: &mut SessionSettings,
    timeouts: &mut Timeouts,
    values: &mut Values,
) -> Result<(), ConfigError> {
    // If the user set only the limit of code, it has raised the limit of sessions: errors then name the key of code.
    let (call, code) = ("sessions.max_timeout_s", "code.max_timeout_s");
    let is_from_code = !values.is_set(call)
        && values.is_set(code)
        && values.get(call).map(|found| &found.value) == values.get(code).map(|found| &found.value);
    let link = |key, time: Duration| Link { key, seconds: time.as_secs(), is_set: values.is_set(key) };
    let mut chain = [
        link(if is_from_code { code } else { call }, sessions.max_timeout),
        link("server.request_timeout_s", timeouts.request),
        link("server.drain_timeout_s", timeouts.drain),
        link("server.client_timeout_s", timeouts.client),
    ];
    refuse_conflicts(&chain, values)?;
    move_defaults(&mut chain);
    let targets = [&mut sessions.max_timeout, &mut timeouts.request, &mut timeouts.drain, &mut timeouts.client];
    for (timeout, link) in targets.into_iter().zip(&chain) {
        if timeout.as_secs() != link.seconds {
            *timeout = Duration::from_secs(link.seconds);
            values.set_default(link.key, i64::try_from(link.seconds).unwrap_or(i64::MAX));
        }
    }
    Ok(())
}

fn refuse_conflicts(chain: &[Link], values: &Values) -> Result<(), ConfigError> {
    let set: Vec<(usize, &Link)> = chain.iter().enumerate().filter(|(_, link)| link.is_set).collect();
    // Each timeout is at least one second longer than the one before, and the shortest is at least one second.
    if let Some((index, link)) = set.first().filter(|(index, link)| link.seconds <= *index as u64) {
        let shortest = chain[0].key;
        return Err(ConfigError::Conflict {
            problem: format!("{} leaves no time for {}", values.describe(link.key), values.describe(shortest)),
            hint: format!("raise {} to {} or more", link.key, index + 1),
        });
    }
    for pair in set.windows(2) {
        let [(inner_index, inner), (outer_index, outer)] = pair else { continue };
        let min = inner.seconds + (outer_index - inner_index) as u64;
        if outer.seconds < min {
            let mut problem = format!("{} is not less than {}", values.describe(inner.key), values.describe(outer.key));
            if outer.seconds > inner.seconds {
                let between: Vec<&str> = chain[inner_index + 1..*outer_index].iter().map(|link| link.key).collect();
                problem = format!(
                    "{} and {} leave no time for {} between them",
                    values.describe(inner.key),
                    values.describe(outer.key),
                    between.join(" and ")
                );
            }
            return Err(ConfigError::Conflict {
                problem,
                hint: format!(
                    "raise {} to {min} or more, or lower {}; the order is call < request < drain < client",
                    outer.key, inner.key
                ),
            });
        }
    }
    Ok(())
}

/// Moves defaults, as little as possible, so that the chain is ordered.
fn move_defaults(chain: &mut [Link]) {
    // From the longest down: below the values that the user set above, in proportion if those are short.
    let mut limit = u64::MAX;
    for link in chain.iter_mut().rev() {
        if !link.is_set && link.seconds >= limit {
            link.seconds = (limit - limit.div_ceil(10).min(MARGIN_S)).max(1);
        }
        // A default does not limit the values below it.
        limit = if link.is_set || limit != u64::MAX { link.seconds } else { u64::MAX };
    }
    // From the shortest up: above the value below, and below the next value that the user set.
    for index in 1..chain.len() {
        let min = chain[index - 1].seconds + 1;
        if chain[index].is_set || chain[index].seconds >= min {
            continue;
        }
        let next_set = chain[index + 1..].iter().enumerate().find(|(_, link)| link.is_set);
        let max = next_set.map_or(u64::MAX, |(distance, link)| link.seconds.saturating_sub(distance as u64 + 1));
        chain[index].seconds = (min - 1 + MARGIN_S).min(max).max(min);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chain(times: [(u64, bool); 4]) -> [Link; 4] {
        times.map(|(seconds, is_set)| Link { key: "k", seconds, is_set })
    }

    fn seconds(chain: &[Link]) -> Vec<u64> {
        chain.iter().map(|link| link.seconds).collect()
    }

    #[test]
    fn defaults_move_as_little_as_possible() {
        let moved = |times| {
            let mut chain = chain(times);
            move_defaults(&mut chain);
            seconds(&chain)
        };
        assert_eq!(moved([(120, false), (150, false), (180, false), (300, false)]), [120, 150, 180, 300]);
        assert_eq!(moved([(600, true), (150, false), (180, false), (300, false)]), [600, 630, 660, 690]);
        assert_eq!(moved([(140, true), (150, false), (180, false), (300, false)]), [140, 150, 180, 300]);
        assert_eq!(moved([(120, false), (150, false), (180, false), (60, true)]), [43, 48, 54, 60]);
        assert_eq!(moved([(120, true), (150, false), (180, false), (123, true)]), [120, 121, 122, 123]);
        assert_eq!(moved([(120, false), (5, true), (180, false), (300, false)]), [4, 5, 180, 300]);
    }

    proptest! {
        #[test]
        fn accepted_timeouts_are_ordered(times in prop::array::uniform4((1_u64..400, any::<bool>()))) {
            let mut chain = chain(times);
            if refuse_conflicts(&chain, &Values::default()).is_ok() {
                move_defaults(&mut chain);
                let after = seconds(&chain);
                prop_assert!(after.is_sorted_by(|a, b| a < b) && after[0] > 0, "{times:?}: {after:?}");
                let is_unchanged = times.iter().zip(&after).all(|((before, is_set), after)| !is_set || before == after);
                prop_assert!(is_unchanged, "{times:?}: {after:?}");
            }
        }
    }
}
