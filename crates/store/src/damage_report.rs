//! Reports of damaged databases that were replaced.
//!
//! The damaged files are retained, with the report beside them. The server and the commands repeat the report until a
//! person removes these files, because a single log message is easily missed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::directory::{DATABASE, SIDE_FILES, with_suffix};

/// Follows the name of the database in the names of damaged ones; a time follows it.
const DAMAGED: &str = ".damaged-";

/// Suffix of a report, after the name of the damaged database.
pub(crate) const REPORT: &str = ".report";

/// Maximum size of a report; a larger file was not written by ringfence.
const MAX_REPORT_BYTES: u64 = 64 << 10;

/// A damaged database that was replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamageReport {
    /// File name of the damaged database.
    pub(crate) damaged: String,
    /// The time of the recovery, such as `2026-01-31 12:00:00 UTC`.
    pub time: String,
    /// The damage that was found.
    pub reason: String,
    /// The backup that replaced it; none if an empty database did.
    pub restored: Option<RestoredBackup>,
    /// The backups that could not be used, each with the reason.
    pub unusable_backups: Vec<String>,
    #[serde(skip)]
    directory: PathBuf,
}

/// The backup that replaced a damaged database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredBackup {
    pub file: String,
    /// The time of the backup.
    pub time: String,
}

impl DamageReport {
    /// Creates the report of a recovery at this time. No other file uses the name for the damaged database.
    pub(crate) fn new(directory: &Path, time: String, reason: &str) -> Self {
        let digits: String = time.chars().filter(char::is_ascii_digit).collect();
        let first = format!("{DATABASE}{DAMAGED}{digits}");
        let used = damaged_names(directory);
        let numbered = (2..).map(|number| format!("{first}-{number}"));
        let damaged = std::iter::once(first.clone()).chain(numbered).find(|name| !used.contains(name));
        let report = Self::unknown(directory, damaged.unwrap_or(first));
        Self { time, reason: reason.to_owned(), ..report }
    }

    /// The report of damaged files whose own report is missing or cannot be read.
    fn unknown(directory: &Path, damaged: String) -> Self {
        let (time, reason, directory) = (String::new(), String::new(), directory.to_owned());
        Self { damaged, time, reason, restored: None, unusable_backups: Vec::new(), directory }
    }

    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let mut text = String::new();
        File::open(path)?.take(MAX_REPORT_BYTES).read_to_string(&mut text)?;
        let report: Self = serde_json::from_str(&text)?;
        Ok(Self { directory: path.parent().unwrap_or(Path::new(".")).to_owned(), ..report })
    }

    /// Path of the damaged database. The other damaged files and the report have the same name with a suffix.
    pub fn damaged_file(&self) -> PathBuf {
        self.directory.join(&self.damaged)
    }

    /// One line: the damage, the replacement, and the data that may be missing.
    pub fn message(&self) -> String {
        let Self { time, reason, restored, unusable_backups, .. } = self;
        if time.is_empty() {
            return "the state database was damaged and was replaced; the report of it cannot be read".into();
        }
        let replacement = match restored {
            Some(RestoredBackup { file, time }) => {
                format!("the backup {file} of {time} was restored; all changes after that time are lost")
            }
            None => "there was no usable backup, so an empty one replaced it; all its data is lost".to_owned(),
        };
        let unusable = match &unusable_backups[..] {
            [] => String::new(),
            unusable => format!(" (unusable: {})", unusable.join("; ")),
        };
        format!("the state database was found damaged at {time} ({reason}); {replacement}{unusable}")
    }

    pub fn hint(&self) -> String {
        let damaged = self.damaged_file();
        format!(
            "add again what is missing, and remove again what has come back; then remove {}* to end this message",
            damaged.display()
        )
    }
}

/// Returns the reports of a state directory whose damaged files were not removed yet, the oldest first.
pub fn damage_reports(directory: &Path) -> Vec<DamageReport> {
    let read = |damaged: String| {
        let report = DamageReport::read(&with_suffix(&directory.join(&damaged), REPORT));
        report.unwrap_or_else(|_| DamageReport::unknown(directory, damaged))
    };
    damaged_names(directory).into_iter().map(read).collect()
}

/// Returns the names of damaged databases of which any file exists, in the order of their times.
fn damaged_names(directory: &Path) -> BTreeSet<String> {
    let Ok(files) = fs::read_dir(directory) else { return BTreeSet::new() };
    let names = files.flatten().filter_map(|file| file.file_name().into_string().ok());
    let base = |name: String| {
        let suffix = SIDE_FILES.iter().chain([&REPORT]).find(|suffix| name.ends_with(**suffix));
        name[..name.len() - suffix.map_or(0, |suffix| suffix.len())].to_owned()
    };
    names.filter(|name| name.starts_with(&format!("{DATABASE}{DAMAGED}"))).map(base).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(directory: &Path, second: u32) -> DamageReport {
        let restored = RestoredBackup { file: "ringfence.db.backup-1".into(), time: "2026-01-31 11:00:00 UTC".into() };
        let report = DamageReport::new(directory, format!("2026-01-31 12:00:{second:02} UTC"), "malformed");
        let report = DamageReport { restored: Some(restored), ..report };
        let text = serde_json::to_vec(&report).unwrap();
        fs::write(with_suffix(&report.damaged_file(), REPORT), text).unwrap();
        report
    }

    #[test]
    fn reports_are_listed_until_all_damaged_files_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        assert_eq!(damage_reports(path), []);
        let second = report(path, 2);
        let first = report(path, 1);
        let third = report(path, 2);
        assert_eq!(third.damaged, "ringfence.db.damaged-20260131120002-2");
        fs::write(with_suffix(&second.damaged_file(), "-wal"), "").unwrap();
        assert_eq!(damage_reports(path), [first, second.clone(), third]);
        fs::remove_file(with_suffix(&second.damaged_file(), REPORT)).unwrap();
        let unknown = &damage_reports(path)[1];
        assert_eq!(unknown.damaged_file(), second.damaged_file());
        assert!(unknown.message().contains("cannot be read"), "{unknown:?}");
        fs::remove_file(with_suffix(&second.damaged_file(), "-wal")).unwrap();
        assert_eq!(damage_reports(path).len(), 2);
    }

    #[test]
    fn message_names_damage_replacement_and_loss() {
        let directory = tempfile::tempdir().unwrap();
        let restored = report(directory.path(), 1);
        insta::assert_snapshot!(restored.message(), @"the state database was found damaged at 2026-01-31 12:00:01 UTC (malformed); the backup ringfence.db.backup-1 of 2026-01-31 11:00:00 UTC was restored; all changes after that time are lost");
        let unusable_backups = vec!["ringfence.db.backup-1: file is not a database".to_owned()];
        let empty = DamageReport { restored: None, unusable_backups, ..restored };
        insta::assert_snapshot!(empty.message(), @"the state database was found damaged at 2026-01-31 12:00:01 UTC (malformed); there was no usable backup, so an empty one replaced it; all its data is lost (unusable: ringfence.db.backup-1: file is not a database)");
        assert!(
            empty.hint().ends_with("/ringfence.db.damaged-20260131120001* to end this message"),
            "{}",
            empty.hint()
        );
    }
}
