//! Finds the servers that users have already configured in other MCP clients.
//!
//! A scan starts nothing, writes nothing and expands no variables. Every server that is not imported, and every file that
//! cannot be read, is reported with a reason; neither makes the scan fail. The first definition of a name wins.
//!
//! A file that guests may write is not read, even if it existed before: a guest could have planted it.
//!
//! Files do not decide about isolation: an entry is never imported with `sandbox = false`, and an entry of a project is
//! imported without its `box`.

mod clients;
mod formats;
#[cfg(fuzzing)]
pub mod fuzzing;
mod locations;
mod placeholders;
mod self_reference;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

pub use clients::{CLIENTS, Client};
pub use formats::SkipReason;
pub(crate) use formats::server_values;
pub use locations::{Os, UserDirectories};
pub use tokens::{Service, Token, TokenKind, find_tokens, replace_token};

use crate::syntax::{self, Syntax};
use crate::text_file::{self, Links};
use clients::{DISCOVERED, Location};
use formats::{Format, Item};
use locations::Base;
use ringfence_config::{Configuration, GuestWritable, GuestWritten, HostingSettings};
use ringfence_entries::sanitize_name;
use ringfence_entries::{ServerEntry, entry_from_json, resolve_relative_paths};

/// Maximum number of servers in one file.
const MAX_SERVERS: usize = 1000;

/// The result of a scan.
#[derive(Debug, Default)]
pub struct ScanResult {
    /// The existing files, in the order in which they were read.
    pub files: Vec<ScannedFile>,
    pub found: Vec<FoundServer>,
    pub skipped: Vec<Skipped>,
}

#[derive(Debug)]
pub struct ScannedFile {
    pub client: Client,
    pub path: PathBuf,
    /// The number of servers that it defines, including those that are skipped.
    pub servers: usize,
}

/// A server that can be imported.
#[derive(Debug)]
pub struct FoundServer {
    pub entry: ServerEntry,
    pub client: Client,
    pub path: PathBuf,
    /// Settings that are lost or changed by the import.
    pub notes: Vec<String>,
}

/// A server that cannot be imported, or a whole file if it has no name.
#[derive(Debug)]
pub struct Skipped {
    pub name: Option<String>,
    pub client: Client,
    pub path: PathBuf,
    pub reason: SkipReason,
    /// Whether the file was skipped because guests may write it.
    pub is_guest_written: bool,
}

impl ScanResult {
    /// Removes the entries of files that guests may write by now.
    pub(crate) fn recheck(&mut self, writable: &GuestWritable) {
        let mut errors: BTreeMap<PathBuf, (Client, GuestWritten)> = BTreeMap::new();
        self.found.retain(|found| match writable.check(&found.path) {
            Ok(()) => true,
            Err(error) => {
                errors.insert(found.path.clone(), (found.client, error));
                false
            }
        });
        self.skipped.extend(errors.into_iter().map(|(path, (client, error))| guest_written(client, &path, &error)));
    }
}

fn guest_written(client: Client, path: &Path, error: &GuestWritten) -> Skipped {
    let reason = SkipReason::new(format!("the servers in this file are not used: {error}")).hint(GuestWritten::HINT);
    Skipped { name: None, client, path: path.to_owned(), reason, is_guest_written: true }
}

/// Selects the files of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The files in `~/MCPs`.
    Discovered,
    /// Files of this user.
    User,
    /// Also files in the working directory, which another user may have written.
    UserAndProject,
}

impl Scope {
    fn includes(self, location: &Location) -> bool {
        match self {
            Self::Discovered => *location == DISCOVERED,
            Self::User => location.base != Base::Project,
            Self::UserAndProject => true,
        }
    }
}

/// Scans the files of all clients, or of one client, except for files that guests may write.
pub fn scan(
    directories: &UserDirectories,
    scope: Scope,
    only: Option<&Client>,
    writable: &GuestWritable,
) -> ScanResult {
    let mut scan = Scan { directories, writable, seen: BTreeSet::new(), result: ScanResult::default() };
    for client in CLIENTS.iter().filter(|client| only.is_none_or(|only| only.id == client.id)) {
        for location in client.locations.iter().filter(|location| scope.includes(location)) {
            for path in location.base.files(location.pattern, directories) {
                scan.scan_file(*client, location, &path);
            }
        }
    }
    scan.result
}

/// Returns the client with this ID.
pub fn find_client(id: &str) -> Option<&'static Client> {
    CLIENTS.iter().find(|client| client.id == id)
}

/// Returns all files that a scan would read, whether they exist or not.
pub fn watched_files(directories: &UserDirectories, scope: Scope) -> Vec<PathBuf> {
    let locations = CLIENTS.iter().flat_map(|client| client.locations).filter(|location| scope.includes(location));
    locations.flat_map(|location| location.base.files(location.pattern, directories)).collect()
}

/// Returns the files that the listing of all servers reads besides those that the configuration names.
pub(crate) fn listing_scope(hosting: &HostingSettings) -> Option<Scope> {
    match (hosting.import, hosting.discover) {
        (true, _) => Some(Scope::User),
        (false, true) => Some(Scope::Discovered),
        (false, false) => None,
    }
}

/// Returns the settings files of the user's MCP clients that are sources of servers according to the configuration.
pub fn client_files(configuration: Option<&Configuration>) -> Vec<PathBuf> {
    let scope = configuration.map_or(Some(Scope::User), |configuration| listing_scope(&configuration.hosting));
    let files = |scope| UserDirectories::of_process().map(|directories| watched_files(&directories, scope));
    scope.and_then(files).unwrap_or_default()
}

struct Scan<'a> {
    directories: &'a UserDirectories,
    writable: &'a GuestWritable,
    /// Canonical paths of scanned files: the home directory may also be the working directory.
    seen: BTreeSet<PathBuf>,
    result: ScanResult,
}

impl Scan<'_> {
    fn scan_file(&mut self, client: Client, location: &Location, path: &Path) {
        let canonical = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if self.seen.contains(&canonical) {
            return;
        }
        if let Err(error) = self.writable.check(path) {
            // For a pattern only the directory is reported: a guest can create any number of matching files.
            let is_pattern = location.pattern.contains('*');
            let reported = if is_pattern { path.parent().unwrap_or(path) } else { path };
            if path.symlink_metadata().is_ok() && self.seen.insert(reported.to_owned()) {
                self.result.skipped.push(guest_written(client, reported, &error));
            }
            return;
        }
        let skip =
            |reason: SkipReason| Skipped { name: None, client, path: path.to_owned(), reason, is_guest_written: false };
        let items = match self.read(location, path, &canonical) {
            Ok(None) => return,
            Ok(Some(items)) => items,
            Err(reason) => {
                self.result.skipped.push(skip(reason));
                self.result.files.push(ScannedFile { client, path: path.to_owned(), servers: 0 });
                return;
            }
        };
        self.seen.insert(canonical);
        self.result.files.push(ScannedFile { client, path: path.to_owned(), servers: items.len() });
        if items.len() > MAX_SERVERS {
            self.result.skipped.push(skip(SkipReason::new(format!("the file has more than {MAX_SERVERS} servers"))));
            return;
        }
        for item in items {
            self.add_item(client, location, path, item);
        }
    }

    fn read(&self, location: &Location, path: &Path, canonical: &Path) -> Result<Option<Vec<Item>>, SkipReason> {
        let links = if location.base == Base::Project { Links::Refuse } else { Links::Follow };
        let is_named = matches!(location.base, Base::File(_));
        let Some(text) = text_file::read(path, links).map_err(SkipReason::new)? else {
            // A file that a variable names is expected to exist.
            return if is_named { Err(SkipReason::new("no such file")) } else { Ok(None) };
        };
        let is_in_project = self.directories.cwd.canonicalize().is_ok_and(|project| canonical.starts_with(project));
        if links == Links::Refuse && !is_in_project {
            return Err(SkipReason::new("a symbolic link leads out of the project"));
        }
        // A variable may name a file of another syntax than usual.
        let syntax = Syntax::of_file(path).filter(|_| is_named).unwrap_or(location.syntax);
        let document = syntax::parse(&text, syntax).map_err(SkipReason::new)?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        if document.is_null() {
            return Ok(Some(Vec::new()));
        }
        location.format.items(&document, &stem).map(Some)
    }

    fn add_item(&mut self, client: Client, location: &Location, path: &Path, item: Item) {
        let name = item.name.clone();
        match self.import_item(client, location, path, item) {
            Ok(found) => self.result.found.push(found),
            Err(reason) => {
                let path = path.to_owned();
                let skipped = Skipped { name: Some(name), client, path, reason, is_guest_written: false };
                self.result.skipped.push(skipped);
            }
        }
    }

    fn import_item(
        &self,
        client: Client,
        location: &Location,
        path: &Path,
        item: Item,
    ) -> Result<FoundServer, SkipReason> {
        let Item { name, entry, project, mut notes } = item;
        let mut value = entry?;
        self_reference::check(&name, &value, self.directories)?;
        let project = project.or_else(|| (location.base == Base::Project).then(|| self.directories.cwd.clone()));
        placeholders::resolve(&mut value, self.directories, project.as_deref())?;
        notes.extend(remove_client_settings(&mut value, location));
        resolve_relative_paths(&mut value, project.as_deref().unwrap_or(&self.directories.home));
        let usable = sanitize_name(&name)
            .ok_or_else(|| SkipReason::new("invalid server name").hint("rename the server in the client"))?;
        if usable != name {
            notes.push(format!("renamed from `{}`, which is not a valid server name", name.escape_debug()));
        }
        let (entry, warnings) = entry_from_json(&usable, &value).map_err(|error| {
            let reason = SkipReason::new(error.to_string());
            error.hints().into_iter().fold(reason, SkipReason::hint)
        })?;
        notes.extend(warnings.into_iter().map(|warning| warning.0));
        if let Some(first) = self.result.found.iter().find(|found| found.entry.name == usable) {
            let kind = if first.entry == entry { "the same server" } else { "another server of this name" };
            return Err(SkipReason::new(format!("{kind} was already found in {}", first.path.display())));
        }
        Ok(FoundServer { entry, client, path: path.to_owned(), notes })
    }
}

/// Removes settings of the client from an entry, and settings that only the user may choose. Returns notes about them.
fn remove_client_settings(value: &mut Value, location: &Location) -> Vec<String> {
    /// Approval of tool calls, and how the client displays the server.
    const CLIENT_KEYS: [&str; 12] = [
        "alwaysAllow",
        "autoApprove",
        "trust",
        "gallery",
        "version",
        "source",
        "icon",
        "iconPath",
        "dev",
        "watchPaths",
        "isActive",
        "schema",
    ];
    /// Filters of the server's tools.
    const TOOL_FILTERS: [&str; 7] =
        ["disabledTools", "includeTools", "excludeTools", "enabled_tools", "disabled_tools", "toolFilter", "tools"];
    const AUTHENTICATION_KEYS: [&str; 4] = ["oauth", "auth", "authProviderType", "oauth_resource"];
    let Value::Object(entry) = value else { return Vec::new() };
    let mut notes = Vec::new();
    for key in CLIENT_KEYS {
        entry.shift_remove(key);
    }
    if entry.get("tools").is_some_and(|tools| *tools == serde_json::json!(["*"])) {
        entry.shift_remove("tools");
    }
    for filter in TOOL_FILTERS {
        if entry.shift_remove(filter).is_some_and(|tools| tools.as_array().is_none_or(|tools| !tools.is_empty())) {
            notes.push(format!("`{filter}` is not imported: all tools of the server are offered"));
        }
    }
    for key in AUTHENTICATION_KEYS {
        if entry.shift_remove(key).is_some() {
            notes.push(format!("`{key}` is not imported: set the credentials in `headers`"));
        }
    }
    if entry.shift_remove("envFile").is_some() {
        notes.push("`envFile` is not imported: set its variables in `env`".into());
    }
    if location.format != Format::Ringfence {
        // Clients use seconds or milliseconds, and limit the time of a call; for ringfence the key has another meaning.
        entry.shift_remove("timeout");
    }
    if entry.shift_remove("sandbox") == Some(Value::Bool(false)) {
        notes.push("`sandbox = false` is not imported: the server runs in a sandbox".into());
    }
    if location.base == Base::Project && entry.shift_remove("box").is_some() {
        notes.push("`box` is not imported from a project: the server runs in a sandbox with default settings".into());
    }
    notes
}

#[cfg(test)]
mod tests;
