//! Finds tools by what they are for.
//!
//! Ranked by BM25 over several fields: a tool's name, what its description says first and what it says further, the
//! names of its parameters and what these are for, and its server. Not every word need match. A word that nothing has
//! stands for those that are one slip of the finger away. The same question gets the same answer, in the same order.
//!
//! Servers write what is searched and guests ask, so both are bounded. Nothing here starts or calls anything.

mod edit_distance;
mod fields;
mod stem;
mod synonyms;
mod words;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;

use serde_json::Value;

use edit_distance::is_one_edit_apart;
use fields::{FIELDS, Fields};
use synonyms::{expand_abbreviations, synonyms_of};
use words::for_each_word;

/// What is searched of one server.
const MAX_TOOLS_PER_SERVER: usize = 2000;

/// What is read of a question.
const MAX_QUERY_BYTES: usize = 1024;
const MAX_QUERY_TERMS: usize = 32;

/// Words of a question that nothing has, for each of which all known words are looked through.
const MAX_CORRECTED_TERMS: usize = 8;

/// Words that one slip can stand for.
const MAX_CORRECTIONS: usize = 6;

/// Words that one can be the beginning of.
const MAX_COMPLETIONS: usize = 16;

/// Shorter words are a slip away from too many, and begin too many.
const MIN_CORRECTED_CHARS: usize = 4;
const MIN_PREFIX_CHARS: usize = 4;

/// How soon more of the same word counts for less.
const SATURATION: f64 = 1.2;

/// What a word counts that was not asked for, but may be meant.
const SYNONYM_WEIGHT: f64 = 0.6;
const PREFIX_WEIGHT: f64 = 0.5;
const CORRECTION_WEIGHT: f64 = 0.8;

/// What is left to a tool that has hardly any of the words.
const MIN_MATCH_FACTOR: f64 = 0.5;

/// The tools of one server, to be searched.
#[derive(Debug, Clone, Copy)]
pub struct SearchableServer<'a> {
    pub name: &'a str,
    /// What the server is for, if that is known.
    pub description: &'a str,
    /// As the server lists them.
    pub tools: &'a [Value],
}

/// A tool that was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit {
    /// The place of its server among those that are searched.
    pub server: usize,
    /// Its place among the server's tools.
    pub tool: usize,
    /// Comparable within one answer only.
    pub score: f64,
}

/// All tools, ready to be searched. It does not change: for other tools, make another.
#[derive(Debug, Default)]
pub struct Index {
    /// In the order in which equally good ones are given: by server, then by name.
    tools: Vec<ToolPosition>,
    /// For each word the tools that have it, and what it counts there.
    postings: BTreeMap<Box<str>, Vec<(usize, f64)>>,
    /// All words by their length.
    words: BTreeMap<usize, Vec<Box<str>>>,
}

#[derive(Debug, Clone, Copy)]
struct ToolPosition {
    server: usize,
    tool: usize,
}

impl Index {
    pub fn new(servers: &[SearchableServer<'_>]) -> Self {
        let mut tools: Vec<ToolPosition> = Vec::new();
        for (server, searched) in servers.iter().enumerate() {
            tools.extend((0..searched.tools.len().min(MAX_TOOLS_PER_SERVER)).map(|tool| ToolPosition { server, tool }));
        }
        let name = |place: &ToolPosition| {
            let searched = &servers[place.server];
            (searched.name, searched.tools[place.tool].get("name").and_then(Value::as_str).unwrap_or_default())
        };
        tools.sort_by(|one, other| name(one).cmp(&name(other)));
        let read = |place: &ToolPosition| Fields::of(&servers[place.server], &servers[place.server].tools[place.tool]);
        let documents: Vec<Fields> = tools.iter().map(read).collect();
        let postings = weigh_words(&documents);
        let mut words: BTreeMap<usize, Vec<Box<str>>> = BTreeMap::new();
        for word in postings.keys() {
            words.entry(word.chars().count()).or_default().push(word.clone());
        }
        for words in words.values_mut() {
            words.sort();
        }
        Self { tools, postings, words }
    }

    /// The best tools for a question, the best first.
    pub fn search(&self, query: &str, limit: usize) -> Vec<Hit> {
        let asked = query_terms(query);
        if asked.is_empty() {
            return Vec::new();
        }
        let mut scores = vec![0.0; self.tools.len()];
        let mut matched = vec![0_u32; self.tools.len()];
        let mut slips = 0;
        for term in &asked {
            // Of the words that one may stand for, the one that counts most: many must not count more than one.
            let mut best: HashMap<usize, f64> = HashMap::new();
            for (word, share) in self.expand_term(term, &mut slips) {
                for (tool, weight) in self.postings.get(&*word).into_iter().flatten() {
                    let score = best.entry(*tool).or_default();
                    *score = score.max(weight * share);
                }
            }
            for (tool, score) in best {
                scores[tool] += score;
                matched[tool] += 1;
            }
        }
        // Who has more of what was asked for comes before who has one word of it often.
        for (score, matched) in scores.iter_mut().zip(matched) {
            *score *= MIN_MATCH_FACTOR + (1.0 - MIN_MATCH_FACTOR) * f64::from(matched) / to_f64(asked.len());
        }
        let mut found: Vec<usize> = (0..scores.len()).filter(|tool| scores[*tool] > 0.0).collect();
        found.sort_by(|one, other| scores[*other].total_cmp(&scores[*one]).then(one.cmp(other)));
        found.truncate(limit);
        let hit =
            |tool: usize| Hit { server: self.tools[tool].server, tool: self.tools[tool].tool, score: scores[tool] };
        found.into_iter().map(hit).collect()
    }

    /// The known words that a term stands for, and what each counts.
    fn expand_term(&self, term: &Term, slips: &mut usize) -> Vec<(Box<str>, f64)> {
        let mut meant: Vec<(Box<str>, f64)> = Vec::new();
        if self.postings.contains_key(&*term.stem) {
            meant.push((term.stem.clone(), 1.0));
        }
        let others = synonyms_of(&term.stem).filter(|other| self.postings.contains_key(*other));
        meant.extend(others.map(|other| (other.into(), SYNONYM_WEIGHT)));
        if term.letters >= MIN_PREFIX_CHARS {
            let longer = (Bound::Excluded(&*term.stem), Bound::Unbounded);
            let longer = self.postings.range::<str, _>(longer).take_while(|(word, _)| word.starts_with(&*term.stem));
            meant.extend(longer.map(|(word, _)| (word.clone(), PREFIX_WEIGHT)).take(MAX_COMPLETIONS));
        }
        if meant.is_empty() && term.letters >= MIN_CORRECTED_CHARS && *slips < MAX_CORRECTED_TERMS {
            *slips += 1;
            meant.extend(
                self.words_one_edit_apart(&term.stem)
                    .map(|word| (word.clone(), CORRECTION_WEIGHT))
                    .take(MAX_CORRECTIONS),
            );
        }
        meant
    }

    fn words_one_edit_apart<'a>(&'a self, word: &'a str) -> impl Iterator<Item = &'a Box<str>> {
        let length = word.chars().count();
        let lengths = [length, length + 1, length.saturating_sub(1)];
        let words = lengths.into_iter().filter_map(|length| self.words.get(&length)).flatten();
        words.filter(move |known| is_one_edit_apart(word, known))
    }
}

/// A word of a question.
struct Term {
    stem: Box<str>,
    letters: usize,
}

/// What is asked for, each word once.
fn query_terms(query: &str) -> Vec<Term> {
    let end = (0..=query.len().min(MAX_QUERY_BYTES)).rev().find(|end| query.is_char_boundary(*end)).unwrap_or(0);
    let mut all: Vec<(Term, bool)> = Vec::new();
    let mut seen = HashSet::new();
    for_each_word(&expand_abbreviations(&query[..end]), |word, stem| {
        if all.len() < MAX_QUERY_TERMS && seen.insert(stem.to_owned()) {
            let term = Term { stem: stem.into(), letters: word.chars().count() };
            all.push((term, words::is_stop_word(word)));
        }
    });
    // A question of nothing but such words is meant as it is.
    let is_all = all.iter().all(|(_, says_little)| *says_little);
    all.into_iter().filter(|(_, says_little)| is_all || !says_little).map(|(term, _)| term).collect()
}

/// What every word counts in every tool that has it.
fn weigh_words(documents: &[Fields]) -> BTreeMap<Box<str>, Vec<(usize, f64)>> {
    let count = to_f64(documents.len());
    let average = |field: usize| {
        let total: f64 = documents.iter().map(|document| f64::from(document.lengths[field])).sum();
        (total / count.max(1.0)).max(1.0)
    };
    let averages: Vec<f64> = (0..FIELDS.len()).map(average).collect();
    let mut postings: BTreeMap<Box<str>, Vec<(usize, f64)>> = BTreeMap::new();
    for (place, document) in documents.iter().enumerate() {
        for (word, counts) in &document.words {
            let mut frequency = 0.0;
            for (index, field) in FIELDS.iter().enumerate() {
                let length = f64::from(document.lengths[index]) / averages[index];
                frequency += field.weight * f64::from(counts[index])
                    / (1.0 - field.length_normalization + field.length_normalization * length);
            }
            postings.entry(word.clone()).or_default().push((place, frequency));
        }
    }
    for list in postings.values_mut() {
        let having = to_f64(list.len());
        let rarity = (1.0 + (count - having + 0.5) / (having + 0.5)).ln();
        for (_, weight) in list {
            *weight = rarity * *weight * (SATURATION + 1.0) / (*weight + SATURATION);
        }
    }
    postings
}

fn to_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
