//! The servers of the configuration, of the files that it names, and of clients.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{EntryOrigin, Listed, Problem};

use crate::file;
use crate::file::Links;
use crate::import;
use crate::import::{Places, Scope, server_values};
use crate::{read_write_volumes, syntax};
use ringfence_config::{Configuration, ConfiguredServer, HostingSettings, Sources};
use ringfence_config::{GuestWritable, GuestWritten};
use ringfence_entries::{ServerEntry, entry_from_json, resolve_relative_paths};

#[derive(Default)]
pub(super) struct Files {
    sources: Sources,
    configured: Vec<ConfiguredServer>,
    hosting: HostingSettings,
    /// Where the configuration is, if there is one.
    path: Option<PathBuf>,
    places: Option<Places>,
    /// What each file last had.
    kept: BTreeMap<PathBuf, Vec<Listed>>,
    /// What was given is of now; whatever is read later is newer.
    is_fresh: bool,
    writable: GuestWritable,
    /// The entries of the store, which may let guests write further files.
    pub(super) stored: Vec<ServerEntry>,
    /// Client files that guests could have written. They stay in this list while the server runs, so that a guest
    /// cannot make it log the same report repeatedly.
    refused: BTreeMap<PathBuf, Problem>,
    has_told: bool,
}

impl Files {
    pub(super) fn new(sources: Sources, configuration: &Configuration, writable: GuestWritable) -> Self {
        Self {
            sources,
            configured: configuration.servers.clone(),
            hosting: configuration.hosting.clone(),
            path: configuration.file.clone(),
            places: Places::of_process(),
            kept: BTreeMap::new(),
            is_fresh: true,
            writable,
            stored: Vec::new(),
            refused: BTreeMap::new(),
            has_told: false,
        }
    }

    /// Every file that is read, there or not.
    pub(super) fn watched(&self) -> Vec<PathBuf> {
        let mut watched = self.sources.candidate_files();
        watched.extend(self.hosting.files.iter().cloned());
        if let Some(places) = self.places.as_ref().filter(|_| self.hosting.import) {
            watched.extend(import::watched_files(places, Scope::User));
        }
        watched
    }

    pub(super) fn read(&mut self) -> (Vec<Listed>, Vec<Problem>) {
        let mut problems = Vec::new();
        self.count(&self.stored);
        self.read_configuration(&mut problems);
        let configured: Vec<ServerEntry> = self.configured.iter().map(|server| server.entry.clone()).collect();
        self.count(&configured);
        let mut all: Vec<Listed> = Vec::new();
        if let Some(path) = &self.path {
            for server in &self.configured {
                let name = &server.entry.name;
                problems.extend(server.warnings.iter().map(|warning| problem(path, Some(name), &warning.0)));
                all.push(Listed { entry: server.entry.clone(), origin: EntryOrigin::Configuration(path.clone()) });
            }
        }
        for path in self.hosting.files.clone() {
            let before = self.kept.remove(&path).unwrap_or_default();
            let listed = self.read_file(&path, before, &mut problems);
            all.extend(listed.iter().cloned());
            self.kept.insert(path, listed);
        }
        if self.hosting.import {
            self.read_clients(&mut all, &mut problems);
        }
        (all, problems)
    }

    fn read_configuration(&mut self, problems: &mut Vec<Problem>) {
        if std::mem::take(&mut self.is_fresh) {
            return;
        }
        let loaded = ringfence_config::load(&self.sources);
        // Checked after it was read: a guest that gets the file later cannot have changed what was read. A file that
        // guests may write is protected from them if it existed at the start, but not once an editor has replaced it.
        if let Some(error) = self.sources.candidate_files().iter().find_map(|file| self.writable.check(file).err()) {
            if !std::mem::replace(&mut self.has_told, true) {
                tracing::info!("the configuration is not read again until the next start: {error}");
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
                problems.push(problem(&path, None, &format!("{error}; what it had before stays")));
            }
        }
    }

    /// Counts the volumes of entries as written by guests, whether their servers have been started yet or not.
    fn count(&self, entries: &[ServerEntry]) {
        for entry in entries {
            // A server that must not have its volumes is refused when it starts.
            let _ = self.writable.add(&read_write_volumes(entry));
        }
    }

    /// Reads a file that the configuration names, unless guests may write it.
    fn read_file(&self, path: &Path, before: Vec<Listed>, problems: &mut Vec<Problem>) -> Vec<Listed> {
        let mut found = Vec::new();
        let listed = read_file(path, before.clone(), &mut found);
        if let Err(error) = self.writable.check(path) {
            return keep(path, &refusal(&error), before, problems);
        }
        problems.extend(found);
        listed
    }

    /// Reads the client files that guests cannot write, except project files, which the user has not confirmed.
    fn read_clients(&mut self, all: &mut Vec<Listed>, problems: &mut Vec<Problem>) {
        let Some(places) = &self.places else { return };
        let listed: Vec<ServerEntry> = all.iter().map(|listed| listed.entry.clone()).collect();
        self.count(&listed);
        let mut found = import::scan(places, Scope::User, None, &self.writable);
        let entries: Vec<ServerEntry> = found.found.iter().map(|found| found.entry.clone()).collect();
        self.count(&entries);
        // One client's entry may let its server write another client's file.
        found.recheck(&self.writable);
        for refused in found.skipped.extract_if(.., |skipped| skipped.is_guest_written) {
            let report = problem(&refused.path, None, &refused.reason.why);
            self.refused.entry(refused.path).or_insert(report);
        }
        problems.extend(self.refused.values().cloned());
        for import::Found { entry, client, path, notes } in found.found {
            problems.extend(notes.iter().map(|note| problem(&path, Some(&entry.name), note)));
            all.push(Listed { entry, origin: EntryOrigin::Client { title: client.title, path } });
        }
        let skipped = found.skipped.iter();
        problems.extend(skipped.map(|skipped| problem(&skipped.path, skipped.name.as_ref(), &skipped.reason.why)));
    }
}

fn problem(path: &Path, server: Option<&String>, message: &str) -> Problem {
    Problem { place: path.display().to_string(), server: server.cloned(), message: message.to_owned() }
}

fn refusal(error: &GuestWritten) -> String {
    format!("its servers are not used: {error}; hint: {}", GuestWritten::HINT)
}

/// The servers of a file. What is broken in it, or all of it, is as it was before.
fn read_file(path: &Path, before: Vec<Listed>, problems: &mut Vec<Problem>) -> Vec<Listed> {
    let text = match file::read(path, Links::Follow) {
        Ok(Some(text)) => text,
        Ok(None) => {
            problems.push(problem(path, None, "there is no such file"));
            return Vec::new();
        }
        Err(why) => return keep(path, &why, before, problems),
    };
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let values = syntax::parse(&text, syntax::Syntax::Json).and_then(|document| server_values(&document, &stem));
    let values = match values {
        Ok(values) => values,
        Err(why) => return keep(path, &why, before, problems),
    };
    let mut listed = Vec::new();
    for (name, mut value) in values {
        resolve_relative_paths(&mut value, path.parent().unwrap_or(Path::new(".")));
        match entry_from_json(&name, &value) {
            Ok((entry, warnings)) => {
                problems.extend(warnings.iter().map(|warning| problem(path, Some(&name), &warning.0)));
                listed.push(Listed { entry, origin: EntryOrigin::File(path.to_owned()) });
            }
            Err(error) => {
                problems.push(problem(path, Some(&name), &error.to_string()));
                listed.extend(before.iter().find(|listed| listed.entry.name == name).cloned());
            }
        }
    }
    listed
}

fn keep(path: &Path, why: &str, before: Vec<Listed>, problems: &mut Vec<Problem>) -> Vec<Listed> {
    let stays = if before.is_empty() { "" } else { "; what it had before stays" };
    problems.push(problem(path, None, &format!("{why}{stays}")));
    before
}
