//! Values of options, as they are written on the command line.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::str::FromStr;
use std::time::Duration;

use ringfence_config::parse_volume;
use ringfence_core::{Volume, Weakness};
use ringfence_egress::{Rule, RuleError};

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
        rules.split(',').map(parse_rule).collect::<Result<_, _>>().map(Self::Allow)
    }
}

pub(crate) fn parse_rule(text: &str) -> Result<Rule, String> {
    text.parse().map_err(|error| with_cause_and_hint(&error))
}

/// Formats an error of a rule. clap shows it after `invalid value … for '--network …':`.
fn with_cause_and_hint(error: &RuleError) -> String {
    let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    format!("{error}{cause}\nhint: {}", error.hint())
}

/// `NAME=VALUE`, or `NAME` for the value in the environment of ringfence.
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
        let value = std::env::var(text).map_err(|_| {
            format!("the variable `{text}` is not set in this environment; write {text}=VALUE to set it in the sandbox")
        })?;
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
            known.ok_or_else(|| {
                format!("unknown weakness `{name}`; write `none` or a list of `cgroup`, `own-uid` and `landlock`")
            })
        };
        text.split(',').map(parse).collect::<Result<_, _>>().map(Self)
    }
}

/// Parses a number of seconds, which may have a fraction and the unit `s`.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    const MAX_SECONDS: f64 = 365.0 * 86_400.0;
    match text.trim_end_matches('s').parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= MAX_SECONDS => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("`{text}` is not a number of seconds between 0 and a year")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_weaknesses_are_accepted() {
        assert_eq!("none".parse::<AcceptOption>().unwrap().0.len(), 0);
        assert_eq!("cgroup,landlock".parse::<AcceptOption>().unwrap().0.len(), 2);
        assert!("all".parse::<AcceptOption>().unwrap_err().contains("own-uid"));
    }

    #[test]
    fn invalid_rule_is_reported_with_cause_and_hint() {
        let error = |text: &str| text.parse::<NetworkOption>().unwrap_err();
        assert_eq!(
            error("allow=a.example,https://b.example"),
            "egress rule \"https://b.example\" has an invalid host: the host contains the character '/'\n\
             hint: write only the host, without scheme and path"
        );
        assert_eq!(
            error("allow=a.example+public"),
            "egress rule \"a.example+public\" has the unknown flag \"public\"\nhint: the only flag is +private"
        );
    }

    #[test]
    fn seconds_are_positive() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(seconds("30s"), Ok(Duration::from_secs(30)));
        for invalid in ["0", "-1", "soon", "inf", "nan", "1e300"] {
            assert!(seconds(invalid).is_err(), "{invalid}");
        }
    }
}
