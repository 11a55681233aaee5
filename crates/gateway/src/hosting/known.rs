//! stand-in
use std::sync::Arc;
use ringfence_runtime::servers::Profile;
use serde_json::Value;
use super::Hosting;
use crate::code::Found;
#[derive(Clone)]
pub(crate) struct KnownServer { pub(crate) name: String, pub(crate) uuid: String, pub(crate) alias: String, pub(crate) description: Option<String>, pub(crate) status: &'static str, pub(crate) version: String, pub(crate) tools: Arc<Vec<Value>>, pub(crate) tool_aliases: Arc<Vec<String>> }
impl Hosting {
    pub(crate) fn known_servers(&self, _name: &str, profile: &Profile) -> Arc<[KnownServer]> {
        self.0.members().into_iter().filter(|m| profile.has_server(&m.name, &m.uuid)).map(|m| {
            let tools: Vec<Value> = m.catalogue.tools.iter().filter(|t| profile.has_tool(&m.name, super::name_of(t)) && !m.held.contains(super::name_of(t))).cloned().collect();
            let mut seen = std::collections::HashMap::new();
            let aliases = tools.iter().map(|t| { let a = super::name_of(t).replace('-', "_"); let a = if a == "class" { "class_".to_owned() } else { a }; let n = seen.entry(a.clone()).or_insert(0); *n += 1; if *n > 1 { format!("{a}_{n}") } else { a } }).collect();
            KnownServer { alias: m.name.replace('-', "_"), name: m.name, uuid: m.uuid, description: None, status: "connected", version: tools.len().to_string(), tools: Arc::new(tools), tool_aliases: Arc::new(aliases) }
        }).collect()
    }
    pub(crate) fn search(&self, name: &str, profile: &Profile, query: &str, limit: usize) -> Vec<Found> {
        let q = query.split(' ').next().unwrap_or_default().to_lowercase();
        self.known_servers(name, profile).iter().flat_map(|s| s.tools.iter().map(|t| Found { server: s.name.clone(), server_alias: s.alias.clone(), tool: t.clone(), alias: super::name_of(t).into(), score: 1.0 }).collect::<Vec<_>>()).filter(|f| f.tool.to_string().to_lowercase().contains(&q)).take(limit).collect()
    }
}
