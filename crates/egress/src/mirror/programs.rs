//! Programs that the mirror downloads for sandboxes: uv, on hosts without it.
//!
//! The host never executes a program. Sandboxes have its directory read-only, and the program appears there while they
//! run. The wheel that contains it has a fixed hash, so its position in the wheel is fixed too, and no archive is parsed.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use flate2::read::DeflateDecoder;
use tokio::time::Instant;

use super::Inner;
use super::cache::PackageCache;
use super::error::MirrorError;
use super::guest::Guest;
use super::hash::FileHash;
use super::indexes::blocking;
use super::names::PythonName;
use super::response::Response;
use super::service::Request;

/// A program within a wheel of a Python index.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    pub(super) wheel: &'static str,
    /// SHA-256 of the wheel.
    pub(super) wheel_hash: &'static str,
    /// Position of the compressed program in the wheel.
    pub(super) offset: u64,
    pub(super) compressed_bytes: u64,
    pub(super) bytes: u64,
}

/// uv, linked statically, so that it runs in every root file system.
#[cfg(target_arch = "x86_64")]
pub(super) static UV: Option<&Program> = Some(&Program {
    name: "uv",
    version: "0.13.8",
    wheel: "uv-0.13.8-py3-none-musllinux_1_1_x86_64.whl",
    wheel_hash: "29451c60f5e8b07403e0a175d5229efc36b0289b34143ff4aaa499a5dd52553a",
    offset: 2336,
    compressed_bytes: 18_823_644,
    bytes: 43_891_752,
});
#[cfg(target_arch = "aarch64")]
pub(super) static UV: Option<&Program> = Some(&Program {
    name: "uv",
    version: "0.13.8",
    wheel: "uv-0.13.8-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl",
    wheel_hash: "0b3e8b1a4f5e405e31e2ff33de8af4744831e9f7338539671efbd8c3c94e791d",
    offset: 2336,
    compressed_bytes: 17_644_373,
    bytes: 35_453_000,
});
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) static UV: Option<&Program> = None;

/// Time after a failure in which uv is not requested again.
const RETRY_DELAY: Duration = Duration::from_secs(60);

/// Request for a file that is complete: a request for a part is never served from a running download.
const COMPLETE: Request<'_> = Request { target: "", accept: "", range: Some("bytes=0-0"), if_none_match: None };

impl Program {
    fn directory(&self, cache: &PackageCache) -> PathBuf {
        cache.programs_directory().join(format!("{}-{}", self.name, self.version))
    }

    /// Decompresses the program from its wheel.
    fn unpack(&self, mut wheel: File, cache: &PackageCache) -> io::Result<()> {
        wheel.seek(SeekFrom::Start(self.offset))?;
        let mut program = DeflateDecoder::new(wheel.take(self.compressed_bytes)).take(self.bytes);
        let mut file = cache.new_file()?;
        let written = io::copy(&mut program, file.as_file_mut())?;
        if written != self.bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.as_file().sync_data()?;
        // Guests may have another uid.
        file.as_file().set_permissions(fs::Permissions::from_mode(0o755))?;
        file.persist(self.directory(cache).join(self.name))?;
        Ok(())
    }
}

/// Creates the directory of a program, which guests of any uid can read.
pub(super) fn create_directory(program: &Program, cache: &PackageCache) -> io::Result<PathBuf> {
    let directory = program.directory(cache);
    if !directory.is_dir() {
        cache.create()?;
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&directory)?;
        // The umask may have removed permissions.
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755))?;
    }
    Ok(directory)
}

impl Inner {
    /// Makes uv available in its directory. Guests request it whenever they need it, so a failure is remembered: without a
    /// network, their installations would wait for it each time.
    pub(super) async fn uv(self: &Arc<Self>, guest: &Arc<Guest>) -> Result<Response, MirrorError> {
        let has_failed = self.uv_failure.lock().is_some_and(|at| at.elapsed() < RETRY_DELAY);
        let program = self.uv.filter(|_| !has_failed).ok_or(MirrorError::Missing)?;
        let provided = self.provide(guest, program).await;
        // The budget of one sandbox says nothing about others.
        if provided.as_ref().is_err_and(|error| *error != MirrorError::Budget) {
            *self.uv_failure.lock() = Some(Instant::now());
        }
        provided
    }

    async fn provide(self: &Arc<Self>, guest: &Arc<Guest>, program: &'static Program) -> Result<Response, MirrorError> {
        let cache = self.cache.clone();
        if !blocking(move || PackageCache::use_program(&create_directory(program, &cache)?.join(program.name))).await? {
            let malformed = || MirrorError::Malformed(format!("the entry of {} is invalid", program.name));
            let project = PythonName::parse(program.name).ok_or_else(malformed)?;
            let hash = FileHash::from_path(program.wheel_hash).ok_or_else(malformed)?;
            let found = self.python_file(guest, &project, &hash, program.wheel, false, &COMPLETE).await?;
            let wheel = found.complete().ok_or(MirrorError::Interrupted)?;
            // One request unpacks; the others find the program afterwards.
            let _unpacking = self.unpacking.lock().await;
            let cache = self.cache.clone();
            let unpack = move || {
                let path = program.directory(&cache).join(program.name);
                if PackageCache::use_program(&path)? { Ok(()) } else { program.unpack(wheel, &cache) }
            };
            blocking(unpack).await?;
        }
        let text = format!("{} {}\n", program.name, program.version);
        Ok(Response::ok("text/plain; charset=utf-8", text.into_bytes()))
    }
}
