//! One line of figures: a value, what it is compared with, and what was to be reached.

use std::time::Duration;

use serde::Serialize;

use super::statistics::{median, p99};
use super::turns::Contestant;

#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) what: String,
    pub(super) unit: &'static str,
    /// The median where there are samples.
    pub(super) value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p99: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio: Option<Ratio>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) targets: Vec<Target>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) samples: Vec<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Ratio {
    pub(super) to: String,
    pub(super) value: f64,
}

/// What was to be reached, and whether it was.
#[derive(Debug, Serialize)]
pub(super) struct Target {
    pub(super) of: Figure,
    pub(super) bound: Bound,
    pub(super) limit: f64,
    pub(super) met: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Figure {
    Value,
    P99,
    Ratio,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bound {
    AtMost,
    AtLeast,
}

impl Row {
    /// A figure that is there once.
    pub(super) fn single(what: impl Into<String>, unit: &'static str, value: f64) -> Self {
        let (p99, ratio, targets, samples) = (None, None, Vec::new(), Vec::new());
        Self { what: what.into(), unit, value, p99, ratio, targets, samples }
    }

    /// A figure that was measured again and again.
    pub(super) fn of(what: impl Into<String>, unit: &'static str, samples: Vec<f64>) -> Self {
        let (value, p99) = (median(&samples), Some(p99(&samples)));
        Self { p99, samples, ..Self::single(what, unit, value) }
    }

    /// The same of so few samples that there is no p99.
    pub(super) fn of_few(what: impl Into<String>, unit: &'static str, samples: Vec<f64>) -> Self {
        Self { p99: None, ..Self::of(what, unit, samples) }
    }

    pub(super) fn of_times(what: impl Into<String>, times: &[Duration]) -> Self {
        Self::of(what, "ms", times.iter().map(|time| time.as_secs_f64() * 1000.0).collect())
    }

    pub(super) fn against(mut self, other: Option<&Self>) -> Self {
        self.ratio = other
            .filter(|other| other.value > 0.0)
            .map(|other| Ratio { to: other.what.clone(), value: self.value / other.value });
        self
    }

    pub(super) fn target(mut self, of: Figure, bound: Bound, limit: f64) -> Self {
        let measured = match of {
            Figure::Value => Some(self.value),
            Figure::P99 => self.p99,
            Figure::Ratio => self.ratio.as_ref().map(|ratio| ratio.value),
        };
        // What was not measured was neither met nor missed.
        self.targets.extend(measured.map(|measured| {
            let met = if bound == Bound::AtMost { measured <= limit } else { measured >= limit };
            Target { of, bound, limit, met }
        }));
        self
    }
}

/// Contestants as rows, and why some dropped out.
pub(super) fn of_contestants(contestants: Vec<Contestant<'_>>) -> (Vec<Row>, Vec<String>) {
    let mut rows = Vec::new();
    let mut left_out = Vec::new();
    for contestant in contestants {
        match contestant.failure {
            Some(why) => left_out.push(format!("{}: {why}", contestant.name)),
            None => rows.push(Row::of_times(contestant.name, &contestant.times)),
        }
    }
    (rows, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_or_missed_or_not_measured() {
        let peer = Row::single("peer", "ms", 4.0);
        let row = Row::of("ours", "ms", vec![1.0, 2.0, 9.0])
            .against(Some(&peer))
            .target(Figure::Value, Bound::AtMost, 5.0)
            .target(Figure::P99, Bound::AtMost, 5.0)
            .target(Figure::Ratio, Bound::AtLeast, 0.5);
        assert_eq!(row.targets.iter().map(|target| target.met).collect::<Vec<_>>(), [true, false, true]);
        let alone = Row::single("ours", "ms", 1.0).against(None).target(Figure::Ratio, Bound::AtMost, 2.0);
        assert!(alone.targets.is_empty());
    }
}
