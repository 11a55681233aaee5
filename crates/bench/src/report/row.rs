//! One row of the report: a figure, its ratio to another row, and its targets.

use std::time::Duration;

use serde::Serialize;

use crate::statistics::{median, p99};

#[derive(Debug, Serialize)]
pub(crate) struct Row {
    #[serde(rename = "what")]
    pub(crate) label: String,
    pub(crate) unit: &'static str,
    /// The median, if there are samples.
    pub(crate) value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<Ratio>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) targets: Vec<Target>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) samples: Vec<f64>,
}

/// The value divided by that of another row.
#[derive(Debug, Serialize)]
pub(crate) struct Ratio {
    /// The label of the other row.
    pub(crate) to: String,
    pub(crate) value: f64,
}

/// A limit for a figure of the row.
#[derive(Debug, Serialize)]
pub(crate) struct Target {
    #[serde(rename = "of")]
    pub(crate) figure: Figure,
    pub(crate) bound: Bound,
    pub(crate) limit: f64,
    #[serde(rename = "met")]
    pub(crate) is_met: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Figure {
    Value,
    P99,
    Ratio,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtMost,
    AtLeast,
}

impl Row {
    /// A figure that was measured once.
    pub(crate) fn single(label: impl Into<String>, unit: &'static str, value: f64) -> Self {
        let (p99, ratio, targets, samples) = (None, None, Vec::new(), Vec::new());
        Self { label: label.into(), unit, value, p99, ratio, targets, samples }
    }

    /// The median and p99 of many samples.
    pub(crate) fn of_samples(label: impl Into<String>, unit: &'static str, samples: Vec<f64>) -> Self {
        let (value, p99) = (median(&samples), Some(p99(&samples)));
        Self { p99, samples, ..Self::single(label, unit, value) }
    }

    /// The median of samples that are too few for a p99.
    pub(crate) fn of_few_samples(label: impl Into<String>, unit: &'static str, samples: Vec<f64>) -> Self {
        Self { p99: None, ..Self::of_samples(label, unit, samples) }
    }

    pub(crate) fn of_times(label: impl Into<String>, times: &[Duration]) -> Self {
        Self::of_samples(label, "ms", times.iter().map(|time| time.as_secs_f64() * 1000.0).collect())
    }

    /// Adds the ratio to another row, if there is one.
    pub(crate) fn compared_with(mut self, other: Option<&Self>) -> Self {
        self.ratio = other
            .filter(|other| other.value > 0.0)
            .map(|other| Ratio { to: other.label.clone(), value: self.value / other.value });
        self
    }

    /// Adds a target, unless the figure was not measured.
    pub(crate) fn target(mut self, figure: Figure, bound: Bound, limit: f64) -> Self {
        let measured = match figure {
            Figure::Value => Some(self.value),
            Figure::P99 => self.p99,
            Figure::Ratio => self.ratio.as_ref().map(|ratio| ratio.value),
        };
        self.targets.extend(measured.map(|measured| {
            let is_met = if bound == Bound::AtMost { measured <= limit } else { measured >= limit };
            Target { figure, bound, limit, is_met }
        }));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_met_or_missed_or_absent_if_not_measured() {
        let peer = Row::single("peer", "ms", 4.0);
        let row = Row::of_samples("ours", "ms", vec![1.0, 2.0, 9.0])
            .compared_with(Some(&peer))
            .target(Figure::Value, Bound::AtMost, 5.0)
            .target(Figure::P99, Bound::AtMost, 5.0)
            .target(Figure::Ratio, Bound::AtLeast, 0.5);
        assert_eq!(row.targets.iter().map(|target| target.is_met).collect::<Vec<_>>(), [true, false, true]);
        let without_peer = Row::single("ours", "ms", 1.0).compared_with(None);
        assert!(without_peer.target(Figure::Ratio, Bound::AtMost, 2.0).targets.is_empty());
    }
}
