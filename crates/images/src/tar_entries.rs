//! The entries of a tar archive, with long names from GNU and pax extensions.
//!
//! The `tar` crate reads an extension before an entry completely into memory, whatever its size; this module limits the
//! size. An entry for which two headers state different sizes is refused, because other programs would find other files
//! in such an archive.

use std::io::{self, Read};

use tar::{Entries, EntryType};

use crate::error::{ImageError, printable};
use crate::limits::MAX_TAR_EXTENSION_BYTES;

/// The header of an entry.
#[derive(Debug)]
pub(crate) struct TarEntry {
    pub(crate) path: Vec<u8>,
    /// The target of a symbolic or hard link.
    pub(crate) link_target: Vec<u8>,
    pub(crate) kind: EntryType,
    pub(crate) mode: u32,
    /// Modification time in seconds since 1970.
    pub(crate) modified_s: u64,
    pub(crate) size: u64,
    /// Offset of the content in the archive.
    pub(crate) offset: u64,
}

impl TarEntry {
    /// Returns an error about this entry.
    pub(crate) fn error(&self, problem: impl Into<String>) -> ImageError {
        ImageError::Entry { path: printable(&String::from_utf8_lossy(&self.path)), problem: problem.into() }
    }
}

/// Values from extensions, which apply to the next entry.
#[derive(Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link_target: Option<Vec<u8>>,
    size: Option<u64>,
}

/// Calls `visit` for each entry. `invalid` converts errors of the archive itself.
pub(crate) fn for_each<R: Read>(
    entries: Entries<'_, R>,
    invalid: impl Fn(io::Error) -> ImageError,
    mut visit: impl FnMut(&TarEntry, &mut dyn Read) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    let mut extensions = Extensions::default();
    for entry in entries.raw(true) {
        let mut entry = entry.map_err(&invalid)?;
        let kind = entry.header().entry_type();
        match kind {
            EntryType::GNULongName => extensions.path = Some(read_name(&mut entry).map_err(&invalid)?),
            EntryType::GNULongLink => extensions.link_target = Some(read_name(&mut entry).map_err(&invalid)?),
            EntryType::XHeader => {
                let records = read_extension(&mut entry).map_err(&invalid)?;
                extensions.parse_pax(&records).map_err(&invalid)?;
            }
            EntryType::XGlobalHeader => {}
            _ => {
                let Extensions { path, link_target, size } = std::mem::take(&mut extensions);
                let header = entry.header();
                let tar_entry = TarEntry {
                    path: path.unwrap_or_else(|| header.path_bytes().into_owned()),
                    link_target: link_target.or_else(|| header.link_name_bytes().map(Into::into)).unwrap_or_default(),
                    kind,
                    mode: header.mode().map_err(&invalid)?,
                    // An invalid time is not worth an error.
                    modified_s: header.mtime().unwrap_or_default(),
                    size: entry.size(),
                    offset: entry.raw_file_position(),
                };
                if size.is_some_and(|size| size != tar_entry.size) {
                    return Err(tar_entry.error("two headers state different sizes, as for files over 8 GiB"));
                }
                visit(&tar_entry, &mut entry)?;
            }
        }
    }
    Ok(())
}

fn read_extension<R: Read>(entry: &mut tar::Entry<'_, R>) -> io::Result<Vec<u8>> {
    if entry.size() > MAX_TAR_EXTENSION_BYTES {
        return Err(io::Error::other("a name or attribute is longer than 1 MiB"));
    }
    let mut content = Vec::new();
    entry.read_to_end(&mut content)?;
    Ok(content)
}

/// Reads a long name, which ends with the first NUL.
fn read_name<R: Read>(entry: &mut tar::Entry<'_, R>) -> io::Result<Vec<u8>> {
    let mut content = read_extension(entry)?;
    let end = content.iter().position(|byte| *byte == 0).unwrap_or(content.len());
    content.truncate(end);
    Ok(content)
}

impl Extensions {
    /// Parses pax records: `LENGTH KEY=VALUE` and a line feed each. The length covers the whole record, and the value may
    /// contain any byte (pax(1), "pax Extended Header").
    fn parse_pax(&mut self, mut records: &[u8]) -> io::Result<()> {
        while !records.is_empty() {
            let (key, value, rest) =
                split_pax_record(records).ok_or_else(|| io::Error::other("malformed pax attributes"))?;
            match key {
                b"path" => self.path = Some(value.to_owned()),
                b"linkpath" => self.link_target = Some(value.to_owned()),
                b"size" => {
                    let size = str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    self.size = Some(size.ok_or_else(|| io::Error::other("malformed size in pax attributes"))?);
                }
                _ => {}
            }
            records = rest;
        }
        Ok(())
    }
}

/// Splits the first record off; returns its key, its value and the remaining records.
fn split_pax_record(records: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = records.iter().position(|byte| *byte == b' ')?;
    let length: usize = str::from_utf8(&records[..space]).ok()?.parse().ok()?;
    let (record, rest) = records.split_at_checked(length)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((&record[..equals], &record[equals + 1..], rest))
}
