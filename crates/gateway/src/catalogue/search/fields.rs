//! What of a tool is searched, and what each part counts.

use std::collections::HashMap;

use serde_json::Value;

use super::SearchableServer;
use super::words::for_each_word;

/// What is read of one tool. A server that says more gains nothing by it.
const MAX_TEXT_BYTES: usize = 8 * 1024;
const MAX_PARAMETERS: usize = 64;

pub(super) struct Field {
    pub(super) weight: f64,
    /// How much a word counts for less where there are many: from 0, not at all, to 1, its share of them all.
    pub(super) length_normalization: f64,
}

const NAME: usize = 0;
const SERVER: usize = 1;
const FIRST_SENTENCE: usize = 2;
const REST_OF_DESCRIPTION: usize = 3;
const PARAMETERS: usize = 4;
const PARAMETER_DESCRIPTIONS: usize = 5;

/// Found with two thirds of the questions in `tests/data/tools.json`; `ringfence bench search` shows what the rest says.
pub(super) const FIELDS: [Field; 6] = [
    Field { weight: 2.0, length_normalization: 0.75 },
    Field { weight: 1.0, length_normalization: 0.0 },
    Field { weight: 2.0, length_normalization: 0.5 },
    Field { weight: 0.5, length_normalization: 0.75 },
    Field { weight: 0.8, length_normalization: 0.75 },
    Field { weight: 0.3, length_normalization: 0.75 },
];

/// The words of one tool.
#[derive(Default)]
pub(super) struct Fields {
    /// How often each word is in each field.
    pub(super) words: HashMap<Box<str>, [u32; FIELDS.len()]>,
    /// Words of each field.
    pub(super) lengths: [u32; FIELDS.len()],
    read: usize,
}

impl Fields {
    pub(super) fn of(searched: &SearchableServer<'_>, tool: &Value) -> Self {
        let mut fields = Self::default();
        fields.read(NAME, text(tool, "name"));
        fields.read(NAME, text(tool, "title"));
        fields.read(SERVER, searched.name);
        fields.read(SERVER, searched.description);
        let (first, further) = first_sentence(text(tool, "description").trim());
        fields.read(FIRST_SENTENCE, first);
        fields.read(REST_OF_DESCRIPTION, further);
        let properties = tool.get("inputSchema").and_then(|schema| schema.get("properties")).and_then(Value::as_object);
        for (name, schema) in properties.into_iter().flatten().take(MAX_PARAMETERS) {
            fields.read(PARAMETERS, name);
            fields.read(PARAMETER_DESCRIPTIONS, text(schema, "description"));
        }
        fields
    }

    fn read(&mut self, field: usize, text: &str) {
        let left = MAX_TEXT_BYTES.saturating_sub(self.read).min(text.len());
        let end = (0..=left).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        self.read += end;
        for_each_word(&text[..end], |_, stem| {
            self.lengths[field] += 1;
            self.words.entry(stem.into()).or_default()[field] += 1;
        });
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// What a description says first is what the tool is for; the rest is how to use it.
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
        Fields::of(&SearchableServer { name: "git", description: "Versions", tools: &[] }, tool)
    }

    #[test]
    fn every_word_is_counted_where_it_stands() {
        let fields = fields(&json!({
            "name": "read_file", "title": "Read", "description": "Reads a file. Files are read whole.\nOr in part.",
            "inputSchema": {"properties": {"path": {"description": "Where the file is"}}},
        }));
        assert_eq!(fields.words["read"], [2, 0, 1, 1, 0, 0]);
        assert_eq!(fields.words["file"], [1, 0, 1, 1, 0, 1]);
        assert_eq!(fields.words["path"], [0, 0, 0, 0, 1, 0]);
        assert_eq!(fields.lengths, [3, 2, 3, 7, 1, 4]);
    }

    #[test]
    fn what_is_no_tool_has_no_words_of_its_own() {
        for odd in [json!(null), json!("x"), json!({"name": 7, "inputSchema": {"properties": [1]}})] {
            assert_eq!(fields(&odd).lengths, [0, 2, 0, 0, 0, 0]);
        }
    }

    #[test]
    fn who_says_more_is_not_read_to_the_end() {
        let long = "é ".repeat(1 << 20);
        let fields = fields(&json!({"name": "a", "description": long}));
        assert!(fields.lengths.iter().sum::<u32>() < 8 * 1024);
    }
}
