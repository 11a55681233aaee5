//! Settings of the network of sessions.

use std::collections::BTreeMap;

use ringfence_core::Network;
use ringfence_egress::{Mirror, Policy, Rule, SecretDefinition};

use crate::secret_store::SecretsRevision;
use crate::secrets::{Secrets, SelectSecretsError};

/// The destinations that sessions can reach, and the secrets for them. All other destinations are refused.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkSettings {
    /// The rules for every session.
    pub allow: Vec<Rule>,
    /// Additional rules for sessions with a template, by its name.
    pub templates: BTreeMap<String, Vec<Rule>>,
    /// The names of the secrets for every session.
    pub secret_names: Vec<String>,
    /// The names of additional secrets for sessions with a template, by its name.
    pub template_secret_names: BTreeMap<String, Vec<String>>,
    /// All defined secrets with their values. The server sets them.
    pub secrets: Secrets,
    /// Whether sessions reach the mirror of the package registries.
    pub packages: bool,
    /// The running package mirror, if there is one. The server sets it.
    pub mirror: Option<Mirror>,
    /// Whether the user of a client, and tokens, may allow more public hosts for their sessions.
    pub ask: bool,
}

impl Default for NetworkSettings {
    fn default() -> Self {
        Self { packages: true, ask: true, ..Self::none() }
    }
}

impl NetworkSettings {
    /// Returns settings that allow no destination, and with which only the operator can allow one later.
    pub fn none() -> Self {
        Self {
            allow: Vec::new(),
            templates: BTreeMap::new(),
            secret_names: Vec::new(),
            template_secret_names: BTreeMap::new(),
            secrets: Secrets::default(),
            packages: false,
            mirror: None,
            ask: false,
        }
    }

    /// Returns the rules for sessions with a template.
    pub fn rules(&self, template: &str) -> Vec<Rule> {
        let of_template = self.templates.get(template).into_iter().flatten();
        self.allow.iter().chain(of_template).cloned().collect()
    }

    /// Returns the secrets for sessions with a template.
    pub fn secrets(&self, template: &str) -> Result<Vec<SecretDefinition>, SelectSecretsError> {
        self.secrets.select(self.secret_names(template))
    }

    /// Returns the hosts of the secrets for sessions with a template.
    pub fn secret_hosts(&self, template: &str) -> Vec<Rule> {
        self.secrets.hosts(self.secret_names(template))
    }

    /// Identifies the stored secrets for sessions with a template. It changes with each change of the store.
    pub fn secrets_revision(&self, template: &str) -> SecretsRevision {
        self.secrets.revision(self.secret_names(template))
    }

    fn secret_names(&self, template: &str) -> impl Iterator<Item = &String> {
        let of_template = self.template_secret_names.get(template).into_iter().flatten();
        self.secret_names.iter().chain(of_template)
    }

    /// Returns the kind of network for sandboxes with a template.
    pub fn network(&self, template: &str) -> Network {
        let rules = self.rules(template);
        if rules.is_empty() && !self.packages {
            return Network::None;
        }
        Network::Egress { ports: Policy::named_ports(&rules) }
    }

    /// Returns these settings, restricted to the destinations that `limit` allows too.
    pub(crate) fn limited_to(&self, limit: &Self) -> Self {
        let common = |rules: &[Rule]| -> Vec<Rule> {
            let pairs = rules.iter().flat_map(|rule| limit.allow.iter().map(move |other| (rule, other)));
            pairs.filter_map(|(rule, other)| rule.intersection(other)).collect()
        };
        Self {
            allow: common(&self.allow),
            templates: self.templates.iter().map(|(name, rules)| (name.clone(), common(rules))).collect(),
            secret_names: self.secret_names.clone(),
            template_secret_names: self.template_secret_names.clone(),
            secrets: self.secrets.clone(),
            packages: self.packages && limit.packages,
            mirror: self.mirror.clone(),
            ask: self.ask && limit.ask,
        }
    }
}
