//! The recall of the tool search, and the time of a search.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ringfence_gateway::{Index, SearchableServer};

use super::Setup;
use crate::report::{Bound, Figure, Row, Section};
use crate::tool_data::{Query, ToolData};

/// The part of all queries that should find a right tool among the first five results, and as the first result.
const TARGET_RECALL_AT_5: f64 = 0.95;
const TARGET_RECALL_AT_1: f64 = 0.7;

/// Number of results that are requested and evaluated.
const RESULTS: usize = 10;

/// Maximum number of times that each query is timed; the best time counts.
const MAX_REPETITIONS: usize = 10;

pub(super) fn measure(setup: &Setup) -> Result<Section> {
    let data = ToolData::read_or_built_in(setup.tool_data.as_deref())?;
    ensure!(!data.queries.is_empty(), "the file has no `queries`");
    let servers: Vec<SearchableServer<'_>> = data
        .servers
        .iter()
        .map(|server| SearchableServer { name: &server.name, description: "", tools: &server.tools })
        .collect();
    let start = Instant::now();
    let index = Index::new(&servers);
    let build_time = start.elapsed();

    let mut results = Vec::new();
    let mut times = Vec::new();
    let unseen = data.unseen_queries.iter().map(|query| (QuerySet::Unseen, query));
    for (set, query) in data.queries.iter().map(|query| (QuerySet::of(query), query)).chain(unseen) {
        let mut best = Duration::MAX;
        for _ in 0..setup.workload.starts.min(MAX_REPETITIONS) {
            let start = Instant::now();
            let _ = index.search(&query.text, RESULTS);
            best = best.min(start.elapsed());
        }
        times.push(best.as_secs_f64() * 1e6);
        results.push((set, rank(&index, &servers, query)));
    }
    let ranks_of = |sets: &[QuerySet]| -> Vec<Option<usize>> {
        results.iter().filter(|(set, _)| sets.contains(set)).map(|(_, rank)| *rank).collect()
    };
    let tools: usize = servers.iter().map(|server| server.tools.len()).sum();
    let mut rows = Vec::new();
    for (name, sets) in [
        ("queries", &[QuerySet::Tuning, QuerySet::HeldOut][..]),
        ("used for tuning", &[QuerySet::Tuning]),
        ("held out", &[QuerySet::HeldOut]),
        ("unseen", &[QuerySet::Unseen]),
    ] {
        let ranks = ranks_of(sets);
        if ranks.is_empty() {
            continue;
        }
        for (among, target) in [(5, TARGET_RECALL_AT_5), (1, TARGET_RECALL_AT_1)] {
            let label = format!("recall@{among}, {} {name}", ranks.len());
            let row = Row::single(label, "", recall(&ranks, among));
            rows.push(row.target(Figure::Value, Bound::AtLeast, target));
        }
    }
    let all = ranks_of(&[QuerySet::Tuning, QuerySet::HeldOut, QuerySet::Unseen]);
    rows.push(Row::single(format!("mean reciprocal rank, all {}", all.len()), "", mean_reciprocal_rank(&all)));
    rows.push(Row::of_samples(format!("search time, {tools} tools"), "µs", times));
    rows.push(Row::single("index build time", "ms", build_time.as_secs_f64() * 1e3));
    Ok(Section { rows, not_measured: Vec::new() })
}

/// What a query was used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QuerySet {
    /// Weights and word lists were chosen with it.
    Tuning,
    HeldOut,
    /// Held out too, and written later than the others.
    Unseen,
}

impl QuerySet {
    fn of(query: &Query) -> Self {
        if query.is_held_out { Self::HeldOut } else { Self::Tuning }
    }
}

/// Returns the position of the first right tool in the results, from 0.
fn rank(index: &Index, servers: &[SearchableServer<'_>], query: &Query) -> Option<usize> {
    index.search(&query.text, RESULTS).iter().position(|hit| {
        let server = &servers[hit.server];
        let name = server.tools[hit.tool]["name"].as_str().unwrap_or_default();
        query.tools.iter().any(|right| *right == format!("{}.{name}", server.name))
    })
}

/// Returns the part of the queries with a right tool among the first `among` results.
fn recall(ranks: &[Option<usize>], among: usize) -> f64 {
    mean(ranks.iter().map(|rank| f64::from(u8::from(rank.is_some_and(|rank| rank < among)))))
}

fn mean_reciprocal_rank(ranks: &[Option<usize>]) -> f64 {
    let reciprocal = |rank: usize| 1.0 / f64::from(u32::try_from(rank + 1).unwrap_or(u32::MAX));
    mean(ranks.iter().map(|rank| rank.map_or(0.0, reciprocal)))
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = f64::from(u32::try_from(values.len()).unwrap_or(u32::MAX));
    values.sum::<f64>() / count.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;
    use crate::workload::Workload;

    #[test]
    fn recall_and_reciprocal_rank_count_found_tools() {
        let ranks = [Some(0), Some(4), Some(5), None];
        assert!((recall(&ranks, 5) - 0.5).abs() < 1e-9 && (recall(&ranks, 1) - 0.25).abs() < 1e-9);
        assert!((mean_reciprocal_rank(&ranks) - (1.0 + 0.2 + 1.0 / 6.0) / 4.0).abs() < 1e-9);
        assert!(recall(&[], 5).abs() < 1e-9);
    }

    #[test]
    fn most_queries_find_their_tool() {
        let workload = Workload::new(true, None);
        let setup = Setup { workload, host: Host::inspect(None), ringfence: None, tool_data: None };
        let section = measure(&setup).unwrap();
        // The measured values, less one or two queries: tuning for some queries must not cost more of the others.
        for (label, expected) in [
            ("recall@5, 114 queries", 0.95),
            ("recall@1, 114 queries", 0.7),
            ("recall@5, 38 held out", 0.89),
            ("recall@1, 38 held out", 0.68),
            ("recall@5, 60 unseen", 0.71),
            ("recall@1, 60 unseen", 0.3),
        ] {
            let row = section.rows.iter().find(|row| row.label == label).unwrap();
            assert!(row.value >= expected, "{row:?}");
        }
    }
}
