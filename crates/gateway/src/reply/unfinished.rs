//! Calls to tools that had not been answered when the code ended.

use std::sync::Arc;

use ringfence_session::CallNote;
use serde_json::{Map, Value};

use super::terminal::one_line;

/// Names that are given; there may be a thousand.
const MOST_NAMED: usize = 20;
const MOST_NAME_CHARS: usize = 100;

/// Each once, as `server.tool`, and with how often if that is more than once.
#[derive(Default)]
pub(super) struct Unfinished {
    /// To do these again may do harm.
    may_have_run: Vec<String>,
    not_started: Vec<String>,
}

impl Unfinished {
    pub(super) fn of(notes: &[Arc<CallNote>]) -> Self {
        let calls = |has_started: bool| {
            let of_this_kind = notes.iter().filter(move |note| note.has_started() == has_started);
            names(of_this_kind.filter_map(|note| note.about()))
        };
        Self { may_have_run: calls(true), not_started: calls(false) }
    }

    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        let note = |how: &str, names: &[String]| {
            (!names.is_empty()).then(|| format!("tool calls that {how}: {}", names.join(", ")))
        };
        let started = note("were under way and may have run", &self.may_have_run);
        started.into_iter().chain(note("had not started", &self.not_started))
    }

    pub(super) fn fields(&self) -> Option<Value> {
        let kinds = [("may_have_run", &self.may_have_run), ("not_started", &self.not_started)];
        let fields: Map<String, Value> = kinds
            .into_iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(kind, names)| (kind.to_owned(), names.clone().into()))
            .collect();
        (!fields.is_empty()).then_some(Value::Object(fields))
    }
}

fn names<'a>(calls: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let mut counted: Vec<(String, usize)> = Vec::new();
    let mut more = 0;
    for (server, tool) in calls {
        let name = format!("{}.{}", cut(server), cut(tool));
        if let Some((_, count)) = counted.iter_mut().find(|(known, _)| *known == name) {
            *count += 1;
        } else if counted.len() < MOST_NAMED {
            counted.push((name, 1));
        } else {
            more += 1;
        }
    }
    let show = |(name, count)| if count == 1 { name } else { format!("{name} ({count})") };
    let named = counted.into_iter().map(show);
    named.chain((more > 0).then(|| format!("{more} more"))).collect()
}

/// The guest may have chosen it.
fn cut(name: &str) -> String {
    one_line(&name.chars().take(MOST_NAME_CHARS).collect::<String>())
}
