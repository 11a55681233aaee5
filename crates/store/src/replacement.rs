//! Puts a new database with all that can be read in the place of a broken one, which is kept.
//!
//! Whoever is killed in between loses nothing: until the new one is whole and on the disk, the broken one stays where it
//! is, and the next server begins anew; from then on, the next server only finishes. All of it is done by one that has
//! the database alone.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::StoreError;
use super::database::{NAME, beside, open_at};
use super::loss::{self, Loss};
use super::salvage::{Report, salvage};
use ringfence_core::now_ms;

/// What `SQLite` keeps beside a database. None of it may meet another database than its own.
const BESIDE: [&str; 3] = ["-shm", "-wal", "-journal"];

/// Copies that are kept.
const MOST_COPIES: usize = 10_000;

/// Keeps a broken database aside, and puts a new one with all that can be read of it in its place. If that fails, the
/// broken one is left as it was.
pub(super) fn replace(path: &Path, why: &rusqlite::Error) -> Result<(), StoreError> {
    let new = beside(path, ".new");
    let made = make(path, &new).and_then(|report| {
        let aside = keep_aside(path)?;
        // Before the replacement, so that the loss is reported even if this process is killed right after it.
        write_report(&aside, why, &report).map_err(|source| failed(&aside, source))?;
        Ok((report, aside))
    });
    let (report, aside) = made.map_err(|source| {
        let _ = remove_with_log(&new);
        StoreError::NotSaved { path: path.to_owned(), why: why.to_string(), source: Box::new(source) }
    })?;
    reached("aside");
    let kept = if report.is_whole() { "nothing is known to be lost" } else { "what could be read is in a new one" };
    let (shown, aside) = (path.display(), aside.display());
    tracing::error!("the database {shown} was broken ({why}); it is kept as {aside}, and {kept} ({report})");
    fs::rename(&new, ready(path)).and_then(|()| sync_directory(path)).map_err(|source| failed(path, source))?;
    reached("ready");
    finish(path)
}

fn write_report(aside: &Path, why: &rusqlite::Error, report: &Report) -> io::Result<()> {
    loss::write(&Loss {
        kept: aside.to_owned(),
        time_ms: now_ms(),
        reason: why.to_string(),
        summary: report.to_string(),
        lost_tables: report.lost_tables().into_iter().map(ToOwned::to_owned).collect(),
        is_unknown: false,
    })
}

/// Makes the new database: one file, whole, and on the disk.
fn make(path: &Path, new: &Path) -> Result<Report, StoreError> {
    remove_with_log(new).map_err(|source| failed(new, source))?;
    let mut connection = open_at(new)?;
    let report = salvage(path, &mut connection)?;
    checkpoint(&connection)?;
    connection.close().map_err(|(_, error)| error)?;
    File::open(new).and_then(|file| file.sync_all()).map_err(|source| failed(new, source))?;
    reached("made");
    Ok(report)
}

/// What is in the log only does not go with the file.
fn checkpoint(connection: &Connection) -> Result<(), StoreError> {
    let is_busy: bool = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
    if is_busy { Err(StoreError::Write("its log is in use".into())) } else { Ok(()) }
}

/// Whether a new one was made, and not yet put in its place.
pub(super) fn is_ready(path: &Path) -> bool {
    ready(path).exists()
}

/// Puts a new one that is ready in its place, and removes what was left by those that were killed before they had one.
pub(super) fn finish(path: &Path) -> Result<(), StoreError> {
    let finish = || {
        if is_ready(path) {
            // Its log first: with the new one in its place, it would be taken for that one's.
            remove_beside(path)?;
            sync_directory(path)?;
            reached("without a log");
            fs::rename(ready(path), path)?;
            sync_directory(path)?;
            reached("in its place");
        }
        sweep(path)
    };
    finish().map_err(|source| failed(path, source))
}

fn sweep(path: &Path) -> io::Result<()> {
    let Some(directory) = path.parent() else { return Ok(()) };
    for file in fs::read_dir(directory)? {
        let file = file?;
        let name = file.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(NAME)).unwrap_or_default();
        if rest.starts_with(".new") || rest.contains(".salvage") {
            fs::remove_file(file.path())?;
        }
    }
    Ok(())
}

/// Gives the database and its log further names that are free; they keep their own until a new one takes their place.
fn keep_aside(path: &Path) -> Result<PathBuf, StoreError> {
    let numbered = |number: usize| beside(path, &format!(".broken-{number}"));
    let number = (1..MOST_COPIES).find(|number| !numbered(*number).exists()).unwrap_or(MOST_COPIES);
    // One that was killed before it was ready may have kept it already.
    let last = numbered(number - 1);
    if is_same(path, &last) {
        return Ok(last);
    }
    let aside = numbered(number);
    let log = beside(path, "-wal");
    let kept = || {
        // The database last: a copy without its log would look whole. An empty log is none.
        if fs::metadata(&log).is_ok_and(|log| log.len() > 0) {
            keep(&log, &beside(&aside, "-wal"))?;
        }
        keep(path, &aside)?;
        sync_directory(path)
    };
    kept().map_err(|source| failed(&aside, source))?;
    Ok(aside)
}

fn keep(from: &Path, to: &Path) -> io::Result<()> {
    remove(to)?;
    // Not every file system has links.
    fs::hard_link(from, to).or_else(|_| copy(from, to))
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let copied = fs::copy(from, to).and_then(|_| File::open(to)?.sync_all());
    if copied.is_err() {
        let _ = fs::remove_file(to);
    }
    copied
}

fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

fn ready(path: &Path) -> PathBuf {
    beside(path, ".ready")
}

fn remove_with_log(path: &Path) -> io::Result<()> {
    remove_beside(path)?;
    remove(path)
}

fn remove_beside(path: &Path) -> io::Result<()> {
    BESIDE.iter().try_for_each(|end| remove(&beside(path, end)))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// So that a rename survives a power cut.
fn sync_directory(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

fn failed(path: &Path, source: io::Error) -> StoreError {
    StoreError::Directory { path: path.to_owned(), source }
}

/// Where tests let the process die.
#[cfg(not(test))]
fn reached(_step: &str) {}

#[cfg(test)]
use super::tests::crashes::reached;
