//! Parses JSON with comments, TOML and YAML into JSON values.

use std::path::Path;

use jsonc_parser::ParseOptions;
use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Syntax {
    /// With comments and trailing commas, which most clients allow.
    Json,
    Toml,
    Yaml,
}

impl Syntax {
    /// Returns the syntax for the extension of a file name; `None` if the extension is unknown.
    pub(crate) fn of_file(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "json" | "jsonc" => Some(Self::Json),
            "toml" => Some(Self::Toml),
            "yaml" | "yml" => Some(Self::Yaml),
            _ => None,
        }
    }
}

/// Parses a document; an empty one is `null`. Errors contain the line number but not the text, which may be a secret.
pub(crate) fn parse(text: &str, syntax: Syntax) -> Result<Value, String> {
    let text = text.trim_start_matches('\u{feff}');
    match syntax {
        Syntax::Json => json(text),
        Syntax::Toml => {
            let value: toml::Table = toml::from_str(text).map_err(|error| {
                let line = error.span().map(|span| 1 + text[..span.start].matches('\n').count());
                let position = line.map(|line| format!(" on line {line}")).unwrap_or_default();
                format!("invalid TOML{position}")
            })?;
            serde_json::to_value(value).map_err(|_| "the TOML has values that JSON does not have".into())
        }
        Syntax::Yaml => serde_saphyr::from_str(text).map_err(|error| {
            let position = error.location().map(|location| format!(" on line {}", location.line()));
            format!("invalid YAML{}", position.unwrap_or_default())
        }),
    }
}

fn json(text: &str) -> Result<Value, String> {
    let options = ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    jsonc_parser::parse_to_serde_value(text, &options)
        .map_err(|error| format!("invalid JSON on line {}", error.line_display()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_syntaxes_give_the_same_value() {
        let expected = json!({"a": {"b": ["x", 1, true]}, "c": null});
        let json = "\u{feff}// a comment\n{\"a\": {\"b\": [\"x\", 1, true,],}, /* and */ \"c\": null,}\n";
        assert_eq!(parse(json, Syntax::Json), Ok(expected.clone()));
        assert_eq!(parse("# note\na:\n  b: [x, 1, true]\nc:\n", Syntax::Yaml), Ok(expected));
        assert_eq!(parse("[a]\nb = [\"x\", 1, true]\n", Syntax::Toml), Ok(json!({"a": {"b": ["x", 1, true]}})));
        assert_eq!(parse("", Syntax::Json), Ok(Value::Null));
    }

    #[test]
    fn errors_have_line_number_but_no_content() {
        for (syntax, text) in [
            (Syntax::Json, "{\"a\":\n \"s3cret\" \"s3cret\"}"),
            (Syntax::Json, "{\"a\":\n 's3cret'}"),
            (Syntax::Toml, "a = 1\ns3cret s3cret"),
            (Syntax::Yaml, "a: 1\n\"s3cret: [s3cret"),
            (Syntax::Yaml, "a: 1\nb: *s3cret"),
        ] {
            let error = parse(text, syntax).unwrap_err();
            assert!(error.contains("on line 2") && !error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn deep_nesting_and_alias_expansion_are_refused() {
        let deep = "[".repeat(20_000);
        for syntax in [Syntax::Json, Syntax::Yaml] {
            assert!(parse(&deep, syntax).is_err());
        }
        assert!(parse(&format!("a = {deep}"), Syntax::Toml).is_err());
        let mut laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..12 {
            let below = format!("*a{}", level - 1);
            laughs = format!("{laughs}a{level}: &a{level} [{}]\n", vec![below; 9].join(","));
        }
        assert!(parse(&laughs, Syntax::Yaml).is_err());
    }
}
