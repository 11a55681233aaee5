//! Placeholders in strings: `{arguments.name}` is the value at that path, and empty if there is none.

use serde_json::Value;

/// Replaces the placeholders in all strings of a value. Braces around anything else are left as they are.
pub(super) fn fill(template: &Value, values: &Value) -> Value {
    match template {
        Value::String(text) => Value::String(fill_text(text, values)),
        Value::Array(items) => items.iter().map(|item| fill(item, values)).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(key, value)| (key.clone(), fill(value, values))).collect())
        }
        other => other.clone(),
    }
}

fn fill_text(text: &str, values: &Value) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let placeholder = after.split_once('}').and_then(|(path, after)| Some((look_up(path, values)?, after)));
        rest = if let Some((value, after)) = placeholder {
            filled.push_str(&value);
            after
        } else {
            filled.push('{');
            after
        };
    }
    filled + rest
}

/// Returns `None` if the first part of the path is unknown: then the braces are no placeholder.
fn look_up(path: &str, values: &Value) -> Option<String> {
    let mut parts = path.split('.');
    let mut value = values.get(parts.next()?)?;
    for part in parts {
        value = value.get(part).unwrap_or(&Value::Null);
    }
    Some(match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn placeholders_are_replaced_and_other_braces_are_not() {
        let values = json!({"id": "7", "arguments": {"name": "Ada", "age": 36}});
        let filled = |text: &str| fill(&json!([{ "text": text }]), &values)[0]["text"].clone();
        assert_eq!(filled("{\"id\": \"{id}\"}"), "{\"id\": \"7\"}");
        assert_eq!(filled("{arguments.name}, {arguments.age}, {arguments.none.deeper}."), "Ada, 36, .");
        assert_eq!(filled("{other} {"), "{other} {");
    }
}
