//! Reads the entries of the configuration, of the files in `hosting.files`, and of MCP clients or `~/MCPs`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{EntryOrigin, ListedServer, Problem};

use crate::guest_access::read_write_volumes;
use crate::import::{self, Scope, UserDirectories, server_values};
use crate::syntax::{self, Syntax};
use crate::text_file::{self, Links};
use ringfence_config::{Configuration, ConfiguredServer, HostingSettings, Sources};
use ringfence_config::{GuestWritable, GuestWritten};
use ringfence_entries::{
    SandboxSettings, ServerEntry, StartPolicy, Transport, entry_from_json, resolve_relative_paths,
};

/// All sources of entries except for the store.
#[derive(Default)]
pub(super) struct Files {
    sources: Sources,
    configured: Vec<ConfiguredServer>,
    hosting: HostingSettings,
    /// The path of the configuration, if there is one.
    path: Option<PathBuf>,
    directories: Option<UserDirectories>,
    /// The entries of each file when it was last read without an error.
    last_read: BTreeMap<PathBuf, Vec<ListedServer>>,
    /// Whether the first read may use the configuration that was passed to [`Files::new`].
    is_configuration_current: bool,
    writable: GuestWritable,
    /// The entries of the store, which may let guests write further files.
    pub(super) stored: Vec<ServerEntry>,
    /// Client files that guests could have written. They stay in this list while the server runs, so that a guest
    /// cannot make it log the same report repeatedly.
    refused: BTreeMap<PathBuf, Problem>,
    has_logged_refusal: bool,
}

impl Files {
    pub(super) fn new(sources: Sources, configuration: &Configuration, writable: GuestWritable) -> Self {
        Self {
            sources,
            configured: configuration.servers.clone(),
            hosting: configuration.hosting.clone(),
            path: configuration.file.clone(),
            directories: UserDirectories::of_process(),
            last_read: BTreeMap::new(),
            is_configuration_current: true,
            writable,
            stored: Vec::new(),
            refused: BTreeMap::new(),
            has_logged_refusal: false,
        }
    }

    /// Returns all files that are read, whether they exist or not.
    pub(super) fn watched_files(&self) -> Vec<PathBuf> {
        let mut watched = self.sources.candidate_files();
        watched.extend(self.hosting.files.iter().cloned());
        if let (Some(directories), Some(scope)) = (&self.directories, import::listing_scope(&self.hosting)) {
            watched.extend(import::watched_files(directories, scope));
        }
        watched
    }

    pub(super) fn read(&mut self) -> (Vec<ListedServer>, Vec<Problem>) {
        let mut problems = Vec::new();
        self.add_volumes(&self.stored);
        self.read_configuration(&mut problems);
        let configured: Vec<ServerEntry> = self.configured.iter().map(|server| server.entry.clone()).collect();
        self.add_volumes(&configured);
        let mut all: Vec<ListedServer> = Vec::new();
        if let Some(path) = &self.path {
            for server in &self.configured {
                let name = &server.entry.name;
                problems.extend(server.warnings.iter().map(|warning| problem(path, Some(name), &warning.0)));
                all.push(ListedServer {
                    entry: server.entry.clone(),
                    origin: EntryOrigin::Configuration(path.clone()),
                });
            }
        }
        for path in self.hosting.files.clone() {
            let last_read = self.last_read.remove(&path).unwrap_or_default();
            let listed = self.read_file(&path, last_read, &mut problems);
            all.extend(listed.iter().cloned());
            self.last_read.insert(path, listed);
        }
        if let Some(scope) = import::listing_scope(&self.hosting) {
            self.read_clients(scope, &mut all, &mut problems);
        }
        (all, problems)
    }

    fn read_configuration(&mut self, problems: &mut Vec<Problem>) {
        if std::mem::take(&mut self.is_configuration_current) {
            return;
        }
        let loaded = ringfence_config::load(&self.sources);
        // Checked after the file was read: a guest that gets access later cannot have changed the text that was read. A
        // file in a volume is protected from guests if it existed at the start, but not after an editor has replaced it.
        if let Some(error) = self.sources.candidate_files().iter().find_map(|file| self.writable.check(file).err()) {
            if !std::mem::replace(&mut self.has_logged_refusal, true) {
                tracing::info!("the configuration is not reloaded until the next start: {error}");
            }
            return;
        }
        match loaded {
            Ok(configuration) => {
                self.configured = configuration.servers;
                self.hosting = configuration.hosting;
                self.path = configuration.file;
            }
            Err(error) => {
                let path =
                    self.path.clone().or_else(|| self.sources.candidate_files().into_iter().next()).unwrap_or_default();
                problems.push(problem(&path, None, &format!("{error}; the previous configuration stays in use")));
            }
        }
    }

    /// Adds the volumes of entries to the paths that guests may write, whether their servers run yet or not.
    fn add_volumes(&self, entries: &[ServerEntry]) {
        for entry in entries {
            // A volume that must not be mounted is refused when its server starts.
            let _ = self.writable.add(&read_write_volumes(entry));
        }
    }

    /// Reads a file of `hosting.files`, and ignores its content if guests may write it.
    fn read_file(&self, path: &Path, last_read: Vec<ListedServer>, problems: &mut Vec<Problem>) -> Vec<ListedServer> {
        let mut file_problems = Vec::new();
        let listed = read_file(path, last_read.clone(), &mut file_problems);
        if let Err(error) = self.writable.check(path) {
            return keep_last_read(path, &refusal(&error), last_read, problems);
        }
        problems.extend(file_problems);
        listed
    }

    /// Reads the client files that guests cannot write. Files of projects are not read, because the user has not
    /// confirmed them.
    fn read_clients(&mut self, scope: Scope, all: &mut Vec<ListedServer>, problems: &mut Vec<Problem>) {
        let Some(directories) = &self.directories else { return };
        let listed: Vec<ServerEntry> = all.iter().map(|listed| listed.entry.clone()).collect();
        self.add_volumes(&listed);
        let mut scan = import::scan(directories, scope, None, &self.writable);
        let entries: Vec<ServerEntry> = scan.found.iter().map(|found| found.entry.clone()).collect();
        self.add_volumes(&entries);
        // One client's entry may let its server write another client's file.
        scan.recheck(&self.writable);
        for refused in scan.skipped.extract_if(.., |skipped| skipped.is_guest_written) {
            let report = problem(&refused.path, None, &refused.reason.message);
            self.refused.entry(refused.path).or_insert(report);
        }
        problems.extend(self.refused.values().cloned());
        for import::FoundServer { mut entry, client, path, notes } in scan.found {
            problems.extend(notes.iter().map(|note| problem(&path, Some(&entry.name), note)));
            let origin = if scope == Scope::Discovered {
                // The user has not configured or imported these servers.
                entry.start = StartPolicy::OnDemand;
                if reset_sandbox(&mut entry) {
                    let note = "`box` is ignored: the server runs in a sandbox with default settings; `ringfence server \
                                import` adds it with its own";
                    problems.push(problem(&path, Some(&entry.name), note));
                }
                EntryOrigin::Discovered(path)
            } else {
                EntryOrigin::Client { title: client.title, path }
            };
            all.push(ListedServer { entry, origin });
        }
        let skipped = scan.skipped.iter();
        problems.extend(skipped.map(|skipped| problem(&skipped.path, skipped.name.as_ref(), &skipped.reason.message)));
    }
}

/// Gives a server a sandbox with default settings. Returns whether it had other ones.
fn reset_sandbox(entry: &mut ServerEntry) -> bool {
    let Transport::Stdio(settings) = &mut entry.transport else { return false };
    std::mem::take(&mut settings.sandbox_settings) != SandboxSettings::default()
}

fn problem(path: &Path, server: Option<&String>, message: &str) -> Problem {
    Problem { source: path.display().to_string(), server: server.cloned(), message: message.to_owned() }
}

fn refusal(error: &GuestWritten) -> String {
    format!("the servers in this file are not used: {error}; hint: {}", GuestWritten::HINT)
}

/// Returns the servers of a file. Invalid entries, and those of an unreadable file, are replaced by the ones that were
/// last read.
fn read_file(path: &Path, last_read: Vec<ListedServer>, problems: &mut Vec<Problem>) -> Vec<ListedServer> {
    let text = match text_file::read(path, Links::Follow) {
        Ok(Some(text)) => text,
        Ok(None) => {
            problems.push(problem(path, None, "no such file"));
            return Vec::new();
        }
        Err(message) => return keep_last_read(path, &message, last_read, problems),
    };
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let syntax = Syntax::of_file(path).unwrap_or(Syntax::Json);
    let values = syntax::parse(&text, syntax).and_then(|document| server_values(&document, &stem));
    let values = match values {
        Ok(values) => values,
        Err(message) => return keep_last_read(path, &message, last_read, problems),
    };
    let mut listed = Vec::new();
    for (name, mut value) in values {
        resolve_relative_paths(&mut value, path.parent().unwrap_or(Path::new(".")));
        match entry_from_json(&name, &value) {
            Ok((entry, warnings)) => {
                problems.extend(warnings.iter().map(|warning| problem(path, Some(&name), &warning.0)));
                listed.push(ListedServer { entry, origin: EntryOrigin::File(path.to_owned()) });
            }
            Err(error) => {
                problems.push(problem(path, Some(&name), &error.to_string()));
                listed.extend(last_read.iter().find(|listed| listed.entry.name == name).cloned());
            }
        }
    }
    listed
}

/// Reports a problem with a whole file, and returns its last entries.
fn keep_last_read(
    path: &Path,
    message: &str,
    last_read: Vec<ListedServer>,
    problems: &mut Vec<Problem>,
) -> Vec<ListedServer> {
    let consequence = if last_read.is_empty() { "" } else { "; its previous servers stay in use" };
    problems.push(problem(path, None, &format!("{message}{consequence}")));
    last_read
}
