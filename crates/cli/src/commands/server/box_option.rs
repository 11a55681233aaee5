//! `--box KEY=VALUE`: one setting of a server's sandbox.

use std::str::FromStr;

use ringfence_entries::check_box_key;
use serde_json::{Map, Value, json};

/// A key of the table `box`, with its value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BoxOption {
    key: String,
    value: String,
}

impl FromStr for BoxOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not KEY=VALUE"))?;
        let key = key.trim();
        match key.split_once('.') {
            Some(("env", name)) if !name.is_empty() => {}
            _ if key == "env" || key == "env." => return Err("write env.NAME=VALUE".into()),
            _ => check_box_key(key)?,
        }
        Ok(Self { key: key.into(), value: value.into() })
    }
}

impl BoxOption {
    /// Adds the setting to the table `box`. Lists are extended by each option. Values are checked when the entry is parsed.
    pub(super) fn insert_into(&self, settings: &mut Map<String, Value>) {
        if let Some(name) = self.key.strip_prefix("env.") {
            let env = settings.entry("env").or_insert_with(|| json!({}));
            env[name] = self.value.as_str().into();
            return;
        }
        match self.key.as_str() {
            "allow" | "secrets" => {
                let items = self.value.split(',').map(str::trim).filter(|item| !item.is_empty());
                if let Value::Array(list) = settings.entry(&self.key).or_insert_with(|| json!([])) {
                    list.extend(items.map(Value::from));
                }
            }
            "image" | "host_path" | "host_path_mode" | "network" => {
                settings.insert(self.key.clone(), self.value.as_str().into());
            }
            _ => {
                let scalar = serde_json::from_str(&self.value)
                    .ok()
                    .filter(|value: &Value| value.is_number() || value.is_boolean());
                settings.insert(self.key.clone(), scalar.unwrap_or_else(|| self.value.as_str().into()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_a_table() {
        let mut settings = Map::new();
        for text in [
            "allow=a.example,b.example:8443",
            "allow=c.example",
            "memory_mb=512",
            "cpus=0.5",
            "shared=true",
            "host_path=123",
            "network=off",
            "env.A=b=c",
            "secrets=github,maps",
        ] {
            text.parse::<BoxOption>().unwrap().insert_into(&mut settings);
        }
        let expected = json!({
            "allow": ["a.example", "b.example:8443", "c.example"], "memory_mb": 512, "cpus": 0.5, "shared": true,
            "host_path": "123", "network": "off", "env": {"A": "b=c"}, "secrets": ["github", "maps"],
        });
        assert_eq!(Value::Object(settings), expected);
        assert!("memory_mb".parse::<BoxOption>().is_err());
    }

    #[test]
    fn unknown_keys_are_refused_with_a_suggestion() {
        let error = |text: &str| text.parse::<BoxOption>().unwrap_err();
        assert_eq!(error("alow=a.example"), "unknown key `alow`; did you mean `allow`?");
        assert_eq!(error("memory=512"), "unknown key `memory`; did you mean `memory_mb`?");
        assert!(error("colour=red").starts_with("unknown key `colour`; the keys are"));
        assert_eq!(error("env=A"), "write env.NAME=VALUE");
        assert_eq!(error("env.=A"), "write env.NAME=VALUE");
    }
}
