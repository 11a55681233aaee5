//! The fields of an audit event that depend on its kind.

use std::fmt;
use std::ops::Index;

use serde::Serialize;
use serde_json::Value;

/// A few JSON fields, in the order in which they were added.
///
/// Requests build it on their hot path, so adding a field is a push to a vector. The store serializes it later, on its
/// own thread.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AuditDetail(Vec<(&'static str, Value)>);

impl AuditDetail {
    /// Adds a field. Keys are not checked for duplicates.
    pub fn add(&mut self, key: &'static str, value: Value) {
        self.0.push((key, value));
    }
}

impl Index<&str> for AuditDetail {
    type Output = Value;

    /// Returns the value of a field, or null if it does not exist.
    fn index(&self, key: &str) -> &Value {
        self.0.iter().find_map(|(name, value)| (*name == key).then_some(value)).unwrap_or(&Value::Null)
    }
}

impl Serialize for AuditDetail {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl fmt::Display for AuditDetail {
    /// Writes the fields as a JSON object.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_fields_in_insertion_order() {
        let mut detail = AuditDetail::default();
        assert_eq!(detail.to_string(), "{}");
        detail.add("what", "\"code\"".into());
        detail.add("bytes_in", 4.into());
        assert_eq!(detail.to_string(), r#"{"what":"\"code\"","bytes_in":4}"#);
        assert_eq!((&detail["bytes_in"], &detail["nothing"]), (&4.into(), &Value::Null));
    }
}
