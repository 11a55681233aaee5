//! `ringfence server import`.
#![allow(clippy::doc_markdown)] // the comments on arguments are what `--help` shows

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use ringfence_entries::entry_to_redacted_json;
use ringfence_servers::import::{CLIENTS, Client, Found, Places, Reason, Scope, client, scan};
use ringfence_store::OnConflict;
use serde_json::{Value, json};

use super::registry::Registry;
use crate::commands::session::{print, print_json, table, visible};
use crate::failure::Failure;

/// Import servers from the clients that are configured on this machine.
///
/// Every place where clients keep servers is looked at, in your home and in this directory. The first definition of a
/// name wins. Nothing of the clients is changed, and ${VAR} is stored as it is written. What is imported runs in a
/// sandbox, whatever its entry says. Files that guests may write (read-write volumes of the configuration and of other
/// servers) are skipped.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Look at one client only
    #[arg(long, value_name = "CLIENT", value_parser = known_client)]
    from: Option<&'static Client>,
    /// Tell what would be imported, and import nothing
    #[arg(long)]
    dry_run: bool,
    /// Replace servers that are there already
    #[arg(long)]
    replace: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

fn known_client(id: &str) -> Result<&'static Client, String> {
    let ids: Vec<&str> = CLIENTS.iter().map(|client| client.id).collect();
    client(id).ok_or_else(|| format!("there are {}", ids.join(", ")))
}

/// One server or file, and what became of it.
struct Outcome {
    name: Option<String>,
    client: &'static str,
    path: PathBuf,
    skipped: Option<Reason>,
    notes: Vec<String>,
    entry: Option<Value>,
    enable: bool,
}

pub(super) fn run(arguments: &Arguments, config: Option<&PathBuf>) -> Result<ExitCode, Failure> {
    let places = Places::of_process().ok_or_else(|| {
        Failure::new("there is no home to look in").hint("set HOME to the home of whose clients are meant")
    })?;
    let registry = Registry::open(config)?;
    let import = scan(&places, Scope::UserAndProject, arguments.from, &registry.guest_writable());
    let there: BTreeSet<String> =
        registry.wait(registry.store.servers())?.into_iter().map(|server| server.name).collect();
    let mut outcomes = Vec::new();
    for found in import.found {
        outcomes.push(take(found, arguments, &registry, &there)?);
    }
    outcomes.extend(import.skipped.into_iter().map(|skipped| Outcome {
        name: skipped.name,
        client: skipped.client.title,
        path: skipped.path,
        skipped: Some(skipped.reason),
        notes: Vec::new(),
        entry: None,
        enable: true,
    }));
    let files: Vec<(&str, &Path, usize)> =
        import.files.iter().map(|file| (file.client.title, file.path.as_path(), file.servers)).collect();
    if arguments.json {
        print_json(&as_json(&outcomes, &files))
    } else {
        print(&as_text(&outcomes, &files, arguments, &places))
    }
}

fn take(
    found: Found,
    arguments: &Arguments,
    registry: &Registry,
    there: &BTreeSet<String>,
) -> Result<Outcome, Failure> {
    let Found { entry, client, path, notes } = found;
    let mut outcome = Outcome {
        name: Some(entry.name.clone()),
        client: client.title,
        path: path.clone(),
        skipped: None,
        notes,
        entry: Some(entry_to_redacted_json(&entry)),
        enable: entry.enable,
    };
    if there.contains(&entry.name) && !arguments.replace {
        let why = "there is a server of this name already".to_owned();
        outcome.skipped = Some(Reason { why, hint: Some("replace it with --replace".into()) });
    } else if !arguments.dry_run {
        let origin = format!("{}, {}", client.title, path.display());
        registry.wait(registry.store.add_server(entry, Some(origin), OnConflict::Replace))?;
    }
    Ok(outcome)
}

fn as_json(outcomes: &[Outcome], files: &[(&str, &Path, usize)]) -> Value {
    let place = |outcome: &Outcome| json!({"name": outcome.name, "client": outcome.client, "path": outcome.path});
    let imported = outcomes.iter().filter(|outcome| outcome.skipped.is_none()).map(|outcome| {
        let mut value = place(outcome);
        value["entry"] = outcome.entry.clone().unwrap_or_default();
        value["notes"] = outcome.notes.clone().into();
        value
    });
    let skipped = outcomes.iter().filter_map(|outcome| {
        let Reason { why, hint } = outcome.skipped.as_ref()?;
        let mut value = place(outcome);
        value["reason"] = why.as_str().into();
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

fn as_text(outcomes: &[Outcome], files: &[(&str, &Path, usize)], arguments: &Arguments, places: &Places) -> String {
    let short = |path: &Path| match path.strip_prefix(&places.home) {
        Ok(rest) => format!("~/{}", rest.display()),
        Err(_) => path.display().to_string(),
    };
    if files.is_empty() && outcomes.is_empty() {
        return "no client here has servers\n".into();
    }
    let mut rows = vec![["FOUND IN", "FILE", "SERVERS"].map(String::from).to_vec()];
    rows.extend(
        files.iter().map(|(client, path, servers)| vec![(*client).to_owned(), short(path), servers.to_string()]),
    );
    let mut text = table(&rows) + "\n";
    let imported = if arguments.dry_run { "would be imported" } else { "imported" };
    let mut rows = vec![["SERVER", "FROM", "OUTCOME"].map(String::from).to_vec()];
    for outcome in outcomes {
        let result = match &outcome.skipped {
            Some(reason) => format!("skipped: {}", reason.why),
            None if outcome.enable => imported.to_owned(),
            None => format!("{imported}, disabled"),
        };
        let name = outcome.name.clone().unwrap_or_else(|| short(&outcome.path));
        rows.push(vec![name, outcome.client.to_owned(), result]);
    }
    text += &table(&rows);
    let name = |outcome: &Outcome| outcome.name.clone().unwrap_or_else(|| short(&outcome.path));
    let mut remarks = String::new();
    for outcome in outcomes {
        for note in &outcome.notes {
            let _ = writeln!(remarks, "note: {}: {}", visible(&name(outcome)), visible(note));
        }
        if let Some(hint) = outcome.skipped.as_ref().and_then(|reason| reason.hint.as_ref()) {
            let _ = writeln!(remarks, "hint: {}: {}", visible(&name(outcome)), visible(hint));
        }
    }
    if !remarks.is_empty() {
        text.extend(["\n", &remarks]);
    }
    let skipped = outcomes.iter().filter(|outcome| outcome.skipped.is_some()).count();
    text + &format!("\n{} {imported}, {skipped} skipped\n", outcomes.len() - skipped)
}
