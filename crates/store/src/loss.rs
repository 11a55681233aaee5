//! Reports of databases that were broken and had to be replaced.
//!
//! The broken file is preserved, with the report beside it. The server and the commands repeat the report until a
//! person removes that file, because a single log message is easily missed.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::database::{NAME, beside};

/// Maximum size of a report; a larger file was not written by ringfence.
const MAX_REPORT_BYTES: u64 = 64 << 10;

/// A broken database that was replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The broken database, as it was found.
    #[serde(skip)]
    pub kept: PathBuf,
    /// Milliseconds since the epoch.
    pub time_ms: u64,
    /// Why it could not be used.
    pub reason: String,
    /// The recovered and lost rows of each table, as text.
    pub summary: String,
    /// The tables that may lack rows.
    pub lost_tables: Vec<String>,
    /// The report itself could not be read, so anything may be lost.
    #[serde(skip)]
    pub is_unknown: bool,
}

impl Loss {
    /// Whether rows of this table may be lost.
    pub fn affects(&self, table: &str) -> bool {
        self.is_unknown || self.lost_tables.iter().any(|lost| lost == table)
    }

    /// One line: what happened, and what was lost.
    pub fn message(&self) -> String {
        let Self { reason, summary, lost_tables, .. } = self;
        let lost = match (self.is_unknown, &lost_tables[..]) {
            (true, _) => {
                return "the state database was broken and was replaced; there is no report of what was lost".into();
            }
            (false, []) => "nothing is known to be lost".to_owned(),
            (false, lost) => format!("rows may be lost in: {}", lost.join(", ")),
        };
        format!("the state database was broken ({reason}) and was replaced; {lost} ({summary})")
    }

    /// What to do about it.
    pub fn hint(&self) -> String {
        let kept = self.kept.display();
        if self.is_unknown || !self.lost_tables.is_empty() {
            format!(
                "the broken file is kept as {kept}; add again what is missing, then remove that file to end this message"
            )
        } else {
            format!("the broken file is kept as {kept}; remove it to end this message")
        }
    }
}

/// The losses of a state directory whose broken files still exist, the oldest first.
pub fn losses(directory: &Path) -> Vec<Loss> {
    let Ok(files) = fs::read_dir(directory) else { return Vec::new() };
    let number = |name: &str| name.strip_prefix(NAME)?.strip_prefix(".broken-")?.parse::<u64>().ok();
    let mut kept: Vec<(u64, PathBuf)> =
        files.flatten().filter_map(|file| Some((number(file.file_name().to_str()?)?, file.path()))).collect();
    kept.sort();
    kept.into_iter().map(|(_, path)| read(&path)).collect()
}

fn read(kept: &Path) -> Loss {
    let report = || -> io::Result<Loss> {
        let mut text = String::new();
        fs::File::open(report_of(kept))?.take(MAX_REPORT_BYTES).read_to_string(&mut text)?;
        Ok(serde_json::from_str(&text)?)
    };
    let unknown = || Loss {
        kept: PathBuf::new(),
        time_ms: 0,
        reason: String::new(),
        summary: String::new(),
        lost_tables: Vec::new(),
        is_unknown: true,
    };
    Loss { kept: kept.to_owned(), ..report().unwrap_or_else(|_| unknown()) }
}

/// Writes the report beside the broken file.
pub(super) fn write(loss: &Loss) -> io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = report_of(&loss.kept);
    let mut file = fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(&serde_json::to_vec(loss)?)?;
    file.sync_all()
}

fn report_of(kept: &Path) -> PathBuf {
    beside(kept, ".report")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_listed_until_the_broken_file_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(losses(directory.path()), []);
        let kept = directory.path().join("ringfence.db.broken-2");
        let loss = Loss {
            kept: kept.clone(),
            time_ms: 7,
            reason: "malformed".into(),
            summary: "servers: cannot be read".into(),
            lost_tables: vec!["servers".into()],
            is_unknown: false,
        };
        write(&loss).unwrap();
        assert_eq!(losses(directory.path()), [], "a report without its file");
        fs::write(&kept, "").unwrap();
        fs::write(directory.path().join("ringfence.db.broken-2-wal"), "").unwrap();
        assert_eq!(losses(directory.path()), std::slice::from_ref(&loss));
        assert!(loss.affects("servers") && !loss.affects("audit"));
        assert!(loss.message().contains("servers: cannot be read") && loss.hint().contains("broken-2"));
        fs::write(directory.path().join("ringfence.db.broken-10"), "").unwrap();
        let found = losses(directory.path());
        assert!(found.len() == 2 && found[1].is_unknown && found[1].affects("audit"), "{found:?}");
        fs::remove_file(&kept).unwrap();
        assert_eq!(losses(directory.path()).len(), 1);
    }
}
