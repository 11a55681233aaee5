//! `ringfence template build`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ringfence_servers::Progress;

use super::{Builder, failed};
use crate::failure::Failure;
use crate::output::{print, status};

/// Install the packages of a template.
///
/// They are installed from the registries that pip of this host is set to, in a sandbox that can connect to nothing else.
/// Running servers use them at once.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The name of the template
    name: String,
    /// The configuration file that defines the template
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Builder { configuration, host, runtime } = Builder::open(arguments.config.as_ref())?;
    let template = configuration.sessions.templates.find(&arguments.name).map_err(|error| {
        Failure::new(error.to_string()).hint("define it in the configuration file, as [templates.NAME]")
    })?;
    let name = &template.name;
    if template.packages.is_empty() {
        return Err(Failure::new(format!("template {name} has no packages to install"))
            .hint(format!("set `packages = [\"NAME\", …]` in [templates.{name}]")));
    }
    let built = runtime.block_on(async {
        if host.is_template_built(template).await? {
            return Ok(false);
        }
        let progress = Progress::new(|_, step| status(step));
        let built = host.build_template(template, &progress).await.map(|_| true);
        host.shut_down().await;
        built
    });
    let built = built.map_err(|failure| failed(format!("cannot build template {name}"), failure))?;
    print(&if built { format!("built template {name}\n") } else { format!("template {name} was built already\n") })
}
