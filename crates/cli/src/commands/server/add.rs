//! `ringfence server add NAME … -- COMMAND ARGS…`.
#![allow(clippy::doc_markdown)] // the doc comments of arguments are the text of `--help`

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use ringfence_core::suggest::closest;
use ringfence_entries::{EntryError, entry_from_json, required_variables, resolve_relative_paths};
use ringfence_servers::{check_installation, read_write_volumes};
use ringfence_store::{OnConflict, StoreError};
use serde_json::{Map, Value, json};

use super::box_option::BoxOption;
use super::registry::Registry;
use crate::failure::Failure;
use crate::output::{notice, print};

/// Add a server: a command that runs in a sandbox, or a URL.
///
/// ${VAR}, ${env:VAR} and ${VAR:-DEFAULT} in any value are stored unchanged and replaced when the server starts. Quote
/// them, so that your shell does not replace them.
#[derive(Args)]
#[command(after_help = "\
Examples:
  ringfence server add time -- uvx mcp-server-time
  ringfence server add github --secret github -- npx -y @modelcontextprotocol/server-github
  ringfence server add docs --url https://docs.example/mcp --header 'Authorization=Bearer ${DOCS_TOKEN}'")]
pub(crate) struct Arguments {
    /// The name of the server; clients see its tools as NAME__TOOL
    name: String,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "url", conflicts_with = "url")]
    command: Vec<String>,
    /// An environment variable of the command; without a value, it is taken from the environment of ringfence
    #[arg(long, value_name = "NAME[=VALUE]", conflicts_with = "url")]
    env: Vec<Pair>,
    /// A secret that the command uses without seeing its value; its hosts are added to the setting `allow`
    #[arg(long = "secret", value_name = "NAME", conflicts_with_all = ["url", "no_sandbox"])]
    secrets: Vec<String>,
    /// The working directory of the command
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "url")]
    cwd: Option<String>,
    /// A setting of the sandbox: allow=HOST[:PORT][+private],… (hosts that the server may reach), network=on|off (network
    /// during the installation of dependencies), host_path=PATH, host_path_mode=ro|rw, env.NAME=VALUE, memory_mb, cpus, pids_limit,
    /// startup_timeout_sec, read_only_rootfs, shared, image, secrets=NAME,…
    #[arg(long = "box", value_name = "KEY=VALUE", conflicts_with = "url")]
    box_options: Vec<BoxOption>,
    /// Run the command on the host without a sandbox
    #[arg(long, conflicts_with = "url")]
    no_sandbox: bool,
    /// The URL of a remote server
    #[arg(long)]
    url: Option<String>,
    /// The transport to the URL [default: remote, which tries http, then sse; websocket for ws:// URLs]
    #[arg(long, value_enum, requires = "url")]
    mode: Option<ModeOption>,
    /// A header to send with every request to the URL
    #[arg(long = "header", value_name = "NAME=VALUE", requires = "url")]
    headers: Vec<Header>,
    /// Maximum time to wait for the server at the URL, in seconds [default: 10]
    #[arg(long, value_name = "SECONDS", requires = "url")]
    timeout: Option<f64>,
    /// A description of the server
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Add the server without starting it
    #[arg(long)]
    disabled: bool,
    /// Replace an existing server with this name
    #[arg(long)]
    replace: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeOption {
    Http,
    Sse,
    Websocket,
    Remote,
}

/// `NAME=VALUE`, or `NAME` for the value in the environment in which the server is started.
#[derive(Debug, Clone)]
struct Pair(String, String);

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => (text, format!("${{{text}}}")),
        };
        if name.is_empty() { Err(format!("`{text}` has no name")) } else { Ok(Self(name.into(), value)) }
    }
}

/// `NAME=VALUE`, or `NAME: VALUE` as in HTTP.
#[derive(Debug, Clone)]
struct Header(String, String);

impl FromStr for Header {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(['=', ':']).ok_or_else(|| format!("`{text}` is not NAME=VALUE"))?;
        Ok(Self(name.trim().into(), value.trim().into()))
    }
}

pub(super) fn run(arguments: &Arguments, config: Option<&PathBuf>) -> Result<ExitCode, Failure> {
    let registry = Registry::open(config)?;
    let mut value = arguments.entry();
    if !arguments.secrets.is_empty() {
        add_secrets(&mut value, &arguments.secrets, &registry)?;
    }
    let directory = std::env::current_dir()
        .map_err(|error| Failure::new("cannot determine the current directory").caused_by(&error))?;
    resolve_relative_paths(&mut value, &directory);
    let (entry, warnings) = entry_from_json(&arguments.name, &value).map_err(|error| invalid_entry(&error))?;
    for warning in &warnings {
        notice(&warning.to_string());
    }
    for variable in required_variables(&entry).iter().filter(|name| std::env::var_os(name).is_none()) {
        notice(&format!("{variable} is not set; set it in the environment in which ringfence is started"));
    }
    let writable = registry.guest_writable();
    // Nothing is registered as executed, so no volume is refused. The read-write volumes of this entry count too.
    let _ = writable.add(&read_write_volumes(&entry));
    check_installation(&entry, &writable)
        .map_err(|error| error.hints.iter().fold(Failure::new(&error.message), Failure::hint))?;
    let on_conflict = if arguments.replace { OnConflict::Replace } else { OnConflict::Refuse };
    let added = registry.wait(registry.store.add_server(entry, None, on_conflict)).map_err(|error| match error {
        StoreError::NameTaken { name } => Failure::new(format!("the server `{name}` already exists"))
            .hint("choose another name, or replace it with --replace"),
        other => other.into(),
    })?;
    print(&format!("added {} ({})\n", added.name, added.transport.mode()))
}

/// Adds secrets to the sandbox of an entry, and their hosts to those that it may reach.
fn add_secrets(entry: &mut Value, names: &[String], registry: &Registry) -> Result<(), Failure> {
    let listed = registry.configuration.list_secrets()?;
    let known = || listed.iter().map(|secret| secret.name.as_str());
    let mut add = |key: &str, item: &str| {
        let list = &mut entry["box"][key];
        if list.is_null() {
            *list = json!([]);
        }
        if let Value::Array(list) = list
            && !list.iter().any(|other| other == item)
        {
            list.push(item.into());
        }
    };
    for name in names {
        let Some(secret) = listed.iter().find(|secret| secret.name == *name) else {
            let failure = Failure::new(format!("secret not found: {name}"));
            return Err(match closest(name, known()) {
                Some(similar) => failure.hint(format!("did you mean `{similar}`?")),
                None => failure.hint(format!("add it with `ringfence secret add {name} --host HOST`")),
            });
        };
        add("secrets", name);
        secret.settings.hosts.iter().for_each(|host| add("allow", host));
    }
    Ok(())
}

fn invalid_entry(error: &EntryError) -> Failure {
    error.hints().into_iter().fold(Failure::new(error.to_string()), Failure::hint)
}

impl Arguments {
    /// Returns the entry in the format of a configuration file.
    fn entry(&self) -> Value {
        let mut entry = Map::new();
        let table = |pairs: Vec<(&String, &String)>| -> Value {
            pairs
                .into_iter()
                .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
                .collect::<Map<_, _>>()
                .into()
        };
        if let Some(url) = &self.url {
            entry.insert("url".into(), url.as_str().into());
            entry.insert(
                "headers".into(),
                table(self.headers.iter().map(|Header(name, value)| (name, value)).collect()),
            );
            let mode = self.mode.map(|mode| match mode {
                ModeOption::Http => "http",
                ModeOption::Sse => "sse",
                ModeOption::Websocket => "websocket",
                ModeOption::Remote => "remote",
            });
            entry.extend(mode.map(|mode| ("mode".to_owned(), mode.into())));
            entry.extend(self.timeout.map(|seconds| ("timeout".to_owned(), json!(seconds))));
        } else {
            entry.insert("command".into(), self.command.clone().into());
            entry.insert("env".into(), table(self.env.iter().map(|Pair(name, value)| (name, value)).collect()));
            entry.extend(self.cwd.as_ref().map(|cwd| ("cwd".to_owned(), cwd.as_str().into())));
            let mut settings = Map::new();
            self.box_options.iter().for_each(|option| option.insert_into(&mut settings));
            entry.insert("box".into(), settings.into());
            entry.insert("sandbox".into(), (!self.no_sandbox).into());
        }
        entry.extend(self.description.as_ref().map(|text| ("description".to_owned(), text.as_str().into())));
        entry.insert("enable".into(), (!self.disabled).into());
        entry.into()
    }
}
