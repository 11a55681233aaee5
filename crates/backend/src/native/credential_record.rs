//! The record of an instance's credentials, as a sealed file in memory.
//!
//! The launcher retains the file for the next server, and never reads it: an init is a clone of the launcher, with a copy
//! of its memory. The file is closed on exec, and an init closes all descriptors of the launcher before anything else.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create};
use rustix::io::{Errno, pread, write as write_some};
use zeroize::Zeroizing;

/// Maximum size of a record: 64 placeholders of 8 KiB, with the hosts of their secrets.
const MAX_BYTES: usize = 1 << 20;

const NAME: &str = "ringfence-credentials";

/// The content and the size never change.
const SEALS: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

/// Creates a file with this content.
pub(super) fn write(record: &str) -> io::Result<OwnedFd> {
    if record.len() > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the record of the credentials is longer than 1 MiB"));
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = match memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno::INVAL) => memfd_create(NAME, flags)?,
        created => created?,
    };
    let mut rest = record.as_bytes();
    while !rest.is_empty() {
        rest = &rest[write_some(&file, rest)?..];
    }
    fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}

/// Reads a file that [`write()`] has created. Other files are refused.
pub(super) fn read(file: impl AsFd) -> io::Result<Zeroizing<String>> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "the record of the credentials is invalid");
    if !fcntl_get_seals(&file)?.contains(SEALS) {
        return Err(invalid());
    }
    let size = usize::try_from(fstat(&file)?.st_size).ok().filter(|size| *size <= MAX_BYTES).ok_or_else(invalid)?;
    let mut content = Zeroizing::new(vec![0; size]);
    let mut length = 0;
    while length < size {
        match pread(&file, &mut content[length..], length as u64)? {
            0 => return Err(invalid()),
            read => length += read,
        }
    }
    let text = std::str::from_utf8(&content).map_err(|_| invalid())?;
    Ok(Zeroizing::new(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_is_read_again_and_cannot_be_changed() {
        let record = "x".repeat(100_000);
        let file = write(&record).unwrap();
        for _ in 0..2 {
            assert_eq!(*read(&file).unwrap(), record);
        }
        assert_eq!(write_some(&file, b"y"), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&file, 0), Err(Errno::PERM));
        assert!(rustix::io::fcntl_getfd(&file).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn too_long_and_foreign_records_are_refused() {
        assert!(write(&"x".repeat(MAX_BYTES)).is_ok());
        assert!(write(&"x".repeat(MAX_BYTES + 1)).is_err());
        let unsealed = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(read(&unsealed).is_err());
        fcntl_add_seals(&unsealed, SEALS).unwrap();
        assert_eq!(*read(&unsealed).unwrap(), "");
        assert!(read(tempfile::tempfile().unwrap()).is_err());
    }
}
