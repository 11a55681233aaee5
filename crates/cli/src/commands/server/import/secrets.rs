//! `--secrets`: moves tokens of imported entries into secrets.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_config::{OnExisting, SecretOrigin, SecretSettings, SecretStore, StoredSecret};
use ringfence_core::suggest::join;
use ringfence_entries::{ServerEntry, Transport};
use ringfence_servers::import::{Service, TokenKind, find_tokens, replace_token};
use ringfence_store::StoredServer;
use serde_json::{Value, json};

use crate::commands::server::registry::Registry;
use crate::failure::Failure;

/// Whether secrets are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    Real,
    Dry,
}

/// A token that was moved, or would be.
pub(super) struct MovedToken {
    pub(super) variable: String,
    pub(super) secret: String,
    pub(super) hosts: &'static [&'static str],
}

/// What happened to the tokens of an entry.
#[derive(Default)]
pub(super) struct MovedTokens {
    pub(super) moved: Vec<MovedToken>,
    /// Notes about tokens that stay in the entry.
    pub(super) notes: Vec<String>,
}

/// Moves tokens into the store of secrets.
pub(super) struct TokenMover {
    store: SecretStore,
    run: Run,
    /// The stored secrets, with those that a dry run would add.
    stored: BTreeMap<String, StoredSecret>,
    /// The names of secrets in the configuration.
    configured: BTreeSet<String>,
}

impl TokenMover {
    pub(super) fn open(registry: &Registry, run: Run) -> Result<Self, Failure> {
        let store = registry.configuration.secret_store()?;
        let stored = store.read()?;
        let listed = registry.configuration.list_secrets()?;
        let is_configured = |origin: &SecretOrigin| !matches!(origin, SecretOrigin::Store { replaces: None });
        let configured = listed.into_iter().filter(|secret| is_configured(&secret.origin)).map(|secret| secret.name);
        Ok(Self { store, run, stored, configured: configured.collect() })
    }

    /// Moves the tokens of an entry. `existing` are the stored entries, of which one may be replaced.
    pub(super) fn move_tokens(
        &mut self,
        entry: &mut ServerEntry,
        existing: &[StoredServer],
    ) -> Result<MovedTokens, Failure> {
        let mut tokens = MovedTokens::default();
        for token in find_tokens(entry) {
            let variable = token.variable;
            match token.kind {
                TokenKind::OfService { service, value } => {
                    let secret = StoredSecret { value, settings: settings(service, &variable) };
                    let name = self.choose_name(service, &entry.name, &secret, existing);
                    if self.stored.get(&name) != Some(&secret) {
                        if self.run == Run::Real {
                            self.store.add(&name, secret.clone(), OnExisting::Replace)?;
                        }
                        self.stored.insert(name.clone(), secret);
                    }
                    replace_token(entry, &variable, &name, service.hosts);
                    tokens.moved.push(MovedToken { variable, secret: name, hosts: service.hosts });
                }
                TokenKind::Remains { reason, is_movable } => {
                    let name = variable.to_lowercase().replace('_', "-");
                    let hint = format!(
                        "; to move it: `ringfence secret add {name} --variable {variable} --host HOST`, then add the \
                         server again with `--secret {name}` and without the variable"
                    );
                    let hint = if is_movable { hint.as_str() } else { "" };
                    tokens.notes.push(format!("{variable} looks like a token and stays in the entry: {reason}{hint}"));
                }
            }
        }
        Ok(tokens)
    }

    /// Returns the name of a new secret, of one with the same value, or of one that only the replaced entry uses.
    fn choose_name(&self, service: &Service, server: &str, secret: &StoredSecret, existing: &[StoredServer]) -> String {
        let names_it = |stored: &StoredServer, name: &str| match stored.entry.as_ref().map(|entry| &entry.transport) {
            Ok(Transport::Stdio(settings)) => settings.sandbox_settings.secrets.iter().any(|other| other == name),
            _ => false,
        };
        let is_usable = |name: &String| {
            if self.configured.contains(name) {
                return false;
            }
            let mut users = existing.iter().filter(|stored| names_it(stored, name));
            let is_only_of_server = users.next().is_some_and(|user| user.name == server) && users.next().is_none();
            // A secret with other hosts, methods or paths is one that the user has restricted.
            let is_rotated = |stored: &StoredSecret| is_only_of_server && stored.settings == secret.settings;
            self.stored.get(name).is_none_or(|stored| stored == secret || is_rotated(stored))
        };
        let valid = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        let with_server = format!("{}-{}", service.name, server.chars().map(valid).take(32).collect::<String>());
        let numbered = (2..).map(|number| format!("{with_server}-{number}"));
        let mut candidates = [service.name.to_owned(), with_server.clone()].into_iter().chain(numbered);
        candidates.find(is_usable).unwrap_or_else(|| service.name.to_owned())
    }
}

fn settings(service: &Service, variable: &str) -> SecretSettings {
    SecretSettings {
        variable: variable.to_owned(),
        hosts: service.hosts.iter().map(|host| (*host).to_owned()).collect(),
        methods: Vec::new(),
        paths: Vec::new(),
        locations: service.locations().iter().copied().collect(),
    }
}

impl MovedToken {
    pub(super) fn to_json(&self) -> Value {
        json!({"name": self.secret, "variable": self.variable, "hosts": self.hosts})
    }

    /// Returns a note about the token.
    pub(super) fn note(&self, run: Run) -> String {
        let Self { variable, secret, hosts } = self;
        let becomes = if run == Run::Dry { "would become" } else { "is now" };
        format!("{variable} {becomes} the secret `{secret}`, for {}", join(hosts.iter().copied()))
    }
}
