//! Parser for the file format of npm: that of its package `ini`, with variables replaced.

use std::collections::BTreeMap;

use super::Variables;

/// Returns the settings outside of sections; npm has none in sections.
pub(super) fn parse(text: &str, variables: &Variables) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    for line in text.split(['\r', '\n']) {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with([';', '#']) {
            continue;
        }
        if line.starts_with('[') && trimmed.ends_with(']') {
            break;
        }
        // A key without a value is a switch.
        let (key, value) = line.split_once('=').map_or((line, "true".to_owned()), |(key, value)| (key, unquote(value)));
        settings.insert(replace(&unquote(key), variables), replace(&value, variables).trim().to_owned());
    }
    settings
}

fn unquote(text: &str) -> String {
    let text = text.trim();
    let quoted = |quote: char| text.len() > 1 && text.starts_with(quote) && text.ends_with(quote);
    if quoted('"') {
        return serde_json::from_str(text).unwrap_or_else(|_| text.to_owned());
    }
    if quoted('\'') {
        let inner = &text[1..text.len() - 1];
        return serde_json::from_str(inner).unwrap_or_else(|_| inner.to_owned());
    }
    let mut value = String::new();
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            ';' | '#' => break,
            '\\' => match chars.next() {
                Some(escaped @ ('\\' | ';' | '#')) => value.push(escaped),
                Some(other) => value.extend(['\\', other]),
                None => value.push('\\'),
            },
            other => value.push(other),
        }
    }
    value.trim().to_owned()
}

/// Replaces `${NAME}`, which stays if the variable is not set, and `${NAME?}`, which then becomes nothing.
fn replace(text: &str, variables: &Variables) -> String {
    let mut replaced = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let end = after.find(['}', '$', '{']).filter(|end| after[*end..].starts_with('}'));
        replaced.push_str(before);
        let Some(end) = end.filter(|end| *end > 0 && !before.ends_with('\\')) else {
            replaced.push_str("${");
            rest = after;
            continue;
        };
        let name = &after[..end];
        let (name, otherwise) = match name.strip_suffix('?') {
            Some(name) => (name, String::new()),
            None => (name, format!("${{{name}}}")),
        };
        replaced.push_str(variables.get(name).unwrap_or(&otherwise));
        rest = &after[end + 1..];
    }
    replaced + rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Vec<(String, String)> {
        let variables = [("HOST".to_owned(), "set.example".to_owned())].into();
        parse(text, &variables).into_iter().collect()
    }

    fn parsed_value(text: &str) -> String {
        parsed(text).pop().map(|(_, value)| value).unwrap_or_default()
    }

    #[test]
    fn parses_values_like_npm() {
        assert_eq!(parsed_value("registry = https://a.example/x?y=z"), "https://a.example/x?y=z");
        assert_eq!(parsed_value("registry=\"https://a.example/#x\""), "https://a.example/#x");
        assert_eq!(parsed_value("registry='https://a.example/'"), "https://a.example/");
        assert_eq!(parsed_value("registry=https://a.example/ ; comment"), "https://a.example/");
        assert_eq!(parsed_value("registry=https://a.example/\\#x"), "https://a.example/#x");
        assert_eq!(parsed_value("registry=https://${HOST}/"), "https://set.example/");
        assert_eq!(parsed_value("registry=https://${NONE}/${NONE?}"), "https://${NONE}/");
        assert_eq!(parsed_value("registry=https://${${HOST}"), "https://${set.example");
        assert_eq!(parsed_value("yes"), "true");
        assert_eq!(parsed("; a\n# b\r\n\n[section]\nregistry=x\n"), []);
        assert_eq!(parsed("@s:registry=https://a.example\n")[0].0, "@s:registry");
    }

    proptest! {
        #[test]
        fn accepts_any_text(text in "(?s).{0,200}") {
            parsed(&text);
        }

        #[test]
        fn plain_value_is_unchanged(value in "[a-z0-9:/.@_-]{1,60}") {
            prop_assert_eq!(parsed_value(&format!("registry={value}")), value);
        }
    }
}
