//! Files that others wrote: read whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Some clients keep much else in the file of their servers.
const MOST_BYTES: u64 = 16 << 20;

/// Whether the name may be a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// People link their settings to where they keep them.
    Follow,
    /// A project is not trusted to say what else is read.
    Refuse,
}

/// The text of a file; nothing if there is none.
pub(crate) fn read(path: &Path, links: Links) -> Result<Option<String>, String> {
    let told = |error: std::io::Error| match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::LOOP) => "it is a link".to_owned(),
        _ => format!("it cannot be read: {error}"),
    };
    let file = match open(path, links) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        opened => opened.map_err(told)?,
    };
    if !file.metadata().map_err(told)?.is_file() {
        return Err("it is not a regular file".into());
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(told)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(format!("it is larger than {} MiB", MOST_BYTES >> 20));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| "it is not text".into())
}

fn open(path: &Path, links: Links) -> std::io::Result<File> {
    // A pipe without a writer would otherwise be waited for.
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
    fn only_files_of_a_sensible_size_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("file"), "text").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("endless")).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        std::fs::write(at("bytes"), [0xff, 0xfe]).unwrap();
        File::create(at("huge")).unwrap().set_len(MOST_BYTES + 1).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let read = |name: &str, links| read(&at(name), links);
        assert_eq!(read("file", Links::Refuse), Ok(Some("text".into())));
        assert_eq!(read("link", Links::Follow), Ok(Some("text".into())));
        assert_eq!(read("link", Links::Refuse), Err("it is a link".into()));
        assert_eq!(read("none", Links::Follow), Ok(None));
        assert_eq!(read("file/none", Links::Follow), Ok(None));
        for not_regular in ["endless", "directory", "pipe"] {
            assert_eq!(read(not_regular, Links::Follow), Err("it is not a regular file".into()), "{not_regular}");
        }
        assert_eq!(read("bytes", Links::Follow), Err("it is not text".into()));
        assert_eq!(read("huge", Links::Follow), Err("it is larger than 16 MiB".into()));
    }
}
