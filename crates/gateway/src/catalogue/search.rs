//! Full-text search over the tools of all servers.
//!
//! Tools are ranked by BM25 over several fields: the name, the first sentence of the description and the rest of it, the
//! names and descriptions of the parameters, the server, and what a well-known product is about. Synonyms match with a lower
//! weight, and tools with a similar meaning, and those that do what the verb of the query
//! asks for, rank first. Not every word must match. A word that occurs in no tool is
//! replaced by words that are one edit apart. Results are deterministic.
//!
//! Tools come from servers and queries from guests, so the size of both is limited. A search starts and calls no server.

mod action;
mod edit_distance;
mod embedding;
mod fields;
mod stem;
mod synonyms;
mod topics;
mod words;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;

use serde_json::Value;

use action::Action;
use edit_distance::is_one_edit_apart;
use embedding::Meaning;
use fields::{FIELDS, Fields};
use synonyms::{expand_abbreviations, synonyms_of};
use words::for_each_word;

/// Maximum number of searched tools of one server; further ones are ignored.
const MAX_TOOLS_PER_SERVER: usize = 2000;

/// Maximum size of a query; the rest is ignored.
const MAX_QUERY_BYTES: usize = 1024;
const MAX_QUERY_TERMS: usize = 32;

/// Maximum number of unknown words of a query that are corrected: each is compared with all words of the index.
const MAX_CORRECTED_TERMS: usize = 8;

/// Maximum number of words that replace an unknown one.
const MAX_CORRECTIONS: usize = 6;

/// Maximum number of words that complete a prefix.
const MAX_COMPLETIONS: usize = 16;

/// Minimum length of words that are corrected, and of prefixes: shorter ones match too many words.
const MIN_CORRECTED_CHARS: usize = 4;
const MIN_PREFIX_CHARS: usize = 4;

/// The parameter `k1` of BM25: how soon further occurrences of a word stop counting.
const SATURATION: f64 = 1.2;

/// Weights of words that are not in the query, relative to a word of the query.
const SYNONYM_WEIGHT: f64 = 0.7;
const PREFIX_WEIGHT: f64 = 0.5;
const CORRECTION_WEIGHT: f64 = 0.8;

/// Weight of the similarity of meaning, relative to a tool that matches every word of the query very often.
const MEANING_WEIGHT: f64 = 0.15;

/// Factors for the score of a tool that does what the query asks for, and of one that does something else.
const SAME_ACTION_FACTOR: f64 = 1.3;
const OTHER_ACTION_FACTOR: f64 = 0.8;

/// Factor for the score of a tool that matches none of the words; it grows to 1 with the share of matched words.
const MIN_MATCH_FACTOR: f64 = 0.5;

/// A server whose tools are searched.
#[derive(Debug, Clone, Copy)]
pub struct SearchableServer<'a> {
    pub name: &'a str,
    /// Empty if the server has none.
    pub description: &'a str,
    /// The tools as the server lists them.
    pub tools: &'a [Value],
}

/// A tool that was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit {
    /// The index of its server.
    pub server: usize,
    /// Its index in the tools of the server.
    pub tool: usize,
    /// Comparable only within the results of one query.
    pub score: f64,
}

/// An immutable search index over all tools.
#[derive(Debug, Default)]
pub struct Index {
    /// Sorted by server and name, which is the order of tools with the same score.
    tools: Vec<ToolPosition>,
    /// What each tool does, if its name or description says it.
    actions: Vec<Option<Action>>,
    /// The meaning of the name and the first sentence of each tool.
    meanings: Vec<Meaning>,
    /// The tools that contain each word, with the weight of the word in each.
    postings: BTreeMap<Box<str>, Vec<(usize, f64)>>,
    /// All words by their number of characters.
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
        for (index, server) in servers.iter().enumerate() {
            let count = server.tools.len().min(MAX_TOOLS_PER_SERVER);
            tools.extend((0..count).map(|tool| ToolPosition { server: index, tool }));
        }
        let name = |position: &ToolPosition| {
            let server = &servers[position.server];
            (server.name, server.tools[position.tool].get("name").and_then(Value::as_str).unwrap_or_default())
        };
        tools.sort_by(|a, b| name(a).cmp(&name(b)));
        let fields = |position: &ToolPosition| {
            let server = &servers[position.server];
            Fields::new(server, &server.tools[position.tool])
        };
        let documents: Vec<Fields> = tools.iter().map(fields).collect();
        let action = |position: &ToolPosition| {
            let tool = &servers[position.server].tools[position.tool];
            Action::of_tool(fields::text(tool, "name"), fields::text(tool, "description"))
        };
        let actions = tools.iter().map(action).collect();
        let meaning = |document: &Fields| Meaning::of_words(document.summary.iter().map(|word| &**word));
        let meanings = documents.iter().map(meaning).collect();
        let postings = weigh_words(&documents);
        let mut words: BTreeMap<usize, Vec<Box<str>>> = BTreeMap::new();
        for word in postings.keys() {
            words.entry(word.chars().count()).or_default().push(word.clone());
        }
        for words in words.values_mut() {
            words.sort();
        }
        Self { tools, actions, meanings, postings, words }
    }

    /// Returns the best tools for a query, the best first.
    pub fn search(&self, query: &str, limit: usize) -> Vec<Hit> {
        let terms = query_terms(query);
        if terms.is_empty() {
            return Vec::new();
        }
        let mut scores = vec![0.0; self.tools.len()];
        let mut matched = vec![0_u32; self.tools.len()];
        let (mut max_score, mut corrected) = (0.0, 0);
        for term in &terms {
            // Only the best of the expanded words counts, so that a term with many expansions has no advantage.
            let mut best: HashMap<usize, f64> = HashMap::new();
            for (word, term_weight) in self.expand_term(term, &mut corrected) {
                for (tool, weight) in self.postings.get(&*word).into_iter().flatten() {
                    let score = best.entry(*tool).or_default();
                    *score = score.max(weight * term_weight);
                }
            }
            max_score += rarity(self.tools.len(), best.len()) * (SATURATION + 1.0);
            for (tool, score) in best {
                scores[tool] += score;
                matched[tool] += 1;
            }
        }
        // A tool that matches more of the words ranks before one that contains a single word often.
        for (score, matched) in scores.iter_mut().zip(matched) {
            *score *= MIN_MATCH_FACTOR + (1.0 - MIN_MATCH_FACTOR) * f64::from(matched) / to_f64(terms.len());
        }
        // Among tools with matching words, those with a similar meaning rank first.
        let meaning = Meaning::of_words(terms.iter().map(|term| &*term.word));
        for (score, tool) in scores.iter_mut().zip(&self.meanings).filter(|(score, _)| **score > 0.0) {
            *score += MEANING_WEIGHT * max_score * meaning.similarity(tool);
        }
        if let Some(wanted) = Action::of_query(query_start(query)) {
            for (score, action) in scores.iter_mut().zip(&self.actions) {
                *score *= match action {
                    Some(action) if *action == wanted => SAME_ACTION_FACTOR,
                    Some(_) => OTHER_ACTION_FACTOR,
                    None => 1.0,
                };
            }
        }
        let mut found: Vec<usize> = (0..scores.len()).filter(|tool| scores[*tool] > 0.0).collect();
        found.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        found.truncate(limit);
        let hit =
            |tool: usize| Hit { server: self.tools[tool].server, tool: self.tools[tool].tool, score: scores[tool] };
        found.into_iter().map(hit).collect()
    }

    /// Returns the words of the index that match a term, with their weights. `corrected` counts the corrected terms.
    fn expand_term(&self, term: &Term, corrected: &mut usize) -> Vec<(Box<str>, f64)> {
        let mut words: Vec<(Box<str>, f64)> = Vec::new();
        if self.postings.contains_key(&*term.stem) {
            words.push((term.stem.clone(), 1.0));
        }
        let synonyms = synonyms_of(&term.stem).filter(|synonym| self.postings.contains_key(*synonym));
        words.extend(synonyms.map(|synonym| (synonym.into(), SYNONYM_WEIGHT)));
        if term.chars >= MIN_PREFIX_CHARS {
            let longer = (Bound::Excluded(&*term.stem), Bound::Unbounded);
            let longer = self.postings.range::<str, _>(longer).take_while(|(word, _)| word.starts_with(&*term.stem));
            words.extend(longer.map(|(word, _)| (word.clone(), PREFIX_WEIGHT)).take(MAX_COMPLETIONS));
        }
        if words.is_empty() && term.chars >= MIN_CORRECTED_CHARS && *corrected < MAX_CORRECTED_TERMS {
            *corrected += 1;
            words.extend(
                self.words_one_edit_apart(&term.stem)
                    .map(|word| (word.clone(), CORRECTION_WEIGHT))
                    .take(MAX_CORRECTIONS),
            );
        }
        words
    }

    fn words_one_edit_apart<'a>(&'a self, word: &'a str) -> impl Iterator<Item = &'a Box<str>> {
        let length = word.chars().count();
        let lengths = [length, length + 1, length.saturating_sub(1)];
        let words = lengths.into_iter().filter_map(|length| self.words.get(&length)).flatten();
        words.filter(move |known| is_one_edit_apart(word, known))
    }
}

/// A word of a query.
struct Term {
    word: Box<str>,
    stem: Box<str>,
    chars: usize,
}

/// Returns the part of a query that is searched for.
fn query_start(query: &str) -> &str {
    let end = (0..=query.len().min(MAX_QUERY_BYTES)).rev().find(|end| query.is_char_boundary(*end)).unwrap_or(0);
    &query[..end]
}

/// Returns the words of a query, each once, without stop words.
fn query_terms(query: &str) -> Vec<Term> {
    let mut all: Vec<(Term, bool)> = Vec::new();
    let mut seen = HashSet::new();
    for_each_word(&expand_abbreviations(query_start(query)), |word, stem| {
        if all.len() < MAX_QUERY_TERMS && seen.insert(stem.to_owned()) {
            let term = Term { word: word.into(), stem: stem.into(), chars: word.chars().count() };
            all.push((term, words::is_stop_word(word)));
        }
    });
    // A query that has only stop words is a search for them.
    let has_only_stop_words = all.iter().all(|(_, is_stop_word)| *is_stop_word);
    all.into_iter().filter(|(_, is_stop_word)| has_only_stop_words || !is_stop_word).map(|(term, _)| term).collect()
}

/// Computes the BM25 weight of every word in every tool that contains it.
fn weigh_words(documents: &[Fields]) -> BTreeMap<Box<str>, Vec<(usize, f64)>> {
    let average = |field: usize| {
        let total: f64 = documents.iter().map(|document| f64::from(document.lengths[field])).sum();
        (total / to_f64(documents.len()).max(1.0)).max(1.0)
    };
    let averages: Vec<f64> = (0..FIELDS.len()).map(average).collect();
    let mut postings: BTreeMap<Box<str>, Vec<(usize, f64)>> = BTreeMap::new();
    for (index, document) in documents.iter().enumerate() {
        for (word, counts) in &document.words {
            let mut frequency = 0.0;
            for (number, field) in FIELDS.iter().enumerate() {
                let length = f64::from(document.lengths[number]) / averages[number];
                frequency += field.weight * f64::from(counts[number])
                    / (1.0 - field.length_normalization + field.length_normalization * length);
            }
            postings.entry(word.clone()).or_default().push((index, frequency));
        }
    }
    for list in postings.values_mut() {
        let rarity = rarity(documents.len(), list.len());
        for (_, weight) in list {
            *weight = rarity * *weight * (SATURATION + 1.0) / (*weight + SATURATION);
        }
    }
    postings
}

/// Returns the inverse document frequency of a word that occurs in `containing` of `count` tools.
fn rarity(count: usize, containing: usize) -> f64 {
    let (count, containing) = (to_f64(count), to_f64(containing));
    (1.0 + (count - containing + 0.5) / (containing + 0.5)).ln()
}

fn to_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
