//! How often a question finds a tool that answers it, and how long that takes.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ringfence_gateway::{Index, Searched};

use super::effort::Effort;
use super::report::Section;
use super::rows::{Bound, Figure, Row};
use super::tool_data::{Question, ToolData};

/// Of all questions, those that are to find a right tool among the first five.
const TARGET: f64 = 0.9;

/// What is looked at of an answer.
const LOOKED_AT: usize = 10;

pub(super) fn measure(effort: &Effort, file: Option<&Path>) -> Result<Section> {
    let data = ToolData::read(file)?;
    ensure!(!data.queries.is_empty(), "the file has no `queries`");
    let searched: Vec<Searched<'_>> = data
        .servers
        .iter()
        .map(|server| Searched { server: &server.name, description: "", tools: &server.tools })
        .collect();
    let begun = Instant::now();
    let index = Index::new(&searched);
    let made = begun.elapsed();

    let mut ranks = Vec::new();
    let mut times = Vec::new();
    for query in &data.queries {
        let mut best = Duration::MAX;
        for _ in 0..effort.turns.min(10) {
            let begun = Instant::now();
            let _ = index.search(&query.query, LOOKED_AT);
            best = best.min(begun.elapsed());
        }
        times.push(best.as_secs_f64() * 1e6);
        ranks.push(rank(&index, &searched, query));
    }
    let of = |is_meant: &dyn Fn(&Question) -> bool| -> Vec<Option<usize>> {
        data.queries.iter().zip(&ranks).filter(|(query, _)| is_meant(query)).map(|(_, rank)| *rank).collect()
    };
    let (all, tuned, held_out) = (of(&|_| true), of(&|query| !query.held_out), of(&|query| query.held_out));
    let tools: usize = searched.iter().map(|server| server.tools.len()).sum();
    let mut rows =
        vec![Row::single(format!("recall@5, {} questions, {tools} tools", all.len()), "", recall(&all, 5)).target(
            Figure::Value,
            Bound::AtLeast,
            TARGET,
        )];
    if !held_out.is_empty() {
        let row = |what: &str, ranks: &[Option<usize>]| {
            Row::single(format!("recall@5, {} {what}", ranks.len()), "", recall(ranks, 5)).target(
                Figure::Value,
                Bound::AtLeast,
                TARGET,
            )
        };
        rows.extend([row("that it was tuned with", &tuned), row("held out", &held_out)]);
    }
    rows.push(Row::single("recall@1", "", recall(&all, 1)));
    rows.push(Row::single("mean reciprocal rank", "", reciprocal_rank(&all)));
    rows.push(Row::of("a question", "µs", times));
    rows.push(Row::single("index made", "ms", made.as_secs_f64() * 1e3));
    Ok(Section { rows, left_out: Vec::new() })
}

/// The place of the first right tool, from 0.
fn rank(index: &Index, searched: &[Searched<'_>], query: &Question) -> Option<usize> {
    index.search(&query.query, LOOKED_AT).iter().position(|hit| {
        let server = &searched[hit.server];
        let name = server.tools[hit.tool]["name"].as_str().unwrap_or_default();
        query.tools.iter().any(|right| *right == format!("{}.{name}", server.server))
    })
}

fn recall(ranks: &[Option<usize>], among: usize) -> f64 {
    mean(ranks.iter().map(|rank| f64::from(u8::from(rank.is_some_and(|rank| rank < among)))))
}

fn reciprocal_rank(ranks: &[Option<usize>]) -> f64 {
    let place = |rank: usize| f64::from(u32::try_from(rank + 1).unwrap_or(u32::MAX));
    mean(ranks.iter().map(|rank| rank.map_or(0.0, |rank| 1.0 / place(rank))))
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = f64::from(u32::try_from(values.len()).unwrap_or(u32::MAX));
    values.sum::<f64>() / count.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_is_counted() {
        let ranks = [Some(0), Some(4), Some(5), None];
        assert!((recall(&ranks, 5) - 0.5).abs() < 1e-9 && (recall(&ranks, 1) - 0.25).abs() < 1e-9);
        assert!((reciprocal_rank(&ranks) - (1.0 + 0.2 + 1.0 / 6.0) / 4.0).abs() < 1e-9);
        assert!(recall(&[], 5).abs() < 1e-9);
    }

    #[test]
    fn nine_of_ten_questions_find_their_tool() {
        let section = measure(&Effort::new(true, None), None).unwrap();
        let first = &section.rows[0];
        assert!(first.targets[0].met, "{first:?}");
        // Weaker, since a third of the questions is few; what was tuned for the others must not cost more than this.
        let held_out = section.rows.iter().find(|row| row.what.ends_with("held out")).unwrap();
        assert!(held_out.value >= 0.85, "{held_out:?}");
    }
}
