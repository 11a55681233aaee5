//! Everything that was measured in one run.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::rows::Row;

pub(super) struct Report {
    pub(super) host: Value,
    /// What a person must know of the host to judge the figures.
    pub(super) caption: String,
    pub(super) is_quick: bool,
    pub(super) sections: Vec<(&'static str, Section)>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Section {
    pub(super) rows: Vec<Row>,
    /// What was not measured, and why.
    pub(super) left_out: Vec<String>,
}

impl Section {
    pub(super) fn failed(why: &str) -> Self {
        Self { rows: Vec::new(), left_out: vec![format!("all of it: {why}")] }
    }
}

impl Report {
    pub(super) fn to_json(&self) -> Value {
        let sections: Map<String, Value> =
            self.sections.iter().map(|(name, section)| (name.replace(' ', "_"), json!(section))).collect();
        json!({ "host": self.host, "quick": self.is_quick, "sections": sections })
    }
}
