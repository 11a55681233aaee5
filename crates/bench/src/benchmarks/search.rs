//! The recall of the tool search, and the time of a search.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ringfence_gateway::{Index, SearchableServer};

use super::Setup;
use crate::report::{Bound, Figure, Row, Section};
use crate::tool_data::{Query, ToolData};

/// The part of all queries that should find a right tool among the first five results.
const TARGET_RECALL: f64 = 0.9;

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

    let mut ranks = Vec::new();
    let mut times = Vec::new();
    for query in &data.queries {
        let mut best = Duration::MAX;
        for _ in 0..setup.workload.starts.min(MAX_REPETITIONS) {
            let start = Instant::now();
            let _ = index.search(&query.text, RESULTS);
            best = best.min(start.elapsed());
        }
        times.push(best.as_secs_f64() * 1e6);
        ranks.push(rank(&index, &servers, query));
    }
    let ranks_of = |is_included: &dyn Fn(&Query) -> bool| -> Vec<Option<usize>> {
        data.queries.iter().zip(&ranks).filter(|(query, _)| is_included(query)).map(|(_, rank)| *rank).collect()
    };
    let all = ranks_of(&|_| true);
    let (tuned, held_out) = (ranks_of(&|query| !query.is_held_out), ranks_of(&|query| query.is_held_out));
    let recall_row = |label: String, ranks: &[Option<usize>]| {
        Row::single(label, "", recall(ranks, 5)).target(Figure::Value, Bound::AtLeast, TARGET_RECALL)
    };
    let tools: usize = servers.iter().map(|server| server.tools.len()).sum();
    let mut rows = vec![recall_row(format!("recall@5, {} queries, {tools} tools", all.len()), &all)];
    if !held_out.is_empty() {
        rows.push(recall_row(format!("recall@5, {} used for tuning", tuned.len()), &tuned));
        rows.push(recall_row(format!("recall@5, {} held out", held_out.len()), &held_out));
    }
    rows.push(Row::single("recall@1", "", recall(&all, 1)));
    rows.push(Row::single("mean reciprocal rank", "", mean_reciprocal_rank(&all)));
    rows.push(Row::of_samples("search time", "µs", times));
    rows.push(Row::single("index build time", "ms", build_time.as_secs_f64() * 1e3));
    Ok(Section { rows, not_measured: Vec::new() })
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
    fn nine_of_ten_queries_find_their_tool() {
        let workload = Workload::new(true, None);
        let setup = Setup { workload, host: Host::inspect(None), ringfence: None, tool_data: None };
        let section = measure(&setup).unwrap();
        let all = &section.rows[0];
        assert!(all.targets[0].is_met, "{all:?}");
        // The held-out third is small, so its limit is lower; tuning for the other queries must not cost more than this.
        let held_out = section.rows.iter().find(|row| row.label.ends_with("held out")).unwrap();
        assert!(held_out.value >= 0.85, "{held_out:?}");
    }
}
