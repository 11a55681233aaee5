//! The credentials of one sandbox: its certificate authority and its secrets.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize as _, Zeroizing};

use super::definition::{Location, SecretDefinition};
use super::guest_files::certificate_environment;
use super::placeholder::placeholder_for;
use super::replacement::Replacements;
use crate::rules::{HostPort, Rule};
use crate::tls::{AuthorityError, SandboxAuthority, UpstreamTls};

/// Maximum number of secrets of one sandbox. Every request is searched for all of them.
const MAX_SECRETS: usize = 64;

/// Reason why the credentials of a sandbox cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("a sandbox has at most {MAX_SECRETS} secrets")]
    TooMany,
    #[error("the secrets `{first}` and `{second}` have the same variable {variable}")]
    SameVariable { first: String, second: String, variable: String },
    #[error("the system has no random numbers")]
    Random,
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error("the record of the sandbox's credentials is damaged")]
    Record,
}

/// A secret of one sandbox.
pub(crate) struct SecretBinding {
    pub(crate) definition: SecretDefinition,
    /// The text that the guest has instead of the value.
    pub(crate) placeholder: String,
}

impl SecretBinding {
    pub(crate) fn name(&self) -> &str {
        &self.definition.name
    }

    /// Returns the rule that binds this secret to a destination.
    pub(super) fn rule_for(&self, target: &HostPort) -> Option<&Rule> {
        let rules = self.definition.hosts.iter().filter(|rule| rule.matches(target));
        rules.max_by_key(|rule| rule.allows_private())
    }

    pub(super) fn allows(&self, location: Location) -> bool {
        self.definition.locations.contains(&location)
    }
}

/// The certificate authority and the secrets of one sandbox.
///
/// A sandbox whose rules have methods or paths needs it too, without any secrets: its guest must trust the authority.
pub struct SandboxCredentials {
    pub(crate) authority: SandboxAuthority,
    pub(crate) upstream: UpstreamTls,
    pub(crate) bindings: Vec<SecretBinding>,
    /// Values with the placeholders that replace them in responses.
    pub(crate) values: Arc<Replacements>,
}

/// The credentials of a sandbox that another process has started.
#[derive(Debug)]
pub struct RestoredCredentials {
    pub credentials: SandboxCredentials,
    /// The hosts of secrets that were removed since the sandbox was started.
    pub lost_hosts: Vec<Rule>,
}

impl fmt::Debug for SandboxCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.bindings.iter().map(SecretBinding::name).collect();
        f.debug_struct("SandboxCredentials").field("secrets", &names).finish_non_exhaustive()
    }
}

impl SandboxCredentials {
    /// Makes a new authority, and new placeholders for these secrets.
    pub fn generate(definitions: &[SecretDefinition]) -> Result<Self, CredentialsError> {
        Self::new(SandboxAuthority::generate()?, definitions, &BTreeMap::new())
    }

    /// Restores the credentials of a sandbox that another process has started: the same authority and placeholders, with
    /// the values of `definitions`. A secret that the sandbox did not have is left out, because the guest has no
    /// placeholder for it.
    pub fn restore(record: &str, definitions: &[SecretDefinition]) -> Result<RestoredCredentials, CredentialsError> {
        let record: Record = serde_json::from_str(record).map_err(|_| CredentialsError::Record)?;
        let certificate = STANDARD.decode(&record.certificate).map_err(|_| CredentialsError::Record)?;
        let authority = SandboxAuthority::restore(&record.common_name, &record.key, &certificate)?;
        let (mut placeholders, mut lost_hosts) = (BTreeMap::new(), Vec::new());
        for (name, secret) in &record.secrets {
            if definitions.iter().any(|definition| definition.name == *name) {
                placeholders.insert(name.clone(), secret.placeholder.clone());
                continue;
            }
            let hosts: Result<Vec<Rule>, _> = secret.hosts.iter().map(|host| host.parse()).collect();
            lost_hosts.extend(hosts.map_err(|_| CredentialsError::Record)?);
        }
        let is_known = |definition: &&SecretDefinition| placeholders.contains_key(&definition.name);
        let definitions: Vec<_> = definitions.iter().filter(is_known).cloned().collect();
        let credentials = Self::new(authority, &definitions, &placeholders)?;
        Ok(RestoredCredentials { credentials, lost_hosts })
    }

    fn new(
        authority: SandboxAuthority,
        definitions: &[SecretDefinition],
        placeholders: &BTreeMap<String, String>,
    ) -> Result<Self, CredentialsError> {
        if definitions.len() > MAX_SECRETS {
            return Err(CredentialsError::TooMany);
        }
        let mut bindings: Vec<SecretBinding> = Vec::new();
        let mut values = Replacements::default();
        for definition in definitions {
            if let Some(other) = bindings.iter().find(|other| other.definition.variable == definition.variable) {
                return Err(CredentialsError::SameVariable {
                    first: other.name().to_owned(),
                    second: definition.name.clone(),
                    variable: definition.variable.clone(),
                });
            }
            let value = definition.value.expose();
            let placeholder = match placeholders.get(&definition.name) {
                Some(placeholder) => placeholder.clone(),
                None => placeholder_for(value).map_err(|_| CredentialsError::Random)?,
            };
            // The value may have changed since the placeholder was made.
            let shown: String = placeholder.chars().cycle().take(value.len()).collect();
            values.add_with_encodings(bindings.len(), value, &shown);
            bindings.push(SecretBinding { definition: definition.clone(), placeholder });
        }
        Ok(Self { authority, upstream: UpstreamTls::with_host_roots(), bindings, values: Arc::new(values) })
    }

    /// Returns the variables of the guest: the placeholders, and the paths of certificates for common programs.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let mut environment = certificate_environment();
        let secrets = self.bindings.iter();
        environment.extend(secrets.map(|secret| (secret.definition.variable.clone(), secret.placeholder.clone())));
        environment
    }

    /// Returns the certificate of the authority.
    pub fn ca_pem(&self) -> String {
        pem_of(self.authority.certificate())
    }

    /// Returns what [`Self::restore`] needs: the key of the authority, and the placeholders and hosts of the secrets, but
    /// no values. Only the user who runs the sandbox may read it.
    pub fn record(&self) -> Zeroizing<String> {
        let secrets = self.bindings.iter().map(|secret| {
            let hosts = secret.definition.hosts.iter().map(ToString::to_string).collect();
            (secret.name().to_owned(), SecretRecord { placeholder: secret.placeholder.clone(), hosts })
        });
        let record = Record {
            common_name: self.authority.common_name().to_owned(),
            key: self.authority.key_pem().to_string(),
            certificate: STANDARD.encode(self.authority.certificate()),
            secrets: secrets.collect(),
        };
        Zeroizing::new(serde_json::to_string(&record).expect("a record of texts"))
    }

    /// Returns whether a secret is bound to this destination.
    pub(crate) fn has_secret_for(&self, target: &HostPort) -> bool {
        self.bindings.iter().any(|secret| secret.rule_for(target).is_some())
    }

    /// Trusts these roots instead of those of the host.
    #[cfg(test)]
    pub(crate) fn with_upstream_roots(mut self, roots: &[CertificateDer<'static>]) -> Self {
        self.upstream = UpstreamTls::new(roots);
        self
    }
}

#[derive(Serialize, Deserialize)]
struct Record {
    common_name: String,
    key: String,
    certificate: String,
    secrets: BTreeMap<String, SecretRecord>,
}

#[derive(Serialize, Deserialize)]
struct SecretRecord {
    placeholder: String,
    hosts: Vec<String>,
}

impl Drop for Record {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

/// Returns a certificate in PEM format.
pub(super) fn pem_of(certificate: &CertificateDer<'_>) -> String {
    let encoded = STANDARD.encode(certificate);
    let mut pem = String::with_capacity(encoded.len() * 66 / 64 + 64);
    pem.push_str("-----BEGIN CERTIFICATE-----\n");
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        rest = after;
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::rules::RequestScope;
    use crate::secrets::SecretValue;

    /// Returns a definition whose variable is the name in upper case.
    pub(crate) fn definition(name: &str, value: &str, hosts: &[&str], locations: &[Location]) -> SecretDefinition {
        SecretDefinition {
            name: name.to_owned(),
            variable: name.to_uppercase(),
            value: SecretValue::new(value).unwrap(),
            hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
            requests: RequestScope::default(),
            locations: locations.iter().copied().collect(),
        }
    }

    #[test]
    fn placeholders_are_new_for_each_sandbox_and_survive_a_restart() {
        let value = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
        let github = definition("github", value, &["api.github.com"], &[Location::Header]);
        let first = SandboxCredentials::generate(std::slice::from_ref(&github)).unwrap();
        let second = SandboxCredentials::generate(std::slice::from_ref(&github)).unwrap();
        let placeholder = &first.environment()["GITHUB"];
        assert!(placeholder.starts_with("ghp_") && placeholder != value);
        assert_ne!(placeholder, &second.environment()["GITHUB"]);
        assert_ne!(first.ca_pem(), second.ca_pem());

        let record = first.record();
        assert!(!record.contains(value));
        let restored = SandboxCredentials::restore(&record, &[github]).unwrap();
        assert_eq!(restored.credentials.environment(), first.environment());
        assert_eq!(restored.credentials.ca_pem(), first.ca_pem());
        assert!(restored.lost_hosts.is_empty());
        assert!(SandboxCredentials::restore("{}", &[]).is_err());
    }

    #[test]
    fn restored_credentials_have_current_values_and_no_other_secrets() {
        let secret = |name: &str, value: &str, host: &str| definition(name, value, &[host], &[Location::Header]);
        let removed = secret("removed", "value-of-removed", "*.a.com:8443+private");
        let record =
            SandboxCredentials::generate(&[secret("changed", "value-0123456789", "b.com"), removed]).unwrap().record();
        let current = [secret("changed", "another-value-of-it", "c.com"), secret("new", "value-of-new", "d.com")];
        let RestoredCredentials { credentials, lost_hosts } = SandboxCredentials::restore(&record, &current).unwrap();
        let [changed] = credentials.bindings.as_slice() else { panic!("{credentials:?}") };
        assert_eq!(changed.definition, current[0]);
        assert!(record.contains(&changed.placeholder));
        assert_eq!(lost_hosts, ["*.a.com:8443+private".parse::<Rule>().unwrap()]);
    }

    #[test]
    fn debug_output_contains_no_value_and_no_placeholder() {
        let credentials =
            SandboxCredentials::generate(&[definition("a", "value-0123456789", &["a.com"], &[])]).unwrap();
        let shown = format!("{credentials:?} {:?}", credentials.bindings[0].definition);
        assert!(!shown.contains("0123456789") && !shown.contains(&credentials.bindings[0].placeholder), "{shown}");
        assert!(!shown.contains("PRIVATE"));
    }

    #[test]
    fn two_secrets_with_one_variable_are_refused() {
        let mut second = definition("b", "value-0123456789", &["a.com"], &[]);
        second.variable = "A".to_owned();
        let definitions = [definition("a", "value-0123456789", &["a.com"], &[]), second];
        assert!(matches!(SandboxCredentials::generate(&definitions), Err(CredentialsError::SameVariable { .. })));
    }
}
