//! The members of a tar archive, with their long names.
//!
//! The crate `tar` would read what stands before a member to its end, however long that is; here it has a bound. A size
//! that two headers tell differently is refused: other programs would find other files in such an archive.

use std::io::{self, Read};

use tar::{Entries, EntryType};

use super::bounds::EXTENSION_BYTES;
use super::error::{ImageError, plain};

/// A member, without its content.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) path: Vec<u8>,
    /// What a link of either kind leads to.
    pub(super) target: Vec<u8>,
    pub(super) kind: EntryType,
    pub(super) mode: u32,
    /// In seconds since 1970.
    pub(super) modified: u64,
    pub(super) size: u64,
    /// Where in the archive its content begins.
    pub(super) position: u64,
}

impl Member {
    pub(super) fn refused(&self, problem: impl Into<String>) -> ImageError {
        ImageError::Entry { path: plain(&String::from_utf8_lossy(&self.path)), problem: problem.into() }
    }
}

/// What was said of the next member before it.
#[derive(Default)]
struct Before {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
}

/// Visits each; `broken` says what it means if there is no next one.
pub(super) fn each<R: Read>(
    entries: Entries<'_, R>,
    broken: impl Fn(io::Error) -> ImageError,
    mut visit: impl FnMut(&Member, &mut dyn Read) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    let mut before = Before::default();
    for entry in entries.raw(true) {
        let mut entry = entry.map_err(&broken)?;
        let kind = entry.header().entry_type();
        match kind {
            EntryType::GNULongName => before.path = Some(text(&mut entry).map_err(&broken)?),
            EntryType::GNULongLink => before.target = Some(text(&mut entry).map_err(&broken)?),
            EntryType::XHeader => before.read(&extension(&mut entry).map_err(&broken)?).map_err(&broken)?,
            EntryType::XGlobalHeader => {}
            _ => {
                let Before { path, target, size } = std::mem::take(&mut before);
                let header = entry.header();
                let member = Member {
                    path: path.unwrap_or_else(|| header.path_bytes().into_owned()),
                    target: target.or_else(|| header.link_name_bytes().map(Into::into)).unwrap_or_default(),
                    kind,
                    mode: header.mode().map_err(&broken)?,
                    // What cannot be read is of no weight.
                    modified: header.mtime().unwrap_or_default(),
                    size: entry.size(),
                    position: entry.raw_file_position(),
                };
                if size.is_some_and(|size| size != member.size) {
                    return Err(member.refused("its size is told in two ways, as of files over 8 GiB"));
                }
                visit(&member, &mut entry)?;
            }
        }
    }
    Ok(())
}

fn extension<R: Read>(entry: &mut tar::Entry<'_, R>) -> io::Result<Vec<u8>> {
    if entry.size() > EXTENSION_BYTES {
        return Err(io::Error::other("a name or attribute is longer than 1 MiB"));
    }
    let mut content = Vec::new();
    entry.read_to_end(&mut content)?;
    Ok(content)
}

/// A zero ends it.
fn text<R: Read>(entry: &mut tar::Entry<'_, R>) -> io::Result<Vec<u8>> {
    let mut content = extension(entry)?;
    let end = content.iter().position(|byte| *byte == 0).unwrap_or(content.len());
    content.truncate(end);
    Ok(content)
}

impl Before {
    /// `LENGTH KEY=VALUE` and the end of a line, again and again; the length is that of all these, and a value may hold
    /// anything (pax(1), "pax Extended Header").
    fn read(&mut self, mut records: &[u8]) -> io::Result<()> {
        while !records.is_empty() {
            let (key, value, rest) = record(records).ok_or_else(|| io::Error::other("attributes are malformed"))?;
            match key {
                b"path" => self.path = Some(value.to_owned()),
                b"linkpath" => self.target = Some(value.to_owned()),
                b"size" => {
                    let size = str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    self.size = Some(size.ok_or_else(|| io::Error::other("a size is malformed"))?);
                }
                _ => {}
            }
            records = rest;
        }
        Ok(())
    }
}

fn record(records: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = records.iter().position(|byte| *byte == b' ')?;
    let length: usize = str::from_utf8(&records[..space]).ok()?.parse().ok()?;
    let (record, rest) = records.split_at_checked(length)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((&record[..equals], &record[equals + 1..], rest))
}
