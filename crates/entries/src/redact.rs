//! Removes possible secrets from entries that are shown to a user.

use serde_json::Value;

use crate::{ServerEntry, entry_to_json};

/// The text that replaces a value which may be a secret.
const REDACTED: &str = "(set)";

/// Serializes an entry like [`entry_to_json`], with its values redacted.
///
/// Values of variables and headers may be secrets, as may the user information and the query of a URL.
pub fn entry_to_redacted_json(entry: &ServerEntry) -> Value {
    let mut value = entry_to_json(entry);
    for table in ["/env", "/headers", "/box/env"] {
        if let Some(Value::Object(map)) = value.pointer_mut(table) {
            map.values_mut().for_each(|value| *value = redact(value.as_str().unwrap_or_default()).into());
        }
    }
    if let Some(Value::String(url)) = value.pointer_mut("/url") {
        *url = redact_url(url);
    }
    value
}

/// Redacts the value of a variable or header.
///
/// A mere reference such as `${TOKEN}` is not a secret and is returned as it is. With a default it may be one.
pub fn redact(text: &str) -> &str {
    let inner = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    let is_reference = inner.is_some_and(|inner| !inner.contains(['$', '}']) && !inner.contains(":-"));
    if text.is_empty() || is_reference { text } else { REDACTED }
}

/// Redacts the user information and the query of a URL.
pub fn redact_url(url: &str) -> String {
    let (before_query, query) = match url.split_once('?') {
        Some((before, _)) => (before, format!("?{REDACTED}")),
        None => (url, String::new()),
    };
    let redacted = match before_query.split_once("://") {
        Some((scheme, rest)) => {
            let authority_end = rest.find('/').unwrap_or(rest.len());
            match rest[..authority_end].rfind('@') {
                Some(at) => format!("{scheme}://{REDACTED}{}", &rest[at..]),
                None => before_query.to_owned(),
            }
        }
        None => before_query.to_owned(),
    };
    redacted + &query
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::entry_from_json;

    #[test]
    fn redacted_entry_contains_no_secret() {
        let entry = json!({
            "command": "x", "env": {"A": "s3cret", "B": "${B}", "C": "${env:C}", "D": "${D:-s3cret}", "E": "${E}s3cret"},
            "box": {"env": {"F": "s3cret"}},
        });
        let redacted = entry_to_redacted_json(&entry_from_json("x", &entry).unwrap().0);
        assert!(!redacted.to_string().contains("s3cret"), "{redacted}");
        assert_eq!(redacted["env"], json!({"A": "(set)", "B": "${B}", "C": "${env:C}", "D": "(set)", "E": "(set)"}));
        let entry =
            json!({"url": "https://u:s3cret@h:1/p/@x?key=s3cret", "headers": {"Authorization": "Bearer s3cret"}});
        let redacted = entry_to_redacted_json(&entry_from_json("x", &entry).unwrap().0);
        assert!(!redacted.to_string().contains("s3cret"), "{redacted}");
        assert_eq!(redacted["url"], "https://(set)@h:1/p/@x?(set)");
    }
}
