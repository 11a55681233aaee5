//! Files that tests use: fixtures, files of the repository, and the program under test.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

/// Returns the path of a file or directory in `crates/testkit/fixtures`.
pub fn fixture_path(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "fixtures", name].iter().collect()
}

/// Returns the path of a file or directory of the repository.
pub fn repository_path(path: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../..", path].iter().collect()
}

/// Returns the path of `ringfence`, which cargo builds with the integration tests of the `cli` crate.
pub fn ringfence_path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        // Test programs are in `target/PROFILE/deps`.
        let test = std::env::current_exe().expect("find the test program");
        let path = test.ancestors().nth(2).expect("find the target directory").join("ringfence");
        assert!(path.exists(), "{} does not exist; run `cargo build` first", path.display());
        path
    })
}

/// Returns a path of `ringfence` that every user may execute: a copy if the checkout is in a private directory.
pub(crate) fn public_ringfence_path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let program = ringfence_path();
        let is_public = |path: &Path| fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o1 != 0);
        if program.ancestors().all(is_public) { program.to_owned() } else { public_copy(program) }
    })
}

/// Old copies are of earlier builds; none is in use for so long.
const MAX_COPY_AGE: Duration = Duration::from_secs(86_400);

/// Copies the program to a directory in `/tmp` that belongs to this user. All test processes share one copy for each
/// build, which is large.
fn public_copy(program: &Path) -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let directory = PathBuf::from(format!("/tmp/ringfence-test-programs-{uid}"));
    let _ = fs::DirBuilder::new().mode(0o755).create(&directory);
    let found = fs::symlink_metadata(&directory).expect("create the directory for copies");
    let is_ours = found.is_dir() && found.uid() == uid && found.mode() & 0o022 == 0;
    assert!(is_ours, "{} belongs to another user; remove it", directory.display());
    let original = fs::metadata(program).expect("read the program");
    let copy = directory.join(format!("{}-{}-{}", original.ino(), original.mtime(), original.mtime_nsec()));
    if copy.exists() {
        return copy;
    }
    for entry in fs::read_dir(&directory).expect("list the copies").flatten() {
        let is_old = |time: SystemTime| time.elapsed().is_ok_and(|age| age > MAX_COPY_AGE);
        if entry.metadata().and_then(|found| found.modified()).is_ok_and(is_old) {
            let _ = fs::remove_file(entry.path());
        }
    }
    // Renamed when complete, since other tests may look for it at the same time.
    let unfinished = directory.join(format!("unfinished-{}", std::process::id()));
    fs::copy(program, &unfinished).expect("copy the program");
    fs::rename(&unfinished, &copy).expect("rename the copy");
    copy
}
