//! Tool calls that had no response yet when the code ended.

use std::sync::Arc;

use ringfence_session::CallNote;
use serde_json::{Map, Value};

use super::terminal::to_one_line;

/// Maximum number of listed tools. Code may have a thousand open calls.
const MAX_LISTED: usize = 20;
const MAX_NAME_CHARS: usize = 100;

/// The tools by `server.tool`. Each is listed once, followed by the number of its calls if there are several.
#[derive(Default)]
pub(super) struct UnfinishedCalls {
    /// Calls that reached their server. Repeating them may do harm.
    may_have_run: Vec<String>,
    not_started: Vec<String>,
}

impl UnfinishedCalls {
    pub(super) fn new(calls: &[Arc<CallNote>]) -> Self {
        let tools = |has_started: bool| {
            let calls = calls.iter().filter(move |call| call.has_started() == has_started);
            tool_list(calls.filter_map(|call| call.target()))
        };
        Self { may_have_run: tools(true), not_started: tools(false) }
    }

    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        let note = |state: &str, tools: &[String]| {
            (!tools.is_empty()).then(|| format!("tool calls that {state}: {}", tools.join(", ")))
        };
        let may_have_run = note("were in progress and may have run", &self.may_have_run);
        may_have_run.into_iter().chain(note("had not started", &self.not_started))
    }

    pub(super) fn fields(&self) -> Option<Value> {
        let lists = [("may_have_run", &self.may_have_run), ("not_started", &self.not_started)];
        let fields: Map<String, Value> = lists
            .into_iter()
            .filter(|(_, tools)| !tools.is_empty())
            .map(|(name, tools)| (name.to_owned(), tools.clone().into()))
            .collect();
        (!fields.is_empty()).then_some(Value::Object(fields))
    }
}

fn tool_list<'a>(calls: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let mut counted: Vec<(String, usize)> = Vec::new();
    let mut unlisted = 0;
    for (server, tool) in calls {
        let name = format!("{}.{}", shorten(server), shorten(tool));
        if let Some((_, count)) = counted.iter_mut().find(|(listed, _)| *listed == name) {
            *count += 1;
        } else if counted.len() < MAX_LISTED {
            counted.push((name, 1));
        } else {
            unlisted += 1;
        }
    }
    let show = |(name, count)| if count == 1 { name } else { format!("{name} ({count})") };
    let listed = counted.into_iter().map(show);
    listed.chain((unlisted > 0).then(|| format!("{unlisted} more"))).collect()
}

/// Bounds a name, which the guest may have chosen.
fn shorten(name: &str) -> String {
    to_one_line(&name.chars().take(MAX_NAME_CHARS).collect::<String>())
}
