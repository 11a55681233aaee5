//! Times that enclose each other: a call < its request < an orderly end < what clients wait.
//!
//! Otherwise whoever waits outside gives up before it can be told what became of the inside. Values that were given are
//! never changed: two of them that leave no room for what lies between are refused. Defaults move to where they fit.

use std::time::Duration;

use super::super::error::ConfigError;
use super::super::times::Times;
use super::super::values::Values;
use super::{follow, tell, was_given};
use crate::Settings;

/// By how much a default stays above what was given below it.
const MARGIN_S: u64 = 30;

struct Link {
    key: &'static str,
    seconds: u64,
    is_given: bool,
}

pub(super) fn hold(settings: &mut Settings, times: &mut Times, values: &mut Values) -> Result<(), ConfigError> {
    // What was given for code alone has moved the limit of sessions, and stands for it.
    let (call, code) = ("sessions.max_timeout_s", "code.max_timeout_s");
    let is_codes = !was_given(values, call)
        && was_given(values, code)
        && values.get(call).map(|given| &given.value) == values.get(code).map(|given| &given.value);
    let link = |key, time: Duration| Link { key, seconds: time.as_secs(), is_given: was_given(values, key) };
    let mut chain = [
        link(if is_codes { code } else { call }, settings.most_timeout),
        link("server.request_timeout_s", times.request),
        link("server.drain_timeout_s", times.drain),
        link("server.client_timeout_s", times.client),
    ];
    refuse_conflicts(&chain, values)?;
    fit(&mut chain);
    for (time, link) in
        [&mut settings.most_timeout, &mut times.request, &mut times.drain, &mut times.client].into_iter().zip(&chain)
    {
        if time.as_secs() != link.seconds {
            *time = Duration::from_secs(link.seconds);
            follow(values, link.key, i64::try_from(link.seconds).unwrap_or(i64::MAX));
        }
    }
    Ok(())
}

fn refuse_conflicts(chain: &[Link], values: &Values) -> Result<(), ConfigError> {
    let given: Vec<(usize, &Link)> = chain.iter().enumerate().filter(|(_, link)| link.is_given).collect();
    // The longest comes at least a second after each that is before it, and the shortest has a second.
    if let Some((place, link)) = given.first().filter(|(place, link)| link.seconds <= *place as u64) {
        let first = chain[0].key;
        return Err(ConfigError::Conflict {
            problem: format!("{} leaves no time for {}", tell(values, link.key), tell(values, first)),
            hint: format!("raise {} to {} or more", link.key, place + 1),
        });
    }
    for pair in given.windows(2) {
        let [(inner_place, inner), (outer_place, outer)] = pair else { continue };
        let least = inner.seconds + (outer_place - inner_place) as u64;
        if outer.seconds < least {
            return Err(ConfigError::Conflict {
                problem: format!("{} is not less than {}", tell(values, inner.key), between(values, pair, chain)),
                hint: format!(
                    "raise {} to {least} or more, or lower {}: call < request < drain < client",
                    outer.key, inner.key
                ),
            });
        }
    }
    Ok(())
}

/// The outer of two, with what must fit between them.
fn between(values: &Values, pair: &[(usize, &Link)], chain: &[Link]) -> String {
    let [(inner_place, inner), (outer_place, outer)] = pair else { return String::new() };
    let told = tell(values, outer.key);
    if outer.seconds <= inner.seconds {
        return told;
    }
    let keys: Vec<&str> = chain[inner_place + 1..*outer_place].iter().map(|link| link.key).collect();
    format!("{told} by enough for {} between them", keys.join(" and "))
}

/// Moves defaults, as little as need be.
fn fit(chain: &mut [Link]) {
    // From the longest down: below what was given above, in proportion if it is short.
    let mut most = u64::MAX;
    for link in chain.iter_mut().rev() {
        if !link.is_given && link.seconds >= most {
            link.seconds = (most - most.div_ceil(10).min(MARGIN_S)).max(1);
        }
        // A default above does not bind what was given below.
        most = if link.is_given || most != u64::MAX { link.seconds } else { u64::MAX };
    }
    // From the shortest up: above what was given below, and below what was given above.
    for place in 1..chain.len() {
        let least = chain[place - 1].seconds + 1;
        if chain[place].is_given || chain[place].seconds >= least {
            continue;
        }
        let above = chain[place + 1..].iter().enumerate().find(|(_, link)| link.is_given);
        let most = above.map_or(u64::MAX, |(distance, link)| link.seconds.saturating_sub(distance as u64 + 1));
        chain[place].seconds = (least - 1 + MARGIN_S).min(most).max(least);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chain(times: [(u64, bool); 4]) -> [Link; 4] {
        times.map(|(seconds, is_given)| Link { key: "k", seconds, is_given })
    }

    fn seconds(chain: &[Link]) -> Vec<u64> {
        chain.iter().map(|link| link.seconds).collect()
    }

    #[test]
    fn defaults_move_as_little_as_need_be() {
        let fitted = |times| {
            let mut chain = chain(times);
            fit(&mut chain);
            seconds(&chain)
        };
        assert_eq!(fitted([(120, false), (150, false), (180, false), (300, false)]), [120, 150, 180, 300]);
        assert_eq!(fitted([(600, true), (150, false), (180, false), (300, false)]), [600, 630, 660, 690]);
        assert_eq!(fitted([(140, true), (150, false), (180, false), (300, false)]), [140, 150, 180, 300]);
        assert_eq!(fitted([(120, false), (150, false), (180, false), (60, true)]), [43, 48, 54, 60]);
        assert_eq!(fitted([(120, true), (150, false), (180, false), (123, true)]), [120, 121, 122, 123]);
        assert_eq!(fitted([(120, false), (5, true), (180, false), (300, false)]), [4, 5, 180, 300]);
    }

    proptest! {
        #[test]
        fn what_is_not_refused_holds(times in prop::array::uniform4((1_u64..400, any::<bool>()))) {
            let mut fitted = chain(times);
            if refuse_conflicts(&fitted, &Values::default()).is_ok() {
                fit(&mut fitted);
                let after = seconds(&fitted);
                prop_assert!(after.is_sorted_by(|one, next| one < next) && after[0] > 0, "{times:?}: {after:?}");
                let kept = times.iter().zip(&after).all(|((before, given), after)| !given || before == after);
                prop_assert!(kept, "{times:?}: {after:?}");
            }
        }
    }
}
