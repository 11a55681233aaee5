//! `ringfence cache show`.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use ringfence_core::bytes;
use ringfence_egress::PackageCache;
use serde_json::json;

use super::{directory, unreadable};
use crate::failure::Failure;
use crate::output::{print, print_json};
use crate::table::{header, table};

/// Show the size of each part of the cache.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// A part of the cache.
struct Part {
    name: &'static str,
    contents: &'static str,
    entries: u64,
    bytes: u64,
    directory: String,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let parts = parts(&directory()?).map_err(|error| unreadable(&error))?;
    if arguments.json {
        let part = |part: &Part| json!({"name": part.name, "entries": part.entries, "bytes": part.bytes, "directory": part.directory});
        return print_json(&parts.iter().map(part).collect());
    }
    let mut rows = vec![header(["NAME", "CONTENTS", "ENTRIES", "SIZE", "DIRECTORY"])];
    rows.extend(parts.into_iter().map(|part| {
        let size = bytes::format(part.bytes);
        vec![part.name.into(), part.contents.into(), part.entries.to_string(), size, part.directory]
    }));
    print(&table(&rows))
}

fn parts(cache: &Path) -> io::Result<Vec<Part>> {
    let mirror = PackageCache::in_directory(cache);
    let usage = mirror.usage()?;
    let mut parts = vec![Part {
        name: "mirror",
        contents: "files and indexes of package registries",
        entries: usage.files + usage.documents,
        bytes: usage.bytes(),
        directory: mirror.directory().display().to_string(),
    }];
    let sections = [("packages", "installed packages of servers and templates"), ("images", "unpacked images")];
    for (name, contents) in sections {
        let directory = cache.join(name);
        let entries = children(&directory.join("ready"))?.len() as u64;
        let bytes = size(&directory)?;
        parts.push(Part { name, contents, entries, bytes, directory: directory.display().to_string() });
    }
    Ok(parts)
}

/// Returns the size of all files below a directory. Symbolic links are not followed.
fn size(directory: &Path) -> io::Result<u64> {
    let mut total = 0;
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in children(&directory)? {
            // An entry may be removed at the same time.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                pending.push(entry.path());
            } else {
                total += metadata.len();
            }
        }
    }
    Ok(total)
}

fn children(directory: &Path) -> io::Result<Vec<std::fs::DirEntry>> {
    match std::fs::read_dir(directory) {
        Ok(entries) => entries.collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
