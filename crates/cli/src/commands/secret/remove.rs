//! `ringfence secret remove NAME…`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ringfence_config::{Configuration, ListedSecret, SecretOrigin};
use ringfence_core::suggest::{closest, join};
use ringfence_entries::Transport;

use super::load;
use crate::commands::server::registry::Registry;
use crate::configuration::sources;
use crate::failure::Failure;
use crate::output::{hint, notice, print};

/// Remove secrets that were added with `ringfence secret add`.
///
/// New sandboxes no longer get the secret. Running ones use its value until they end.
#[derive(Args)]
pub(super) struct Arguments {
    /// The names of the secrets
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

pub(super) fn run(arguments: &Arguments, config: Option<&PathBuf>) -> Result<ExitCode, Failure> {
    let configuration = load(config)?;
    let store = configuration.secret_store()?;
    for name in &arguments.names {
        let listed = configuration.list_secrets()?;
        if !store.remove(name)? {
            return Err(not_stored(name, &listed));
        }
        print(&format!("removed {name}\n"))?;
        let origin = listed.into_iter().find(|secret| secret.name == *name).map(|secret| secret.origin);
        if let Some(SecretOrigin::Store { replaces: Some(origin) }) = origin {
            notice(&format!("[secrets.{name}] at {origin} is used again after the next start of ringfence"));
        } else {
            warn_users(name, &users(name, &configuration, config)?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn warn_users(name: &str, users: &[String]) {
    if !users.is_empty() {
        notice(&format!("warning: the secret `{name}` is still used by {}", join(users.iter().map(String::as_str))));
        hint(&format!("remove the name there, or add the secret again with `ringfence secret add {name}`"));
    }
}

/// Returns the keys of the configuration and the servers that name a secret.
fn users(name: &str, configuration: &Configuration, config: Option<&PathBuf>) -> Result<Vec<String>, Failure> {
    let mut users = Vec::new();
    let network = &configuration.sessions.network;
    let names_it = |names: &[String]| names.iter().any(|other| other == name);
    if names_it(&network.secret_names) {
        users.push("sessions.secrets".to_owned());
    }
    for (template, names) in &network.template_secret_names {
        users.extend(names_it(names).then(|| format!("templates.{template}.secrets")));
    }
    let registry = Registry::with_missing_secrets(sources(config.cloned(), Vec::new()))?;
    for server in registry.listing().servers {
        if let Transport::Stdio(settings) = &server.entry.transport
            && names_it(&settings.sandbox_settings.secrets)
        {
            users.push(format!("the server `{}`", server.entry.name));
        }
    }
    Ok(users)
}

fn not_stored(name: &str, listed: &[ListedSecret]) -> Failure {
    let found = listed.iter().find(|secret| secret.name == name);
    if let Some(SecretOrigin::Configuration { origin, .. }) = found.map(|secret| &secret.origin) {
        return Failure::new(format!("the secret `{name}` is defined at {origin}, not in the store"))
            .hint("remove the table there, and restart ringfence");
    }
    let failure = Failure::new(format!("secret not found: {name}"));
    match closest(name, listed.iter().map(|secret| secret.name.as_str())) {
        Some(similar) => failure.hint(format!("did you mean `{similar}`?")),
        None => failure.hint("list all secrets with `ringfence secret list`"),
    }
}
