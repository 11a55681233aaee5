//! `ringfence template list`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ringfence_core::Template;
use ringfence_servers::Host;
use serde_json::json;

use super::Builder;
use crate::failure::Failure;
use crate::output::{print, print_json, visible};
use crate::table::{header, table};

/// List the templates, their packages, and whether these are installed.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The configuration file that defines templates
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Builder { configuration, host, runtime } = Builder::open(arguments.config.as_ref())?;
    let templates: Vec<(&Template, String)> = runtime.block_on(async {
        let mut templates = Vec::new();
        for template in configuration.sessions.templates.iter() {
            templates.push((template, state(&host, template).await));
        }
        templates
    });
    if arguments.json {
        let describe = |(template, state): &(&Template, String)| {
            json!({
                "name": *template.name,
                "language": template.language.name(),
                "packages": template.packages,
                "state": state,
            })
        };
        return print_json(&templates.iter().map(describe).collect());
    }
    let mut rows = vec![header(["NAME", "LANGUAGE", "STATE", "PACKAGES"])];
    rows.extend(templates.into_iter().map(|(template, state)| {
        let packages = if template.packages.is_empty() { "-".into() } else { template.packages.join(", ") };
        vec![visible(&template.name), template.language.name().into(), visible(&state), packages]
    }));
    print(&table(&rows))
}

/// A template without packages needs no build.
async fn state(host: &Host, template: &Template) -> String {
    if template.packages.is_empty() {
        return "ready".into();
    }
    match host.is_template_built(template).await {
        Ok(true) => "ready".into(),
        Ok(false) => "not built".into(),
        Err(failure) => format!("cannot be built: {failure}"),
    }
}
