//! `ringfence code import-tools`.
#![allow(clippy::doc_markdown)] // the doc comments of arguments are the text of `--help`

mod functions;
mod tokens;

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use ringfence_config::GuestWritten;
use ringfence_core::{Language, Principal};
use serde_json::{Value, json};

use super::super::server::registry::Registry;
use crate::failure::Failure;
use crate::output::{hint, print, print_json, status};
use crate::table::{header, table};
use functions::{Function, InvalidFile, PythonFile};

/// Maximum size of a file.
const MAX_BYTES: u64 = 1 << 20;

/// The files of the bridge that code mode replaces, relative to the home directory.
const DEFAULT_FILES: [&str; 2] = ["MCPs/user_tools.py", "MCPs/user_tools/user_tools.py"];

/// Import the functions of a Python file as saved tools, which code can call by name in later sessions.
///
/// Each function is saved with the imports, helper functions and constants of the file that it uses. The file is not
/// executed; its functions run only in sandboxes. Functions whose names begin with `_` are helpers and are not saved. A
/// file that guests may write is refused. Running servers offer the tools within a second.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The file [default: ~/MCPs/user_tools.py, or ~/MCPs/user_tools/user_tools.py]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The principal that the tools belong to: the name of a token
    #[arg(long, value_name = "NAME", default_value = Principal::LOCAL_NAME)]
    principal: String,
    /// Show what would be imported, but import nothing
    #[arg(long)]
    dry_run: bool,
    /// Save a new version of tools that exist already
    #[arg(long)]
    replace: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// The configuration file [default: ringfence.toml in the current directory, or in ~/.config/ringfence]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The result for one function.
struct Outcome {
    name: String,
    /// The version that was saved.
    version: Option<u64>,
    skipped: Option<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let path = arguments.file.clone().map_or_else(default_file, Ok)?;
    let registry = Registry::open(arguments.config.as_ref())?;
    let refuse = |error: GuestWritten| {
        Failure::new(format!("{} is not imported", path.display())).caused_by(&error).hint(GuestWritten::HINT)
    };
    registry.guest_writable().check(&path).map_err(refuse)?;
    let source = read(&path)?;
    let file = PythonFile::parse(&source).map_err(|invalid| invalid_file(&path, &invalid))?;
    let saved = registry.wait(registry.store.saved_tools(&arguments.principal, Language::Python))?;
    let existing: BTreeSet<String> = saved.into_iter().map(|tool| tool.name).collect();
    let mut outcomes = Vec::new();
    for function in file.functions() {
        outcomes.push(import(function, arguments, &registry, &existing)?);
    }
    show(&outcomes, &path, arguments)
}

fn default_file() -> Result<PathBuf, Failure> {
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    let files = home.iter().flat_map(|home| DEFAULT_FILES.map(|file| home.join(file)));
    files.into_iter().find(|file| file.exists()).ok_or_else(|| {
        Failure::new("there is no file ~/MCPs/user_tools.py").hint("name the file: `ringfence code import-tools FILE`")
    })
}

fn read(path: &Path) -> Result<String, Failure> {
    let failed = || Failure::new(format!("cannot read {}", path.display()));
    // Otherwise a FIFO would block.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|error| failed().caused_by(&error))?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(failed().hint("name a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| failed().caused_by(&error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(failed().hint(format!("the limit is {} MiB; split the file", MAX_BYTES >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| failed().hint("save the file as UTF-8"))
}

fn invalid_file(path: &Path, invalid: &InvalidFile) -> Failure {
    let path = path.display();
    match invalid {
        InvalidFile::Source(source) => Failure::new(format!("{path}:{}: {}", source.line, source.problem))
            .hint("check the file with `python3 -m py_compile`"),
        InvalidFile::TooManyFunctions { max } => {
            Failure::new(format!("{path} has more than {max} functions")).hint("split the file")
        }
    }
}

fn import(
    function: Function,
    arguments: &Arguments,
    registry: &Registry,
    existing: &BTreeSet<String>,
) -> Result<Outcome, Failure> {
    let Function { name, source, doc } = function;
    let mut outcome = Outcome { name, version: None, skipped: None };
    if existing.contains(&outcome.name) && !arguments.replace {
        outcome.skipped = Some("a saved tool of this name exists".into());
    } else if !arguments.dry_run {
        let store = &registry.store;
        let save = store.save_tool(&arguments.principal, Language::Python, &outcome.name, source, &doc);
        match registry.wait(save) {
            Ok(version) => outcome.version = Some(version),
            Err(error @ ringfence_store::StoreError::Rejected(_)) => outcome.skipped = Some(error.to_string()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(outcome)
}

fn show(outcomes: &[Outcome], path: &Path, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let imported = || outcomes.iter().filter(|outcome| outcome.skipped.is_none());
    if arguments.json {
        let imported = imported().map(|outcome| json!({"name": outcome.name, "version": outcome.version}));
        let skipped = outcomes.iter().filter_map(|outcome| {
            let reason = outcome.skipped.as_ref()?;
            Some(json!({"name": outcome.name, "reason": reason}))
        });
        return print_json(&json!({
            "file": path,
            "principal": arguments.principal,
            "imported": imported.collect::<Vec<Value>>(),
            "skipped": skipped.collect::<Vec<Value>>(),
        }));
    }
    if outcomes.is_empty() {
        status("no functions found");
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![header(["TOOL", "OUTCOME"])];
    for Outcome { name, version, skipped } in outcomes {
        let outcome = match (skipped, version) {
            (Some(reason), _) => format!("skipped: {reason}"),
            (None, Some(version)) => format!("imported as version {version}"),
            (None, None) => "would be imported".to_owned(),
        };
        rows.push(vec![name.clone(), outcome]);
    }
    print(&table(&rows))?;
    if !arguments.replace && outcomes.iter().any(|outcome| outcome.skipped.is_some()) {
        hint("save a new version of existing tools with --replace");
    }
    Ok(ExitCode::SUCCESS)
}
