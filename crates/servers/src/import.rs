//! Finds the servers that people already have: in the files of their clients.
//!
//! Nothing is started, written or expanded. A file that cannot be read or understood is a reason and not a failure, and
//! everything that is not taken has one. The first definition of a name wins.
//!
//! A file that guests may write is not read, whether it existed before or not: a guest could have planted it.
//!
//! What a file asks for is not simply granted: an entry is never imported with `sandbox = false`, and one that a
//! project brings along does not set its own walls.

mod clients;
#[cfg(fuzzing)]
pub mod fuzzing;
mod own;
mod placeholder;
mod places;
mod shapes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

pub use clients::{CLIENTS, Client};
pub use places::{Os, Places};
pub use shapes::Reason;
pub(crate) use shapes::server_values;

use super::file::{self, Links};
use super::syntax;
use clients::Location;
use places::Base;
use ringfence_config::{Configuration, GuestWritable, GuestWritten};
use ringfence_entries::sanitize_name;
use ringfence_entries::{ServerEntry, entry_from_json, resolve_relative_paths};
use shapes::{Item, Shape};

/// Of one file; more is a mistake or worse.
const MOST_SERVERS: usize = 1000;

/// What was found, and what of it is of no use.
#[derive(Debug, Default)]
pub struct Import {
    /// The files that there are, in the order in which they were read.
    pub files: Vec<ReadFile>,
    pub found: Vec<Found>,
    pub skipped: Vec<Skipped>,
}

#[derive(Debug)]
pub struct ReadFile {
    pub client: Client,
    pub path: PathBuf,
    /// How many servers it defines, of use or not.
    pub servers: usize,
}

/// A server that can be taken over.
#[derive(Debug)]
pub struct Found {
    pub entry: ServerEntry,
    pub client: Client,
    pub path: PathBuf,
    /// What of it is lost or changed.
    pub notes: Vec<String>,
}

/// A server, or a whole file, that cannot.
#[derive(Debug)]
pub struct Skipped {
    pub name: Option<String>,
    pub client: Client,
    pub path: PathBuf,
    pub reason: Reason,
    /// Whether it was skipped because guests may write it.
    pub is_guest_written: bool,
}

impl Import {
    /// Drops the entries of files that guests may write by now.
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
    let reason = Reason::new(format!("its servers are not used: {error}")).hint(GuestWritten::HINT);
    Skipped { name: None, client, path: path.to_owned(), reason, is_guest_written: true }
}

/// Whose files are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those of this user.
    User,
    /// Also those that lie in the directory one is in, which a stranger may have put there.
    UserAndProject,
}

impl Scope {
    fn has(self, location: &Location) -> bool {
        self == Self::UserAndProject || location.base != Base::Project
    }
}

/// Looks at all places of all clients, or of one, but not at files that guests may write.
pub fn scan(places: &Places, scope: Scope, only: Option<&Client>, writable: &GuestWritable) -> Import {
    let mut scan = Scan { places, writable, seen: BTreeSet::new(), import: Import::default() };
    for client in CLIENTS.iter().filter(|client| only.is_none_or(|only| only.id == client.id)) {
        for location in client.locations.iter().filter(|location| scope.has(location)) {
            for path in location.base.files(location.pattern, places) {
                scan.file(*client, location, &path);
            }
        }
    }
    scan.import
}

/// The client of this name.
pub fn client(id: &str) -> Option<&'static Client> {
    CLIENTS.iter().find(|client| client.id == id)
}

/// Every file that a scan would look at, there or not.
pub fn watched_files(places: &Places, scope: Scope) -> Vec<PathBuf> {
    let locations = CLIENTS.iter().flat_map(|client| client.locations).filter(|location| scope.has(location));
    locations.flat_map(|location| location.base.files(location.pattern, places)).collect()
}

/// The settings files of the user's MCP clients, if the configuration imports from them.
pub fn client_files(configuration: Option<&Configuration>) -> Vec<PathBuf> {
    let is_imported = configuration.is_none_or(|configuration| configuration.hosting.import);
    let places = Places::of_process().filter(|_| is_imported);
    places.map(|places| watched_files(&places, Scope::User)).unwrap_or_default()
}

struct Scan<'a> {
    places: &'a Places,
    writable: &'a GuestWritable,
    /// A home may be a project too.
    seen: BTreeSet<PathBuf>,
    import: Import,
}

impl Scan<'_> {
    fn file(&mut self, client: Client, location: &Location, path: &Path) {
        let canonical = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if self.seen.contains(&canonical) {
            return;
        }
        if let Err(error) = self.writable.check(path) {
            // For files with arbitrary names only the directory is reported: a guest can create any number of them.
            let is_listed = location.pattern.contains('*');
            let shown = if is_listed { path.parent().unwrap_or(path) } else { path };
            if path.symlink_metadata().is_ok() && self.seen.insert(shown.to_owned()) {
                self.import.skipped.push(guest_written(client, shown, &error));
            }
            return;
        }
        let skip =
            |reason: Reason| Skipped { name: None, client, path: path.to_owned(), reason, is_guest_written: false };
        let items = match self.read(location, path, &canonical) {
            Ok(None) => return,
            Ok(Some(items)) => items,
            Err(reason) => {
                self.import.skipped.push(skip(reason));
                self.import.files.push(ReadFile { client, path: path.to_owned(), servers: 0 });
                return;
            }
        };
        self.seen.insert(canonical);
        self.import.files.push(ReadFile { client, path: path.to_owned(), servers: items.len() });
        if items.len() > MOST_SERVERS {
            self.import.skipped.push(skip(Reason::new(format!("it has more than {MOST_SERVERS} servers"))));
            return;
        }
        for item in items {
            self.item(client, location, path, item);
        }
    }

    fn read(&self, location: &Location, path: &Path, canonical: &Path) -> Result<Option<Vec<Item>>, Reason> {
        let links = if location.base == Base::Project { Links::Refuse } else { Links::Follow };
        let Some(text) = file::read(path, links).map_err(Reason::new)? else {
            // One that somebody has named is expected to be there.
            let is_named = matches!(location.base, Base::File(_));
            return if is_named { Err(Reason::new("there is no such file")) } else { Ok(None) };
        };
        let within = self.places.cwd.canonicalize().is_ok_and(|project| canonical.starts_with(project));
        if links == Links::Refuse && !within {
            return Err(Reason::new("a link leads out of the project"));
        }
        let document = syntax::parse(&text, location.syntax).map_err(Reason::new)?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        if document.is_null() {
            return Ok(Some(Vec::new()));
        }
        location.shape.items(&document, &stem).map(Some)
    }

    fn item(&mut self, client: Client, location: &Location, path: &Path, item: Item) {
        let name = item.name.clone();
        match self.found(client, location, path, item) {
            Ok(found) => self.import.found.push(found),
            Err(reason) => {
                let path = path.to_owned();
                let skipped = Skipped { name: Some(name), client, path, reason, is_guest_written: false };
                self.import.skipped.push(skipped);
            }
        }
    }

    fn found(&self, client: Client, location: &Location, path: &Path, item: Item) -> Result<Found, Reason> {
        let Item { name, entry, project, mut notes } = item;
        let mut value = entry?;
        own::check(&name, &value, self.places)?;
        let project = project.or_else(|| (location.base == Base::Project).then(|| self.places.cwd.clone()));
        placeholder::settle(&mut value, self.places, project.as_deref())?;
        notes.extend(guard(&mut value, location));
        resolve_relative_paths(&mut value, project.as_deref().unwrap_or(&self.places.home));
        let usable = sanitize_name(&name)
            .ok_or_else(|| Reason::new("its name cannot be used").hint("give it another name in the client"))?;
        if usable != name {
            notes.push(format!("there it is called `{}`", name.escape_debug()));
        }
        let (entry, warnings) = entry_from_json(&usable, &value).map_err(|error| {
            let reason = Reason::new(error.to_string());
            error.hints().into_iter().fold(reason, Reason::hint)
        })?;
        notes.extend(warnings.into_iter().map(|warning| warning.0));
        if let Some(first) = self.import.found.iter().find(|found| found.entry.name == usable) {
            let (same, place) = (first.entry == entry, first.path.display());
            let why = if same { "the same is in" } else { "another of this name is in" };
            return Err(Reason::new(format!("{why} {place}, which was read first")));
        }
        Ok(Found { entry, client, path: path.to_owned(), notes })
    }
}

/// Takes out of an entry what is the client's own business, and what nobody but this user may ask for.
fn guard(value: &mut Value, location: &Location) -> Vec<String> {
    /// What the client asks before it calls a tool, and how it shows it.
    const OF_CLIENTS: [&str; 12] = [
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
    /// Which of its tools the client uses.
    const FILTERS: [&str; 7] =
        ["disabledTools", "includeTools", "excludeTools", "enabled_tools", "disabled_tools", "toolFilter", "tools"];
    const SIGN_IN: [&str; 4] = ["oauth", "auth", "authProviderType", "oauth_resource"];
    let Value::Object(entry) = value else { return Vec::new() };
    let mut notes = Vec::new();
    for key in OF_CLIENTS {
        entry.shift_remove(key);
    }
    if entry.get("tools").is_some_and(|tools| *tools == serde_json::json!(["*"])) {
        entry.shift_remove("tools");
    }
    for filter in FILTERS {
        if entry.shift_remove(filter).is_some_and(|tools| tools.as_array().is_none_or(|tools| !tools.is_empty())) {
            notes.push(format!("`{filter}` is not imported: all its tools are offered"));
        }
    }
    for key in SIGN_IN {
        if entry.shift_remove(key).is_some() {
            notes.push(format!("`{key}` is not imported: give what it needs to sign in as a header"));
        }
    }
    if entry.shift_remove("envFile").is_some() {
        notes.push("`envFile` is not imported: give its variables in `env`".into());
    }
    if location.shape != Shape::Own {
        // In seconds here and in milliseconds there, and of calls, which it is not with us.
        entry.shift_remove("timeout");
    }
    if entry.shift_remove("sandbox") == Some(Value::Bool(false)) {
        notes.push("`sandbox = false` is not imported: it runs in a sandbox".into());
    }
    if location.base == Base::Project && entry.shift_remove("box").is_some() {
        notes.push("`box` is not imported from a project: it gets the usual walls".into());
    }
    notes
}

#[cfg(test)]
mod tests;
