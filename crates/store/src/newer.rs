//! Recognises a database of a newer ringfence by its raw bytes, before `SQLite` or the repair code looks at it.
//!
//! A newer program may use a page size, a schema or a log that looks like damage to this one. Its format number is in the
//! header of the database, or of the copy of that page in the write-ahead log.
//!
//! Only for a database that no process has open: <https://www.sqlite.org/fileformat2.html>.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

use super::StoreError;
use super::database::beside;
use super::migrations::MIGRATIONS;

const MAGIC: &[u8] = b"SQLite format 3\0";
const HEADER_BYTES: usize = 100;
const HEADER_LENGTH: i64 = 100;
/// Where `PRAGMA user_version` is in the header.
const FORMAT_AT: usize = 60;

const LOG_HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;

/// Formats are numbered one by one. A higher number, in a file that cannot be read otherwise, is damage.
const MAX_FORMAT: u32 = 10_000;

pub(super) fn refuse_newer(path: &Path) -> Result<(), StoreError> {
    let read = || Ok::<_, io::Error>([of_database(path)?, of_log(&beside(path, "-wal"))?]);
    let formats = read().map_err(|source| StoreError::File { path: path.to_owned(), source })?;
    let known = MIGRATIONS.len();
    let is_newer = |format: &u32| *format <= MAX_FORMAT && usize::try_from(*format).is_ok_and(|format| format > known);
    match formats.into_iter().flatten().find(is_newer) {
        Some(found) => Err(StoreError::Newer { path: path.to_owned(), found: found.into(), known }),
        None => Ok(()),
    }
}

fn of_database(path: &Path) -> io::Result<Option<u32>> {
    let Some(mut file) = open(path)? else { return Ok(None) };
    let mut header = [0; HEADER_BYTES];
    Ok(read_whole(&mut file, &mut header)?.then(|| format_in(&header)).flatten())
}

/// The format in the newest copy of the first page. Frames of an earlier use of the log have other salts.
fn of_log(path: &Path) -> io::Result<Option<u32>> {
    let Some(file) = open(path)? else { return Ok(None) };
    let mut file = BufReader::new(file);
    let mut header = [0; LOG_HEADER_BYTES];
    if !read_whole(&mut file, &mut header)? {
        return Ok(None);
    }
    let page_bytes = i64::from(number(&header, 8));
    if !(512..=65_536).contains(&page_bytes) {
        return Ok(None);
    }
    let (mut frame, mut first, mut format) = ([0; FRAME_HEADER_BYTES], [0; HEADER_BYTES], None);
    while read_whole(&mut file, &mut frame)? && frame[8..16] == header[16..24] && read_whole(&mut file, &mut first)? {
        if number(&frame, 0) == 1 {
            format = format_in(&first).or(format);
        }
        file.seek_relative(page_bytes - HEADER_LENGTH)?;
    }
    Ok(format)
}

fn format_in(header: &[u8; HEADER_BYTES]) -> Option<u32> {
    header.starts_with(MAGIC).then(|| number(header, FORMAT_AT))
}

fn number(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// None for anything but a regular file, which is refused later: opening a FIFO would block.
fn open(path: &Path) -> io::Result<Option<File>> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(found) if found.is_file() => File::open(path).map(Some),
        Ok(_) => Ok(None),
    }
}

/// Returns false if the file is shorter.
fn read_whole(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}
