//! Forms of values that models send and that are understood, and suggestions for misspelt fields.
//!
//! The strict mode of some clients makes every field required, so their models send an empty text, 0 or null for what
//! they do not want to set.

use ringfence_core::suggest::closest;
use serde_json::{Map, Number, Value};

/// The optional fields of all tools, with the form of their values. No tool has a required field of this name, except
/// that `session_id` and `path` are required by some: without a value, they are reported as missing.
const OPTIONAL: [(&str, Form); 10] = [
    ("template", Form::Text),
    ("flavor", Form::Text),
    ("session_id", Form::Text),
    ("path", Form::Path),
    ("encoding", Form::LowerCase),
    ("timeout", Form::Number),
    ("offset", Form::Number),
    ("length", Form::Number),
    ("limit", Form::Number),
    ("servers", Form::List),
];

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Text,
    LowerCase,
    /// A text in which white space counts.
    Path,
    Number,
    List,
}

/// Removes optional fields without a value, and brings the others into the form of the schema.
pub(super) fn normalize(arguments: &mut Map<String, Value>) {
    for (field, form) in OPTIONAL {
        let Some(value) = arguments.get_mut(field) else { continue };
        if is_empty(value) {
            arguments.shift_remove(field);
            continue;
        }
        match (form, value.as_str()) {
            (Form::Text, Some(text)) if text.trim() != text => *value = text.trim().into(),
            (Form::LowerCase, Some(text)) => *value = text.trim().to_ascii_lowercase().into(),
            (Form::Number, Some(text)) => {
                if let Some(number) = number(text.trim()) {
                    *value = number;
                }
            }
            (Form::List, Some(text)) => *value = list(text),
            _ => {}
        }
    }
    // A number as text may be zero too.
    arguments.retain(|field, value| !(is_empty(value) && OPTIONAL.iter().any(|(name, _)| name == field)));
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.trim().is_empty(),
        _ => false,
    }
}

fn number(text: &str) -> Option<Value> {
    text.parse::<u64>().map(Value::from).ok().or_else(|| {
        let float = text.parse::<f64>().ok()?;
        Number::from_f64(float).map(Value::Number)
    })
}

/// A list as JSON text, or a single item.
fn list(text: &str) -> Value {
    let parsed = serde_json::from_str(text).ok().filter(Value::is_array);
    parsed.unwrap_or_else(|| Value::Array(vec![text.trim().into()]))
}

/// Names that other tools of this kind have for our fields.
const OTHER_NAMES: [(&str, &str); 10] = [
    ("language", "template"),
    ("lang", "template"),
    ("cmd", "command"),
    ("script", "code"),
    ("source", "code"),
    ("file", "path"),
    ("filename", "path"),
    ("file_path", "path"),
    ("text", "content"),
    ("size", "flavor"),
];

/// Returns a hint if the error is about an unknown field that resembles a known one.
pub(super) fn suggestion(error: &str) -> Option<String> {
    let (name, rest) = error.split_once("unknown field `")?.1.split_once('`')?;
    let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
    let other = OTHER_NAMES.iter().find(|(other, field)| *other == name && known.contains(field));
    let nearest = other.map(|(_, field)| *field).or_else(|| closest(name, known.iter().copied()))?;
    Some(format!("did you mean `{nearest}`?"))
}
