//! `--box KEY=VALUE`: the walls around a server, one at a time.

use std::str::FromStr;

use serde_json::{Map, Value, json};

#[derive(Debug, Clone, PartialEq)]
pub(super) struct BoxOption {
    key: String,
    value: String,
}

impl FromStr for BoxOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not KEY=VALUE"))?;
        Ok(Self { key: key.trim().into(), value: value.into() })
    }
}

impl BoxOption {
    /// Puts it into the table. Lists grow with every option; what a value means is decided where entries are read.
    pub(super) fn put(&self, walls: &mut Map<String, Value>) {
        if let Some(name) = self.key.strip_prefix("env.") {
            let env = walls.entry("env").or_insert_with(|| json!({}));
            env[name] = self.value.as_str().into();
            return;
        }
        match self.key.as_str() {
            "allow" => {
                let rules = self.value.split(',').map(str::trim).filter(|rule| !rule.is_empty());
                if let Value::Array(list) = walls.entry("allow").or_insert_with(|| json!([])) {
                    list.extend(rules.map(Value::from));
                }
            }
            "image" | "host_path" | "host_path_mode" | "network" => {
                walls.insert(self.key.clone(), self.value.as_str().into());
            }
            _ => {
                let scalar = serde_json::from_str(&self.value)
                    .ok()
                    .filter(|value: &Value| value.is_number() || value.is_boolean());
                walls.insert(self.key.clone(), scalar.unwrap_or_else(|| self.value.as_str().into()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_to_a_table() {
        let mut walls = Map::new();
        for text in [
            "allow=a.example,b.example:8443",
            "allow=c.example",
            "memory_mb=512",
            "cpus=0.5",
            "shared=true",
            "host_path=123",
            "network=off",
            "env.A=b=c",
            "colour=red",
        ] {
            text.parse::<BoxOption>().unwrap().put(&mut walls);
        }
        let expected = json!({
            "allow": ["a.example", "b.example:8443", "c.example"], "memory_mb": 512, "cpus": 0.5, "shared": true,
            "host_path": "123", "network": "off", "env": {"A": "b=c"}, "colour": "red",
        });
        assert_eq!(Value::Object(walls), expected);
        assert!("memory_mb".parse::<BoxOption>().is_err());
    }
}
