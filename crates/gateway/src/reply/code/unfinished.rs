//! Calls to tools that had not been answered when the code ended.

use std::sync::Arc;

use ringfence_runtime::session::CallNote;
use serde_json::{Value, json};

use super::one_line;

/// Calls that are named; there may be a thousand.
const MOST_NAMED: usize = 20;
const MOST_NAME_CHARS: usize = 100;

/// In the order in which they were asked for.
#[derive(Default)]
pub(super) struct Unfinished<'a>(Vec<Call<'a>>);

struct Call<'a> {
    server: &'a str,
    tool: &'a str,
    may_have_run: bool,
}

impl<'a> Unfinished<'a> {
    pub(super) fn of(notes: &'a [Arc<CallNote>]) -> Self {
        let call = |note: &'a Arc<CallNote>| {
            let (server, tool) = note.about()?;
            Some(Call { server, tool, may_have_run: note.has_started() })
        };
        Self(notes.iter().filter_map(call).collect())
    }

    /// What could be harmful to do again, and what is not.
    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        let (started, others): (Vec<&Call<'_>>, Vec<&Call<'_>>) = self.0.iter().partition(|call| call.may_have_run);
        [(started, "under way and may have run"), (others, "not started")]
            .into_iter()
            .filter(|(calls, _)| !calls.is_empty())
            .map(|(calls, how)| format!("tool calls {how}: {}", names(&calls)))
    }

    pub(super) fn fields(&self) -> Option<Value> {
        let calls = self.0.iter().take(MOST_NAMED);
        let calls: Vec<Value> = calls
            .map(|call| json!({"server": cut(call.server), "tool": cut(call.tool), "may_have_run": call.may_have_run}))
            .collect();
        (!calls.is_empty()).then(|| calls.into())
    }
}

/// `github.create_issue (3), slack.post`.
fn names(calls: &[&Call<'_>]) -> String {
    let mut counted: Vec<(String, usize)> = Vec::new();
    for call in calls {
        let name = format!("{}.{}", cut(call.server), cut(call.tool));
        match counted.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => counted.push((name, 1)),
        }
    }
    let more = counted.iter().skip(MOST_NAMED).map(|(_, count)| count).sum::<usize>();
    let named = counted.into_iter().take(MOST_NAMED);
    let mut named: Vec<String> =
        named.map(|(name, count)| if count == 1 { name } else { format!("{name} ({count})") }).collect();
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    named.join(", ")
}

/// The guest may have chosen it.
fn cut(name: &str) -> String {
    one_line(&name.chars().take(MOST_NAME_CHARS).collect::<String>())
}
