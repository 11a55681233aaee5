use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};

use rustix::fs::{CWD, FileType};

use super::*;
use ringfence_core::{Access, Volume};

fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap();
    (directory, path)
}

fn open(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn pins(volume: &Path) -> Pins {
    protect(&open(volume), volume, &[], None).unwrap().0
}

fn strictly(volume: &Path, locks: &Path) -> (Pins, Hold) {
    let (pins, hold) = protect(&open(volume), volume, &[], Some(locks)).unwrap();
    (pins, hold.unwrap())
}

fn pin(path: &str, pin: Pin) -> (PathBuf, Pin) {
    (path.into(), pin)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn nothing_is_created_for_absent_names() {
    let (_guard, volume) = directory();
    assert_eq!(pins(&volume), []);
    assert_eq!(names(&volume), Vec::<String>::new());
}

#[test]
fn existing_names_are_read_only_and_their_parents_are_mount_points() {
    let (_guard, volume) = directory();
    fs::create_dir_all(volume.join(".config/systemd/user")).unwrap();
    fs::create_dir(volume.join(".venv")).unwrap();
    fs::create_dir(volume.join("bin")).unwrap();
    fs::write(volume.join(".mcp.json"), "{}\n").unwrap();
    let expected = [
        pin(".config", Pin::Point),
        pin(".config/systemd", Pin::ReadOnly),
        pin(".mcp.json", Pin::ReadOnly),
        pin(".venv", Pin::ReadOnly),
    ];
    assert_eq!(pins(&volume), expected);
}

#[test]
fn of_a_repository_only_what_git_obeys_is_read_only() {
    let (_guard, volume) = directory();
    fs::create_dir_all(volume.join(".git/objects")).unwrap();
    fs::write(volume.join(".git/config"), "").unwrap();
    fs::write(volume.join(".git/commondir"), "../shared\n").unwrap();
    fs::create_dir(volume.join("shared")).unwrap();
    fs::write(volume.join("shared/config"), "").unwrap();
    let expected = [
        pin(".git", Pin::Point),
        pin(".git/commondir", Pin::ReadOnly),
        pin(".git/config", Pin::ReadOnly),
        pin(".git/hooks", Pin::ReadOnly),
        pin(".git/info", Pin::ReadOnly),
        pin("shared", Pin::Point),
        pin("shared/config", Pin::ReadOnly),
        pin("shared/hooks", Pin::ReadOnly),
        pin("shared/info", Pin::ReadOnly),
    ];
    assert_eq!(pins(&volume), expected);
}

#[test]
fn a_repository_that_a_file_names_is_protected() {
    let (_guard, volume) = directory();
    fs::create_dir(volume.join(".bare")).unwrap();
    for named in ["./.bare".to_owned(), volume.join(".bare").display().to_string()] {
        fs::write(volume.join(".git"), format!("gitdir: {named}\n")).unwrap();
        let pins = pins(&volume);
        for expected in [pin(".git", Pin::ReadOnly), pin(".bare", Pin::Point), pin(".bare/hooks", Pin::ReadOnly)] {
            assert!(pins.contains(&expected), "{named}: {pins:?}");
        }
    }
    fs::write(volume.join(".git"), "gitdir: ../../elsewhere\n").unwrap();
    assert_eq!(pins(&volume), [pin(".git", Pin::ReadOnly)]);
}

#[test]
fn links_are_pinned_and_what_they_lead_to_in_the_volume_is_protected() {
    let (_guard, volume) = directory();
    fs::create_dir_all(volume.join("dotfiles/config/systemd")).unwrap();
    fs::write(volume.join("dotfiles/bashrc"), "").unwrap();
    symlink("dotfiles/bashrc", volume.join(".bashrc")).unwrap();
    symlink(volume.join("dotfiles/config"), volume.join(".config")).unwrap();
    symlink("/etc/profile", volume.join(".profile")).unwrap();
    symlink("missing", volume.join(".zshrc")).unwrap();
    symlink(".vimrc", volume.join(".vimrc")).unwrap();
    let expected = [
        pin(".bashrc", Pin::Link),
        pin(".config", Pin::Link),
        pin(".profile", Pin::Link),
        pin(".vimrc", Pin::Link),
        pin(".zshrc", Pin::Link),
        pin("dotfiles", Pin::Point),
        pin("dotfiles/bashrc", Pin::ReadOnly),
        pin("dotfiles/config", Pin::Point),
        pin("dotfiles/config/systemd", Pin::ReadOnly),
    ];
    assert_eq!(pins(&volume), expected);
}

#[test]
fn directories_of_ringfence_are_hidden_with_all_that_is_in_them() {
    let (_guard, volume) = directory();
    fs::create_dir_all(volume.join(".config/ringfence")).unwrap();
    fs::write(volume.join(".config/ringfence/ringfence.toml"), "").unwrap();
    let kept = [(".config/ringfence".into(), Kind::Directory), (".config/ringfence/ringfence.toml".into(), Kind::File)];
    let (pins, _) = protect(&open(&volume), &volume, &kept, None).unwrap();
    assert_eq!(pins, [pin(".config", Pin::Point), pin(".config/ringfence", Pin::Hidden)]);
}

#[test]
fn what_cannot_be_protected_is_refused_without_waiting() {
    let (_guard, volume) = directory();
    rustix::fs::mknodat(CWD, volume.join(".envrc"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    assert!(protect(&open(&volume), &volume, &[], None).is_err());
    let packages = volume.join("lib/site-packages/x");
    fs::create_dir_all(&packages).unwrap();
    assert!(protect(&open(&packages), &packages, &[], None).is_err());
}

#[test]
fn a_lock_on_the_volume_or_on_a_placeholder_stops_nobody() {
    let ((_guard, volume), (_other, locks)) = (directory(), directory());
    let lock = |path: &Path| {
        let opened = fs::File::open(path).unwrap();
        rustix::fs::flock(&opened, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        opened
    };
    let _held = lock(&volume);
    assert_eq!(pins(&volume), []);
    let first = strictly(&volume, &locks);
    let _also = lock(&volume.join(".envrc"));
    drop((strictly(&volume, &locks), first));
    assert_eq!(names(&volume), Vec::<String>::new());
}

#[test]
fn placeholders_of_strict_volumes_are_removed_by_their_last_user() {
    let ((_guard, volume), (_other, locks)) = (directory(), directory());
    fs::create_dir(volume.join(".git")).unwrap();
    let (pins, first) = strictly(&volume, &locks);
    assert!(pins.contains(&pin(".git", Pin::ReadOnly)), "{pins:?}");
    assert!(pins.contains(&pin(".cargo", Pin::ReadOnly)) && pins.contains(&pin(".envrc", Pin::ReadOnly)), "{pins:?}");
    let (again, second) = strictly(&volume, &locks);
    assert_eq!(again, pins);
    drop(first);
    assert!(volume.join(".envrc").exists() && volume.join(".cargo").is_dir(), "the second still needs them");
    drop(second);
    assert_eq!(names(&volume), [".git"]);
}

#[test]
fn files_of_a_user_are_never_removed_and_leftovers_always() {
    let ((_guard, volume), (_other, locks)) = (directory(), directory());
    fs::create_dir(volume.join(".vscode")).unwrap();
    fs::write(volume.join(".mcp.json"), "{}\n").unwrap();
    let (_, hold) = strictly(&volume, &locks);
    fs::write(volume.join(".envrc"), "export A=1\n").unwrap();
    fs::write(volume.join(".claude/settings.json"), "{}").unwrap();
    let inode = fs::metadata(volume.join(".mcp.json")).unwrap().ino();
    // As after SIGKILL, the placeholders are left.
    std::mem::forget(hold);
    assert!(names(&volume).len() > 4);
    // This process has not ended, and with it the share; by other locks nobody has one.
    let (_third, fresh) = directory();
    drop(strictly(&volume, &fresh));
    assert_eq!(names(&volume), [".claude", ".envrc", ".mcp.json", ".vscode"]);
    assert_eq!(fs::metadata(volume.join(".mcp.json")).unwrap().ino(), inode);
}

#[test]
fn locks_that_guests_could_open_are_refused() {
    let (_guard, volume) = directory();
    let locks = volume.join("state/locks");
    assert!(protect(&open(&volume), &volume, &[], Some(&locks)).is_err());
    fs::create_dir(volume.join("state")).unwrap();
    let kept = [("state".into(), Kind::Directory)];
    assert!(protect(&open(&volume), &volume, &kept, Some(&locks)).is_ok());
}

fn watch(volume: &Path) -> VolumeWatch {
    let volume = Volume { host: volume.into(), guest: "/data".into(), access: Access::ReadWrite, allowed_root: None };
    VolumeWatch::start(&[volume]).unwrap()
}

fn seen(watch: &mut VolumeWatch) -> Vec<(String, &'static str)> {
    let changes = watch.take_changes().into_iter();
    changes.map(|change| (change.guest.display().to_string(), change.change.name())).collect()
}

#[test]
fn a_name_that_appears_is_reported_once() {
    let (_guard, volume) = directory();
    let mut watch = watch(&volume);
    fs::write(volume.join("ordinary"), "").unwrap();
    assert!(watch.is_unchanged());
    assert_eq!(seen(&mut watch), []);
    fs::write(volume.join(".envrc"), "").unwrap();
    fs::create_dir_all(volume.join(".git/hooks")).unwrap();
    fs::create_dir(volume.join(".cargo")).unwrap();
    symlink("/nowhere", volume.join(".cargo/config.toml")).unwrap();
    assert!(!watch.is_unchanged());
    let created = ["/data/.envrc", "/data/.git", "/data/.cargo/config.toml"].map(|name| (name.to_owned(), "created"));
    let found = seen(&mut watch);
    assert!(created.iter().all(|name| found.contains(name)) && found.len() == created.len(), "{found:?}");
    assert_eq!(seen(&mut watch), []);
    fs::remove_file(volume.join(".envrc")).unwrap();
    assert_eq!(seen(&mut watch), []);
    fs::write(volume.join(".envrc"), "").unwrap();
    assert_eq!(seen(&mut watch).len(), 1, "it is reported again after it was absent");
}

#[test]
fn a_name_that_loses_its_mount_is_reported() {
    let (_guard, volume) = directory();
    fs::create_dir(volume.join(".git")).unwrap();
    fs::write(volume.join(".git/config"), "").unwrap();
    symlink("target", volume.join(".envrc")).unwrap();
    let mut watch = watch(&volume);
    fs::write(volume.join(".git/config"), "changed in its place").unwrap();
    assert_eq!(seen(&mut watch), []);
    fs::write(volume.join(".git/config.lock"), "").unwrap();
    fs::rename(volume.join(".git/config.lock"), volume.join(".git/config")).unwrap();
    fs::write(volume.join(".git/commondir"), "../evil").unwrap();
    fs::write(volume.join("target"), "").unwrap();
    let found = seen(&mut watch);
    let expected =
        [("/data/.git/config", "replaced"), ("/data/.git/commondir", "created"), ("/data/.envrc", "replaced")];
    assert!(expected.iter().all(|(path, how)| found.contains(&((*path).to_owned(), how))), "{found:?}");
    assert_eq!(found.len(), expected.len(), "{found:?}");
}

#[test]
fn only_volumes_that_can_be_written_are_watched() {
    let (_guard, path) = directory();
    let volume = Volume { host: path, guest: "/data".into(), access: Access::ReadOnly, allowed_root: None };
    assert!(VolumeWatch::start(&[volume]).is_none());
}
