//! One entry of a list `allow`: a rule as text, or a table with methods and paths.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

use ringfence_egress::{Rule, RuleError};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap as _, Serializer};

/// A rule in a list `allow`.
///
/// It is written as `"api.example.com:8443"`, or as a table `{ host = "api.github.com", methods = ["GET"], paths =
/// ["/repos/*"] }`, which allows only such HTTP requests. [`Rule`] itself has a text form for both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowEntry(pub Rule);

impl<'de> Deserialize<'de> for AllowEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // An untagged enum would hide the reason why a table is invalid.
        deserializer.deserialize_any(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = AllowEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a host such as \"example.com\", or a table with host, methods and paths")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<AllowEntry, E> {
        text.parse().map(AllowEntry).map_err(|error| E::custom(describe(&error)))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<AllowEntry, A::Error> {
        let table = Table::deserialize(MapAccessDeserializer::new(map))?;
        table.rule().map(AllowEntry).map_err(|error| de::Error::custom(describe(&error)))
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    host: String,
    #[serde(default)]
    methods: Vec<String>,
    #[serde(default)]
    paths: Vec<String>,
}

impl Table {
    fn rule(&self) -> Result<Rule, RuleError> {
        self.host.parse::<Rule>()?.with_methods(&self.methods)?.with_paths(&self.paths)
    }
}

/// Returns the error with its reason and its hint, because errors of serde are only text.
fn describe(error: &RuleError) -> String {
    let reason = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    format!("{error}{reason} ({})", error.hint())
}

impl Serialize for AllowEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.0.to_string();
        let Some((host, _)) = text.split_once(' ') else { return serializer.serialize_str(&text) };
        let requests = self.0.requests();
        let mut table = serializer.serialize_map(None)?;
        table.serialize_entry("host", host)?;
        let lists = [
            ("methods", requests.methods.iter().map(ToString::to_string).collect::<Vec<_>>()),
            ("paths", requests.paths.iter().map(ToString::to_string).collect()),
        ];
        for (key, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            table.serialize_entry(key, &list)?;
        }
        table.end()
    }
}

impl JsonSchema for AllowEntry {
    fn schema_name() -> Cow<'static, str> {
        "AllowEntry".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let host = "HOST[:PORT][+private]; HOST may be *.example.com for all subdomains.";
        json_schema!({
            "description": "A host that a sandbox may connect to.",
            "anyOf": [
                {"type": "string", "description": host},
                {
                    "type": "object",
                    "description": "A host to which only some HTTP requests are allowed.",
                    "properties": {
                        "host": {"type": "string", "description": host},
                        "methods": {"type": "array", "items": {"type": "string"}, "description": "HTTP methods; all by default."},
                        "paths": {
                            "type": "array",
                            "items": {"type": "string"},
                            "description": "Paths; all by default. `*` stands for any characters in a segment, and as the last segment for everything beneath."
                        },
                    },
                    "required": ["host"],
                    "additionalProperties": false,
                },
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json, to_value};

    use super::*;

    fn parse(value: Value) -> Result<AllowEntry, String> {
        from_value(value).map_err(|error| error.to_string())
    }

    #[test]
    fn texts_and_tables_are_read_and_written() {
        for (value, text) in [
            (json!("a.com:8443+private"), "a.com:8443+private"),
            (json!({"host": "a.com", "methods": ["GET"], "paths": ["/x/*"]}), "a.com method=GET path=/x/*"),
            (json!({"host": "a.com", "paths": ["/x"]}), "a.com path=/x"),
        ] {
            let entry = parse(value.clone()).unwrap();
            assert_eq!(entry.0.to_string(), text);
            assert_eq!(to_value(&entry).unwrap(), value);
        }
        assert_eq!(parse(json!({"host": "a.com"})).unwrap(), parse(json!("a.com")).unwrap());
    }

    #[test]
    fn errors_name_the_problem() {
        for (value, expected) in [
            (json!(1), "a host such as"),
            (json!({"methods": ["GET"]}), "missing field `host`"),
            (json!({"host": "a.com", "method": ["GET"]}), "unknown field `method`"),
            (json!({"host": "a.com", "methods": ["CONNECT"]}), "CONNECT cannot be allowed"),
            (json!({"host": "a.com", "paths": ["x"]}), "must start with `/`"),
            (json!("https://a.com"), "without scheme and path"),
        ] {
            let error = parse(value).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
