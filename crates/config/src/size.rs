//! Sizes in bytes as people write them in a file: `512M`, `"2GiB"`, or a plain number.

use std::borrow::Cow;

use ringfence_core::bytes;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteSize(pub u64);

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = ByteSize;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a size like \"512M\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                bytes::parse(text).map(ByteSize).map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(number))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<ByteSize, E> {
                u64::try_from(number).map(ByteSize).map_err(|_| E::custom(format!("{number} is not a size")))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A size in bytes, such as \"512M\" or \"2G\".",
            "type": ["string", "integer"],
            "minimum": 0,
            "pattern": "^[0-9]+([bB]|[kKmMgGtT]([iI]?[bB])?)?$",
        })
    }
}
