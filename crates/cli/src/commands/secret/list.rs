//! `ringfence secret list`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ringfence_config::{ListedSecret, Origin, SecretOrigin};
use serde_json::{Value, json};

use super::load;
use crate::failure::Failure;
use crate::output::{notice, print, print_json, status};
use crate::table::{header, table};

/// List the secrets without their values.
#[derive(Args)]
pub(super) struct Arguments {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments, config: Option<&PathBuf>) -> Result<ExitCode, Failure> {
    let secrets = load(config)?.list_secrets()?;
    for secret in &secrets {
        if let SecretOrigin::Store { replaces: Some(origin) } = &secret.origin {
            notice(&format!("[secrets.{0}] at {origin} is not used: the stored secret `{0}` replaces it", secret.name));
        }
    }
    if arguments.json {
        let secrets: Vec<Value> = secrets.iter().map(describe).collect();
        return print_json(&json!({"secrets": secrets}));
    }
    if secrets.is_empty() {
        status("no secrets");
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![header(["NAME", "VARIABLE", "HOSTS", "REQUESTS", "IN", "SOURCE"])];
    rows.extend(secrets.iter().map(row));
    print(&table(&rows))
}

fn row(secret: &ListedSecret) -> Vec<String> {
    let settings = &secret.settings;
    let requests = [settings.methods.join(","), settings.paths.join(",")];
    let requests: Vec<String> = requests.into_iter().filter(|part| !part.is_empty()).collect();
    let locations: Vec<&str> = settings.locations.iter().map(|location| location.name()).collect();
    vec![
        secret.name.clone(),
        settings.variable.clone(),
        settings.hosts.join(","),
        if requests.is_empty() { "all".into() } else { requests.join(" ") },
        locations.join(","),
        match &secret.origin {
            SecretOrigin::Store { .. } => "store".into(),
            SecretOrigin::Configuration { origin, key } => format!("{origin} ({key})"),
        },
    ]
}

fn describe(secret: &ListedSecret) -> Value {
    let settings = &secret.settings;
    let source = match &secret.origin {
        SecretOrigin::Store { .. } => json!({"kind": "store"}),
        SecretOrigin::Configuration { origin: Origin::File { path, line }, key } => {
            json!({"kind": "configuration", "path": path, "line": line, "key": key})
        }
        SecretOrigin::Configuration { key, .. } => json!({"kind": "configuration", "key": key}),
    };
    json!({
        "name": secret.name,
        "variable": settings.variable,
        "hosts": settings.hosts,
        "methods": settings.methods,
        "paths": settings.paths,
        "in": settings.locations.iter().map(|location| location.name()).collect::<Vec<_>>(),
        "source": source,
    })
}
