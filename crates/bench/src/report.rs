//! The report of one run: sections of rows, as a Markdown table or as JSON.

mod row;
mod table;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::sampling::Candidate;

pub(crate) use row::{Bound, Figure, Row};

pub(crate) struct Report {
    pub(crate) host: Value,
    /// A sentence about the host, shown above the table.
    pub(crate) caption: String,
    pub(crate) is_quick: bool,
    /// The title and the result of each benchmark.
    pub(crate) sections: Vec<(&'static str, Section)>,
}

/// The result of one benchmark.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Section {
    pub(crate) rows: Vec<Row>,
    /// Candidates that were not measured, with the reason.
    #[serde(rename = "left_out")]
    pub(crate) not_measured: Vec<String>,
}

impl Section {
    pub(crate) fn failed(error: &anyhow::Error) -> Self {
        Self { rows: Vec::new(), not_measured: vec![format!("the whole benchmark: {error:#}")] }
    }

    /// Appends the rows and notes of another section.
    pub(crate) fn extend(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.not_measured.extend(other.not_measured);
    }

    /// Returns one row for each candidate, and a note for each that failed.
    pub(crate) fn of_candidates(candidates: Vec<Candidate<'_>>) -> Self {
        let mut section = Self::default();
        for candidate in candidates {
            match candidate.failure {
                Some(error) => section.not_measured.push(format!("{}: {error}", candidate.name)),
                None => section.rows.push(Row::of_times(candidate.name, &candidate.times)),
            }
        }
        section
    }
}

impl Report {
    pub(crate) fn to_json(&self) -> Value {
        let sections: Map<String, Value> =
            self.sections.iter().map(|(title, section)| (title.replace(' ', "_"), json!(section))).collect();
        json!({ "host": self.host, "quick": self.is_quick, "sections": sections })
    }

    pub(crate) fn to_table(&self) -> String {
        table::format(self)
    }
}
