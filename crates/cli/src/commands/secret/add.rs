//! `ringfence secret add NAME`.
#![allow(clippy::doc_markdown)] // the doc comments of arguments are the text of `--help`

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use ringfence_config::{OnExisting, SecretOrigin, SecretSettings, StoredSecret, default_variable};
use ringfence_egress::{Location, SecretValue};

use super::{load, value};
use crate::failure::Failure;
use crate::output::{hint, notice, print};

/// Maximum length of a name.
const MAX_NAME_CHARS: usize = 64;

/// Store a secret. Its value is read from standard input; on a terminal, you are prompted for it.
///
/// The value is never an argument, because other users can see arguments. A running ringfence server uses the secret
/// for new sandboxes.
#[derive(Args)]
#[command(after_help = "\
Examples:
  ringfence secret add github --host api.github.com --variable GITHUB_TOKEN
  gh auth token | ringfence secret add github --host api.github.com --variable GH_TOKEN --method GET
  ringfence secret add maps --host maps.googleapis.com --in query --from-env GOOGLE_MAPS_API_KEY")]
pub(super) struct Arguments {
    /// The name of the secret
    #[arg(value_parser = name)]
    name: String,
    /// A host that receives the value, as HOST[:PORT][+private]
    #[arg(long = "host", value_name = "HOST", required = true)]
    hosts: Vec<String>,
    /// The variable in which a sandbox finds the placeholder [default: that of --from-env, or the name in upper case]
    #[arg(long)]
    variable: Option<String>,
    /// An HTTP method of requests that receive the value [default: all]
    #[arg(long = "method", value_name = "METHOD")]
    methods: Vec<String>,
    /// A path of requests that receive the value, such as /user or /repos/* [default: all]
    #[arg(long = "path", value_name = "PATH")]
    paths: Vec<String>,
    /// A part of requests in which the value is inserted [default: header]
    #[arg(long = "in", value_name = "PART", value_enum)]
    locations: Vec<LocationOption>,
    /// Take the value from this environment variable
    #[arg(long, value_name = "VARIABLE", conflicts_with = "from_file")]
    from_env: Option<String>,
    /// Read the value from this file
    #[arg(long, value_name = "PATH")]
    from_file: Option<PathBuf>,
    /// Replace an existing secret with this name
    #[arg(long)]
    replace: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LocationOption {
    /// The value of a header field
    Header,
    /// The query of the URL
    Query,
    /// The user name or password of Basic credentials
    Basic,
}

impl From<LocationOption> for Location {
    fn from(option: LocationOption) -> Self {
        match option {
            LocationOption::Header => Self::Header,
            LocationOption::Query => Self::Query,
            LocationOption::Basic => Self::Basic,
        }
    }
}

fn name(text: &str) -> Result<String, String> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if text.is_empty() || !text.chars().all(is_valid) || text.len() > MAX_NAME_CHARS {
        return Err(format!("use letters, digits, `-` and `_`, at most {MAX_NAME_CHARS}"));
    }
    Ok(text.to_owned())
}

pub(super) fn run(arguments: &Arguments, config: Option<&PathBuf>) -> Result<ExitCode, Failure> {
    let configuration = load(config)?;
    let (name, settings) = (&arguments.name, arguments.settings());
    settings
        .check()
        .map_err(|error| Failure::new(format!("cannot add the secret `{name}`: {error}")).hint(error.hint()))?;
    let store = configuration.secret_store()?;
    if !arguments.replace && store.read()?.contains_key(name) {
        // Before the prompt.
        return Err(Failure::new(format!("the secret `{name}` already exists"))
            .hint("choose another name, or replace it with --replace"));
    }
    let source = match (&arguments.from_env, &arguments.from_file) {
        (Some(variable), _) => value::Source::Variable(variable),
        (None, Some(path)) => value::Source::File(path),
        (None, None) => value::Source::StandardInput { secret: name },
    };
    let value = SecretValue::new(&value::read(source)?)
        .map_err(|error| Failure::new(format!("cannot add the secret `{name}`: {error}")))?;
    let on_existing = if arguments.replace { OnExisting::Replace } else { OnExisting::Refuse };
    store.add(name, StoredSecret { value, settings: settings.clone() }, on_existing)?;
    print(&format!("added {name} (variable {}, for {})\n", settings.variable, settings.hosts.join(", ")))?;
    let listed = configuration.list_secrets()?.into_iter().find(|listed| listed.name == *name);
    if let Some(SecretOrigin::Store { replaces: Some(origin) }) = listed.map(|listed| listed.origin) {
        notice(&format!("it is used instead of [secrets.{name}] at {origin}"));
    }
    if arguments.replace {
        notice("running sandboxes use the previous value until they end");
    }
    hint(&format!(
        "give it to a server with `ringfence server add NAME --secret {name} -- COMMAND`, or to sessions with \
         secrets = [\"{name}\"] and allow = {} under [sessions]",
        allow_list(&settings.hosts)
    ));
    Ok(ExitCode::SUCCESS)
}

fn allow_list(hosts: &[String]) -> String {
    format!("[{}]", hosts.iter().map(|host| format!("\"{host}\"")).collect::<Vec<_>>().join(", "))
}

impl Arguments {
    fn settings(&self) -> SecretSettings {
        let default = || self.from_env.clone().unwrap_or_else(|| default_variable(&self.name));
        let locations = self.locations.iter().map(|location| (*location).into());
        SecretSettings {
            variable: self.variable.clone().unwrap_or_else(default),
            hosts: self.hosts.clone(),
            methods: self.methods.clone(),
            paths: self.paths.clone(),
            locations: if self.locations.is_empty() { [Location::Header].into() } else { locations.collect() },
        }
    }
}
