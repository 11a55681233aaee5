//! Option values as people write them.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::Duration;

use ringfence_config::parse_volume;
use ringfence_core::{Volume, Weakness};
use ringfence_egress::Rule;

/// `HOST:GUEST[:ro|rw]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeOption(pub(crate) Volume);

impl FromStr for VolumeOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_volume(text).map(Self)
    }
}

/// `none`, or `allow=RULE,…`.
#[derive(Debug, Clone)]
pub(crate) enum NetworkOption {
    None,
    Allow(Vec<Rule>),
}

impl FromStr for NetworkOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::None);
        }
        let rules = text
            .strip_prefix("allow=")
            .ok_or_else(|| format!("`{text}` is not a network; write `none` or `allow=HOST,…`"))?;
        let parse = |rule: &str| rule.parse::<Rule>().map_err(|error| error.to_string());
        rules.split(',').map(parse).collect::<Result<_, _>>().map(Self::Allow)
    }
}

/// `K=V`, or `K` for the host's own value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EnvironmentOption {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl FromStr for EnvironmentOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((name, value)) = text.split_once('=') {
            return Ok(Self { name: name.into(), value: value.into() });
        }
        let value =
            std::env::var(text).map_err(|_| format!("`{text}` is not set here; write {text}=VALUE to give it one"))?;
        Ok(Self { name: text.into(), value })
    }
}

/// A comma-separated list of weaknesses, or `none`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AcceptOption(pub(crate) BTreeSet<Weakness>);

impl FromStr for AcceptOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(BTreeSet::new()));
        }
        let parse = |name: &str| {
            let known = Weakness::ALL.into_iter().find(|weakness| weakness.name() == name);
            known.ok_or_else(|| format!("`{name}` is no weakness; there are cgroup, own-uid and landlock, or none"))
        };
        text.split(',').map(parse).collect::<Result<_, _>>().map(Self)
    }
}

/// A number of seconds, with a fraction if need be.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    const MOST: f64 = 365.0 * 86_400.0;
    match text.trim_end_matches('s').parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= MOST => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("`{text}` is not a time in seconds between 0 and a year")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_weaknesses_are_accepted() {
        assert_eq!("none".parse::<AcceptOption>().unwrap().0.len(), 0);
        assert_eq!("cgroup,landlock".parse::<AcceptOption>().unwrap().0.len(), 2);
        assert!("all".parse::<AcceptOption>().unwrap_err().contains("own-uid"));
    }

    #[test]
    fn times_are_positive() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(seconds("30s"), Ok(Duration::from_secs(30)));
        for bad in ["0", "-1", "soon", "inf", "nan", "1e300"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
