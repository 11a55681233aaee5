//! `ringfence server import`.
#![allow(clippy::doc_markdown)] // the doc comments of arguments are the text of `--help`

mod secrets;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use ringfence_entries::entry_to_redacted_json;
use ringfence_servers::import::{CLIENTS, Client, FoundServer, Scope, SkipReason, UserDirectories, find_client, scan};
use ringfence_store::{OnConflict, StoredServer};
use serde_json::{Value, json};

use super::registry::Registry;
use crate::failure::Failure;
use crate::output::{hint, print, print_json, status, visible};
use crate::table::{header, table};
use secrets::{MovedToken, Run, TokenMover};

/// Import servers from the configuration of MCP clients on this host.
///
/// Reads all known configuration files of clients in your home directory and in the current directory. If a name is
/// defined more than once, the first definition wins. The files are not changed; ${VAR} is stored unchanged. Imported
/// servers always run in a sandbox. Files that guests may write (in read-write volumes of the configuration and of other
/// servers) are skipped.
#[derive(Args)]
#[allow(clippy::struct_excessive_bools)] // each is a flag
pub(crate) struct Arguments {
    /// Import from this client only
    #[arg(long, value_name = "CLIENT", value_parser = known_client)]
    from: Option<&'static Client>,
    /// Show what would be imported, but import nothing
    #[arg(long)]
    dry_run: bool,
    /// Replace existing servers with the same names
    #[arg(long)]
    replace: bool,
    /// Move tokens of well-known services from the variables of servers into secrets
    ///
    /// The servers get placeholders, and may reach the hosts of their secrets. Tokens of other services stay in the
    /// entries. `ringfence secret list` lists the secrets.
    #[arg(long)]
    secrets: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

fn known_client(id: &str) -> Result<&'static Client, String> {
    let ids: Vec<&str> = CLIENTS.iter().map(|client| client.id).collect();
    find_client(id).ok_or_else(|| format!("unknown client `{id}`; use one of {}", ids.join(", ")))
}

/// The result for one server, or for one file that was skipped.
struct Outcome {
    name: Option<String>,
    client: &'static str,
    path: PathBuf,
    skipped: Option<SkipReason>,
    notes: Vec<String>,
    tokens: Vec<MovedToken>,
    entry: Option<Value>,
    enable: bool,
}

pub(super) fn run(arguments: &Arguments, config: Option<&PathBuf>) -> Result<ExitCode, Failure> {
    let directories = UserDirectories::of_process().ok_or_else(|| {
        Failure::new("cannot determine the home directory").hint("set HOME to the home directory of the clients' user")
    })?;
    let registry = Registry::open(config)?;
    let import = scan(&directories, Scope::UserAndProject, arguments.from, &registry.guest_writable());
    let existing = registry.wait(registry.store.servers())?;
    let mut mover = if arguments.secrets { Some(TokenMover::open(&registry, arguments.run())?) } else { None };
    let mut outcomes = Vec::new();
    for found in import.found {
        outcomes.push(import_one(found, arguments, &registry, &existing, mover.as_mut())?);
    }
    outcomes.extend(import.skipped.into_iter().map(|skipped| Outcome {
        name: skipped.name,
        client: skipped.client.title,
        path: skipped.path,
        skipped: Some(skipped.reason),
        notes: Vec::new(),
        tokens: Vec::new(),
        entry: None,
        enable: true,
    }));
    let files: Vec<(&str, &Path, usize)> =
        import.files.iter().map(|file| (file.client.title, file.path.as_path(), file.servers)).collect();
    if arguments.json {
        return print_json(&to_json(&outcomes, &files));
    }
    if files.is_empty() && outcomes.is_empty() {
        status("no configuration of a client with servers found");
        return Ok(ExitCode::SUCCESS);
    }
    print(&to_text(&outcomes, &files, arguments, &directories.home))?;
    show_notes(&outcomes, &directories.home);
    Ok(ExitCode::SUCCESS)
}

fn import_one(
    found: FoundServer,
    arguments: &Arguments,
    registry: &Registry,
    existing: &[StoredServer],
    mover: Option<&mut TokenMover>,
) -> Result<Outcome, Failure> {
    let FoundServer { mut entry, client, path, mut notes } = found;
    let (mut skipped, mut tokens) = (None, Vec::new());
    if existing.iter().any(|server| server.name == entry.name) && !arguments.replace {
        let message = "a server with this name already exists".to_owned();
        skipped = Some(SkipReason { message, hint: Some("replace it with --replace".into()) });
    } else if let Some(mover) = mover {
        // Before the entry is stored: a running server starts it at once.
        let moved = mover.move_tokens(&mut entry, existing)?;
        notes.extend(moved.moved.iter().map(|token| token.note(arguments.run())));
        notes.extend(moved.notes);
        tokens = moved.moved;
    }
    let outcome = Outcome {
        name: Some(entry.name.clone()),
        client: client.title,
        path: path.clone(),
        skipped,
        notes,
        tokens,
        entry: Some(entry_to_redacted_json(&entry)),
        enable: entry.enable,
    };
    if outcome.skipped.is_none() && !arguments.dry_run {
        let origin = format!("{}, {}", client.title, path.display());
        registry.wait(registry.store.add_server(entry, Some(origin), OnConflict::Replace))?;
    }
    Ok(outcome)
}

impl Arguments {
    fn run(&self) -> Run {
        if self.dry_run { Run::Dry } else { Run::Real }
    }
}

fn to_json(outcomes: &[Outcome], files: &[(&str, &Path, usize)]) -> Value {
    let origin = |outcome: &Outcome| json!({"name": outcome.name, "client": outcome.client, "path": outcome.path});
    let imported = outcomes.iter().filter(|outcome| outcome.skipped.is_none()).map(|outcome| {
        let mut value = origin(outcome);
        value["entry"] = outcome.entry.clone().unwrap_or_default();
        value["notes"] = outcome.notes.clone().into();
        let secrets = outcome.tokens.iter().map(MovedToken::to_json);
        value["secrets"] = secrets.collect::<Vec<_>>().into();
        value
    });
    let skipped = outcomes.iter().filter_map(|outcome| {
        let SkipReason { message, hint } = outcome.skipped.as_ref()?;
        let mut value = origin(outcome);
        value["reason"] = message.as_str().into();
        value["hint"] = hint.clone().into();
        Some(value)
    });
    let files = files.iter().map(|(client, path, servers)| json!({"client": client, "path": path, "servers": servers}));
    json!({
        "imported": imported.collect::<Vec<_>>(),
        "skipped": skipped.collect::<Vec<_>>(),
        "files": files.collect::<Vec<_>>(),
    })
}

fn to_text(outcomes: &[Outcome], files: &[(&str, &Path, usize)], arguments: &Arguments, home: &Path) -> String {
    let mut rows = vec![header(["CLIENT", "FILE", "SERVERS"])];
    rows.extend(
        files
            .iter()
            .map(|(client, path, servers)| vec![(*client).to_owned(), short_path(path, home), servers.to_string()]),
    );
    let files = table(&rows);
    let imported = if arguments.dry_run { "would be imported" } else { "imported" };
    let mut rows = vec![header(["SERVER", "CLIENT", "OUTCOME"])];
    for outcome in outcomes {
        let result = match &outcome.skipped {
            Some(reason) => format!("skipped: {}", reason.message),
            None if outcome.enable => imported.to_owned(),
            None => format!("{imported}, disabled"),
        };
        rows.push(vec![outcome.name_or_path(home), outcome.client.to_owned(), result]);
    }
    let servers = table(&rows);
    let skipped = outcomes.iter().filter(|outcome| outcome.skipped.is_some()).count();
    format!("{files}\n{servers}\n{} {imported}, {skipped} skipped\n", outcomes.len() - skipped)
}

/// Writes the notes and hints of all outcomes to standard error.
fn show_notes(outcomes: &[Outcome], home: &Path) {
    for outcome in outcomes {
        let name = visible(&outcome.name_or_path(home));
        for note in &outcome.notes {
            status(&format!("note: {name}: {}", visible(note)));
        }
        if let Some(text) = outcome.skipped.as_ref().and_then(|reason| reason.hint.as_ref()) {
            hint(&format!("{name}: {}", visible(text)));
        }
    }
}

impl Outcome {
    fn name_or_path(&self, home: &Path) -> String {
        self.name.clone().unwrap_or_else(|| short_path(&self.path, home))
    }
}

/// Returns a path with `~` for the home directory.
fn short_path(path: &Path, home: &Path) -> String {
    match path.strip_prefix(home) {
        Ok(rest) => format!("~/{}", rest.display()),
        Err(_) => path.display().to_string(),
    }
}
