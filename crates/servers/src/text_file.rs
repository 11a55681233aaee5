//! Reads text files that other programs wrote. A file is read completely or not at all.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Maximum size of a file. Some clients store much else in the file with their servers.
const MAX_BYTES: u64 = 16 << 20;

/// Whether the last component of the path may be a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// For settings of users, who may link them to another directory.
    Follow,
    /// For files of a project, which must not choose other files to be read.
    Refuse,
}

/// Returns the text of a file, or `None` if it does not exist. The error is a message about the file.
pub(crate) fn read(path: &Path, links: Links) -> Result<Option<String>, String> {
    let message = |error: std::io::Error| match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::LOOP) => "the file is a symbolic link".to_owned(),
        _ => format!("the file cannot be read: {error}"),
    };
    let file = match open(path, links) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        opened => opened.map_err(message)?,
    };
    if !file.metadata().map_err(message)?.is_file() {
        return Err("not a regular file".into());
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(message)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("the file is larger than {} MiB", MAX_BYTES >> 20));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| "the file is not UTF-8 text".into())
}

fn open(path: &Path, links: Links) -> std::io::Result<File> {
    // Without NONBLOCK, opening a FIFO would wait for a writer.
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    if links == Links::Refuse {
        flags |= OFlags::NOFOLLOW;
    }
    OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_only_regular_text_files_up_to_the_limit() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("file"), "text").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("endless")).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        std::fs::write(at("bytes"), [0xff, 0xfe]).unwrap();
        File::create(at("huge")).unwrap().set_len(MAX_BYTES + 1).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let read = |name: &str, links| read(&at(name), links);
        assert_eq!(read("file", Links::Refuse), Ok(Some("text".into())));
        assert_eq!(read("link", Links::Follow), Ok(Some("text".into())));
        assert_eq!(read("link", Links::Refuse), Err("the file is a symbolic link".into()));
        assert_eq!(read("none", Links::Follow), Ok(None));
        assert_eq!(read("file/none", Links::Follow), Ok(None));
        for not_regular in ["endless", "directory", "pipe"] {
            assert_eq!(read(not_regular, Links::Follow), Err("not a regular file".into()), "{not_regular}");
        }
        assert_eq!(read("bytes", Links::Follow), Err("the file is not UTF-8 text".into()));
        assert_eq!(read("huge", Links::Follow), Err("the file is larger than 16 MiB".into()));
    }
}
