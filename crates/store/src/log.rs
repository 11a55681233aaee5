//! The write-ahead log as it lies on the disk: what of it can be trusted, and whether something in it is lost.
//!
//! `SQLite` reads a log up to the first frame that is not whole, and forgets the rest without a word. That is right for
//! the last transaction of a process that was killed, and wrong for one page of noise before a hundred commits. What is
//! lost is known from the commits behind the first bad frame; or better, while it is there, from the index beside the
//! log, in which the processes that used it noted how long it was. A log that was merely cut off, without its index,
//! cannot be told from one whose last transaction was not finished: that loss stays unsaid.
//!
//! Only for a database that nobody has open: <https://www.sqlite.org/fileformat2.html#the_write_ahead_log>,
//! <https://www.sqlite.org/walformat.html>.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::database::{PAGE, PAGE_BYTES, beside};

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
const FRAME_BYTES: usize = FRAME_HEADER_BYTES + PAGE_BYTES;

/// The lowest bit says in which order the bytes of the sums are.
const MAGIC: u32 = 0x377f_0682;
const VERSION: u32 = 3_007_000;

/// What a log holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Log {
    /// Frames up to the last commit that can be trusted.
    committed: u64,
    /// The length of the database after it, in pages.
    pages: u32,
    /// What is wrong with it, if it is more than a last transaction that was not finished.
    pub(super) damage: Option<String>,
}

type Salts = [u8; 8];

impl Log {
    /// Reads the log of a database that nobody has open.
    pub(super) fn read(database: &Path) -> io::Result<Self> {
        let index = Index::read(&beside(database, "-shm"))?;
        let Some(mut file) = open(&beside(database, "-wal"))? else {
            return Ok(Self::missing(index.as_ref()));
        };
        let mut header = [0; HEADER_BYTES];
        if !read_whole(&mut file, &mut header)? {
            return Ok(Self::missing(index.as_ref()));
        }
        let is_sound = is_sound_header(&header);
        let is_big = is_sound && number(&header, 0) != MAGIC;
        let mut salts = is_sound.then(|| salts_at(&header, 16));
        // Where only its beginning is damaged, its frames still follow from the sum at its end.
        let mut sum = sum_at(&header, 24);
        let (mut log, mut frames, mut is_whole, mut lost_commits) = (Self::default(), 0, true, 0_u64);
        let mut frame = [0; FRAME_BYTES];
        while read_whole(&mut file, &mut frame)? {
            frames += 1;
            let (page, pages, told) = (number(&frame, 0), number(&frame, 4), sum_at(&frame, 16));
            let is_of_this_log = *salts.get_or_insert(salts_at(&frame, 8)) == salts_at(&frame, 8);
            sum = add(add(sum, &frame[..8], is_big), &frame[FRAME_HEADER_BYTES..], is_big);
            is_whole &= is_of_this_log && page != 0 && sum == told;
            if is_whole && pages != 0 {
                (log.committed, log.pages) = (frames, pages);
            }
            // Frames with other salts are of an earlier use of the file.
            lost_commits += u64::from(!is_whole && is_of_this_log && pages != 0);
        }
        let index = index.filter(|index| Some(index.salts) == salts);
        let lost = match &index {
            Some(index) => (log.committed < index.frames)
                .then(|| format!("{} of {} pages in its log can be read", log.committed, index.frames)),
            None => (lost_commits > 0)
                .then(|| format!("at least {lost_commits} commits in its log are behind a damaged page")),
        };
        let headless = (!is_sound).then(|| "its log has no valid beginning".to_owned());
        log.damage = headless.or(lost);
        if log.damage.is_some() && index.is_some_and(|index| index.in_database >= log.committed) {
            // The database is newer than what is left of the log.
            (log.committed, log.pages) = (0, 0);
        }
        Ok(log)
    }

    /// A log that is not there, or has not even a whole header.
    fn missing(index: Option<&Index>) -> Self {
        let lost = index.filter(|index| index.frames > index.in_database);
        let damage = lost.map(|index| format!("its log, which had {} pages, is gone", index.frames));
        Self { damage, ..Self::default() }
    }

    /// Writes the pages that can be trusted into a copy of the database.
    pub(super) fn apply(&self, database: &Path, copy: &File) -> io::Result<()> {
        if self.committed == 0 {
            return Ok(());
        }
        let mut file = BufReader::new(File::open(beside(database, "-wal"))?);
        file.seek(SeekFrom::Start(HEADER_BYTES as u64))?;
        let mut frame = [0; FRAME_BYTES];
        for _ in 0..self.committed {
            file.read_exact(&mut frame)?;
            let before = u64::from(number(&frame, 0).saturating_sub(1));
            copy.write_all_at(&frame[FRAME_HEADER_BYTES..], before * PAGE)?;
        }
        copy.set_len(u64::from(self.pages) * PAGE)
    }
}

/// What the processes that used the log noted about it, in the byte order of this machine.
struct Index {
    /// That were committed.
    frames: u64,
    salts: Salts,
    /// Frames that were written into the database.
    in_database: u64,
}

impl Index {
    const COPY_BYTES: usize = 48;

    /// Nothing if it is not there, or its two copies were not finished.
    fn read(path: &Path) -> io::Result<Option<Self>> {
        let mut bytes = [0; 2 * Self::COPY_BYTES + 4];
        let Some(mut file) = open(path)? else { return Ok(None) };
        if !read_whole(&mut file, &mut bytes)? {
            return Ok(None);
        }
        let native = |at: usize| u32::from_ne_bytes(bytes_at(&bytes, at));
        let sum = add((0, 0), &bytes[..40], cfg!(target_endian = "big"));
        let is_sound = bytes[..Self::COPY_BYTES] == bytes[Self::COPY_BYTES..2 * Self::COPY_BYTES]
            && native(0) == VERSION
            && (native(40), native(44)) == sum;
        Ok(is_sound.then(|| Self {
            frames: native(16).into(),
            salts: salts_at(&bytes, 32),
            in_database: native(2 * Self::COPY_BYTES).into(),
        }))
    }
}

fn open(path: &Path) -> io::Result<Option<BufReader<File>>> {
    match File::open(path) {
        Ok(file) => Ok(Some(BufReader::with_capacity(1 << 16, file))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// False if the file ends before.
fn read_whole(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_sound_header(header: &[u8; HEADER_BYTES]) -> bool {
    let magic = number(header, 0);
    magic & !1 == MAGIC
        && number(header, 4) == VERSION
        && u64::from(number(header, 8)) == PAGE
        && add((0, 0), &header[..24], magic != MAGIC) == sum_at(header, 24)
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut found = [0; N];
    found.copy_from_slice(&bytes[at..at + N]);
    found
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes_at(bytes, at))
}

fn salts_at(bytes: &[u8], at: usize) -> Salts {
    bytes_at(bytes, at)
}

fn sum_at(bytes: &[u8], at: usize) -> (u32, u32) {
    (number(bytes, at), number(bytes, at + 4))
}

/// The sum of `SQLite` over pairs of words.
fn add((mut one, mut two): (u32, u32), bytes: &[u8], is_big: bool) -> (u32, u32) {
    let word = |at: usize, pair: &[u8]| {
        let bytes = bytes_at(pair, at);
        if is_big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    };
    for pair in bytes.chunks_exact(8) {
        one = one.wrapping_add(word(0, pair)).wrapping_add(two);
        two = two.wrapping_add(word(4, pair)).wrapping_add(one);
    }
    (one, two)
}
