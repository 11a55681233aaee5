//! What an event says beside what every event says.

use std::fmt;
use std::ops::Index;

use serde::Serialize;
use serde_json::Value;

/// Few fields, in the order in which they were added. It is written down elsewhere, where nobody waits: here it is
/// only put together, in as little time as can be.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Detail(Vec<(&'static str, Value)>);

impl Detail {
    pub fn add(&mut self, key: &'static str, value: Value) {
        self.0.push((key, value));
    }
}

impl Index<&str> for Detail {
    type Output = Value;

    fn index(&self, key: &str) -> &Value {
        self.0.iter().find_map(|(name, value)| (*name == key).then_some(value)).unwrap_or(&Value::Null)
    }
}

impl Serialize for Detail {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

/// As JSON.
impl fmt::Display for Detail {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_json_in_the_order_of_its_fields() {
        let mut detail = Detail::default();
        assert_eq!(detail.to_string(), "{}");
        detail.add("what", "\"code\"".into());
        detail.add("bytes_in", 4.into());
        assert_eq!(detail.to_string(), r#"{"what":"\"code\"","bytes_in":4}"#);
        assert_eq!((&detail["bytes_in"], &detail["nothing"]), (&4.into(), &Value::Null));
    }
}
