//! Types of single values: times, counts and sizes.

use std::borrow::Cow;

use ringfence_core::bytes;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};

/// A time in whole seconds, from one second to one year.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(try_from = "u64")]
#[schemars(extend("minimum" = 1, "maximum" = Seconds::MAX))]
pub(crate) struct Seconds(u64);

impl Seconds {
    const MAX: u64 = 365 * 86_400;

    pub(crate) fn duration(self) -> std::time::Duration {
        std::time::Duration::from_secs(self.0)
    }
}

impl TryFrom<u64> for Seconds {
    type Error = String;

    fn try_from(seconds: u64) -> Result<Self, String> {
        let is_valid = (1..=Self::MAX).contains(&seconds);
        if is_valid { Ok(Self(seconds)) } else { Err(format!("{seconds} is not a time from 1 second to 1 year")) }
    }
}

/// A maximum number, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(try_from = "u64")]
#[schemars(extend("minimum" = 1, "maximum" = Count::MAX))]
pub(crate) struct Count(u64);

impl Count {
    /// More sessions or connections than any host supports.
    const MAX: u64 = 1_000_000;

    #[allow(clippy::cast_possible_truncation)]
    pub(crate) fn get(self) -> usize {
        self.0 as usize
    }
}

impl TryFrom<u64> for Count {
    type Error = String;

    fn try_from(count: u64) -> Result<Self, String> {
        let is_valid = (1..=Self::MAX).contains(&count);
        if is_valid { Ok(Self(count)) } else { Err(format!("{count} is not a number from 1 to 1000000")) }
    }
}

/// A size in bytes, written as `"512M"`, `"2GiB"` or a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) u64);

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
            "description": "A size in bytes, for example \"512M\" or \"2G\".",
            "type": ["string", "integer"],
            "minimum": 0,
            "pattern": "^[0-9]+([bB]|[kKmMgGtT]([iI]?[bB])?)?$",
        })
    }
}
