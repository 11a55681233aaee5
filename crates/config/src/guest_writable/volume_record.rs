//! A record of the directories that guests could write, for later starts with the same state directory.
//!
//! `ringfence.toml` in the working directory is read without being named. In a directory that guests could write, that
//! is safe only for a file that existed before, because such a file is read-only for guests. A guest may have written
//! one that appeared later. The user can name it with `--config`; a server that is started in this way with the same
//! volume also approves it for later starts.
//!
//! The file has one JSON object per line, and is only appended to.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::paths::visited;

const FILE_NAME: &str = "guest-volumes.jsonl";

/// Volumes that no longer exist are dropped beyond this size.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// A volume, with the configuration files and directories in it that guests could not write.
    Volume { path: PathBuf, present: Vec<PathBuf> },
    /// A configuration file that the user has named.
    Approved { path: PathBuf },
}

/// The record of one state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeRecord(PathBuf);

impl VolumeRecord {
    pub(crate) fn in_directory(state: &Path) -> Self {
        Self(state.join(FILE_NAME))
    }

    /// Adds volumes by their real paths, before guests get them. `present` are configuration files that guests cannot
    /// write; `named` is the one that the user named explicitly.
    pub(crate) fn add(&self, volumes: &[PathBuf], present: &[PathBuf], named: Option<&Path>) -> std::io::Result<()> {
        let known = self.read()?;
        let mut new = Vec::new();
        for volume in volumes {
            // A file that is absent at any start is not trusted when it appears later: each different state is a line.
            let present = present.iter().filter(|path| path.starts_with(volume)).cloned().collect();
            let line = Line::Volume { path: volume.clone(), present };
            new.extend((!known.contains(&line)).then_some(line));
        }
        if let Some(named) = named.filter(|named| volumes.iter().any(|volume| named.starts_with(volume))) {
            let line = Line::Approved { path: named.to_owned() };
            new.extend((!known.contains(&line)).then_some(line));
        }
        if new.is_empty() { Ok(()) } else { self.append(known, &new) }
    }

    /// Returns the volume through which a guest could have created or changed this file of ringfence, if there is one.
    pub(crate) fn written_by_guest(&self, file: &Path) -> Option<PathBuf> {
        let steps = visited(file);
        let end = steps.last()?;
        // An unreadable record may contain this directory.
        let Ok(lines) = self.read() else { return end.parent().map(Path::to_owned) };
        if lines.contains(&Line::Approved { path: end.clone() }) {
            return None;
        }
        lines.into_iter().find_map(|line| match line {
            Line::Volume { path, present } => {
                let is_inside = steps.iter().any(|step| step.starts_with(&path));
                // Guests see a protected directory empty, so they can write nothing in it.
                let is_protected = present.iter().any(|protected| end.starts_with(protected));
                (is_inside && !is_protected).then_some(path)
            }
            Line::Approved { .. } => None,
        })
    }

    /// Reads the record. A missing file means that there were no volumes.
    fn read(&self) -> std::io::Result<Vec<Line>> {
        let mut bytes = Vec::new();
        match File::open(&self.0).and_then(|file| file.take(4 * MAX_BYTES).read_to_end(&mut bytes)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
    }

    fn append(&self, known: Vec<Line>, new: &[Line]) -> std::io::Result<()> {
        let encode = |lines: &[Line]| -> String {
            lines.iter().filter_map(|line| serde_json::to_string(line).ok()).map(|line| line + "\n").collect()
        };
        if fs::metadata(&self.0).is_ok_and(|metadata| metadata.len() > MAX_BYTES) {
            let exists = |line: &Line| match line {
                Line::Volume { path, .. } | Line::Approved { path } => path.exists(),
            };
            let remaining: Vec<Line> = known.into_iter().filter(exists).collect();
            let next = self.0.with_extension(format!("{}.new", std::process::id()));
            fs::write(&next, encode(&remaining))?;
            fs::rename(&next, &self.0)?;
        }
        if let Some(directory) = self.0.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.0)?;
        // One write, so that lines of several processes do not mix.
        file.write_all(encode(new).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_that_appeared_in_volume_is_refused_unless_user_named_it() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        for name in ["state", "shown/below", "other"] {
            fs::create_dir_all(base.join(name)).unwrap();
        }
        let record = VolumeRecord::in_directory(&base.join("state"));
        let (volume, present) = (base.join("shown"), base.join("shown/present.toml"));
        assert_eq!(record.written_by_guest(&base.join("shown/ringfence.toml")), None);
        record.add(std::slice::from_ref(&volume), std::slice::from_ref(&present), None).unwrap();
        assert_eq!(record.written_by_guest(&present), None);
        assert_eq!(record.written_by_guest(&base.join("other/ringfence.toml")), None);
        let planted = [base.join("shown/ringfence.toml"), base.join("shown/below/ringfence.toml")];
        for file in &planted {
            assert_eq!(record.written_by_guest(file), Some(volume.clone()), "{}", file.display());
        }
        // A later start must not treat it as a file that existed before.
        record.add(std::slice::from_ref(&volume), &planted, None).unwrap();
        assert_eq!(record.written_by_guest(&planted[0]), Some(volume.clone()));
        for _ in 0..2 {
            record.add(std::slice::from_ref(&volume), &[], Some(&planted[0])).unwrap();
        }
        assert_eq!(record.written_by_guest(&planted[0]), None);
        assert_eq!(record.written_by_guest(&planted[1]), Some(volume));
        assert_eq!(fs::read_to_string(base.join("state").join(FILE_NAME)).unwrap().lines().count(), 4);
        // A file that was absent at one start is not trusted when it appears again.
        assert_eq!(record.written_by_guest(&present), Some(base.join("shown")));
    }

    #[test]
    fn file_in_protected_directory_was_not_written_by_guest() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        let record = VolumeRecord::in_directory(&base.join("state"));
        record.add(std::slice::from_ref(&base), &[base.join("state")], None).unwrap();
        assert_eq!(record.written_by_guest(&base.join("state/file")), None);
        assert_eq!(record.written_by_guest(&base.join("state-2/file")), Some(base));
    }

    #[test]
    fn deleted_volumes_are_dropped_from_large_record() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        let record = VolumeRecord::in_directory(&base);
        let deleted: Vec<PathBuf> = (0..20_000).map(|number| format!("/deleted/{number:0>60}").into()).collect();
        record.add(&deleted, &[], None).unwrap();
        record.add(std::slice::from_ref(&base), &[], None).unwrap();
        assert!(fs::metadata(base.join(FILE_NAME)).unwrap().len() < 1000);
        assert_eq!(record.written_by_guest(&base.join("ringfence.toml")), Some(base));
    }
}
