//! The searched fields of a tool, and their weights.

use std::collections::HashMap;

use serde_json::Value;

use super::SearchableServer;
use super::topics::topics_of;
use super::words::{for_each_word, is_stop_word};

/// Maximum size of the searched text of one tool: a longer description is no advantage.
const MAX_TEXT_BYTES: usize = 8 * 1024;
const MAX_PARAMETERS: usize = 64;
const MAX_TOPICS: usize = 8;

pub(super) struct Field {
    pub(super) weight: f64,
    /// The parameter `b` of BM25, from 0 (the length of the field has no influence) to 1 (the full influence).
    pub(super) length_normalization: f64,
}

const NAME: usize = 0;
const SERVER: usize = 1;
const FIRST_SENTENCE: usize = 2;
const REST_OF_DESCRIPTION: usize = 3;
const PARAMETERS: usize = 4;
const PARAMETER_DESCRIPTIONS: usize = 5;
const TOPICS: usize = 6;

/// Tuned with two thirds of the queries in `tests/data/tools.json`; `ringfence bench search` measures the others.
pub(super) const FIELDS: [Field; 7] = [
    Field { weight: 2.0, length_normalization: 0.75 },
    Field { weight: 1.0, length_normalization: 0.0 },
    Field { weight: 2.0, length_normalization: 0.5 },
    Field { weight: 0.5, length_normalization: 0.75 },
    Field { weight: 0.8, length_normalization: 0.75 },
    Field { weight: 0.3, length_normalization: 0.75 },
    Field { weight: 0.5, length_normalization: 0.0 },
];

/// The words of one tool.
#[derive(Default)]
pub(super) struct Fields {
    /// The number of occurrences of each word in each field.
    pub(super) words: HashMap<Box<str>, [u32; FIELDS.len()]>,
    /// The number of words of each field.
    pub(super) lengths: [u32; FIELDS.len()],
    /// The words of the name and the first sentence, without stop words.
    pub(super) summary: Vec<Box<str>>,
    read_bytes: usize,
}

impl Fields {
    pub(super) fn new(server: &SearchableServer<'_>, tool: &Value) -> Self {
        let mut fields = Self::default();
        fields.add(NAME, text(tool, "name"));
        fields.add(NAME, text(tool, "title"));
        fields.add(SERVER, server.name);
        fields.add(SERVER, server.description);
        let (first, rest) = first_sentence(text(tool, "description").trim());
        fields.add(FIRST_SENTENCE, first);
        fields.add(REST_OF_DESCRIPTION, rest);
        let properties = tool.get("inputSchema").and_then(|schema| schema.get("properties")).and_then(Value::as_object);
        for (name, schema) in properties.into_iter().flatten().take(MAX_PARAMETERS) {
            fields.add(PARAMETERS, name);
            fields.add(PARAMETER_DESCRIPTIONS, text(schema, "description"));
        }
        fields.add_topics(server.name, text(tool, "name"));
        fields
    }

    /// Adds what the products are about that the names of the server and the tool contain.
    fn add_topics(&mut self, server: &str, tool: &str) {
        let mut topics: Vec<&'static str> = Vec::new();
        for name in [server, tool] {
            for_each_word(name, |word, _| {
                let found = topics_of(word);
                if topics.len() < MAX_TOPICS && !topics.contains(&found) {
                    topics.push(found);
                }
            });
        }
        for words in topics {
            self.add(TOPICS, words);
        }
    }

    fn add(&mut self, field: usize, text: &str) {
        let left = MAX_TEXT_BYTES.saturating_sub(self.read_bytes).min(text.len());
        let end = (0..=left).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        self.read_bytes += end;
        for_each_word(&text[..end], |word, stem| {
            self.lengths[field] += 1;
            if matches!(field, NAME | FIRST_SENTENCE) && !is_stop_word(word) {
                self.summary.push(word.into());
            }
            self.words.entry(stem.into()).or_default()[field] += 1;
        });
    }
}

pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Splits a description after its first sentence, which says what the tool is for.
fn first_sentence(description: &str) -> (&str, &str) {
    let line = description.find('\n').unwrap_or(description.len());
    let sentence = description.find(". ").unwrap_or(description.len());
    description.split_at(line.min(sentence))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(tool: &Value) -> Fields {
        Fields::new(&SearchableServer { name: "srv", description: "Versions", tools: &[] }, tool)
    }

    #[test]
    fn words_are_counted_in_their_field() {
        let fields = fields(&json!({
            "name": "read_file", "title": "Read", "description": "Reads a file. Files are read whole.\nOr in part.",
            "inputSchema": {"properties": {"path": {"description": "Where the file is"}}},
        }));
        assert_eq!(fields.words["read"], [2, 0, 1, 1, 0, 0, 0]);
        assert_eq!(fields.words["file"], [1, 0, 1, 1, 0, 1, 0]);
        assert_eq!(fields.words["path"], [0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(fields.lengths, [3, 2, 3, 7, 1, 4, 0]);
    }

    #[test]
    fn products_in_names_add_their_topics() {
        let server = SearchableServer { name: "redis", description: "", tools: &[] };
        let fields = Fields::new(&server, &json!({"name": "redis_slack_get"}));
        let with_topics = |word: &str| fields.words[word][TOPICS];
        assert_eq!((with_topics("cach"), with_topics("chat"), fields.lengths[TOPICS]), (1, 1, 5));
    }

    #[test]
    fn invalid_tool_has_only_the_words_of_its_server() {
        for invalid in [json!(null), json!("x"), json!({"name": 7, "inputSchema": {"properties": [1]}})] {
            assert_eq!(fields(&invalid).lengths, [0, 2, 0, 0, 0, 0, 0]);
        }
    }

    #[test]
    fn long_description_is_cut() {
        let long = "é ".repeat(1 << 20);
        let fields = fields(&json!({"name": "a", "description": long}));
        assert!(fields.lengths.iter().sum::<u32>() < 8 * 1024);
    }
}
