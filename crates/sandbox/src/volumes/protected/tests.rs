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

fn protect_strictly(volume: &Path, locks: &Path) -> (Pins, Placeholders) {
    let (pins, placeholders) = protect(&open(volume), volume, &[], Some(locks)).unwrap();
    (pins, placeholders.unwrap())
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
        pin(".config", Pin::MountPoint),
        pin(".config/systemd", Pin::ReadOnly),
        pin(".mcp.json", Pin::ReadOnly),
        pin(".venv", Pin::ReadOnly),
    ];
    assert_eq!(pins(&volume), expected);
}

#[test]
fn only_settings_and_hooks_of_a_repository_are_read_only() {
    let (_guard, volume) = directory();
    fs::create_dir_all(volume.join(".git/objects")).unwrap();
    fs::write(volume.join(".git/config"), "").unwrap();
    fs::write(volume.join(".git/commondir"), "../shared\n").unwrap();
    fs::create_dir(volume.join("shared")).unwrap();
    fs::write(volume.join("shared/config"), "").unwrap();
    let expected = [
        pin(".git", Pin::MountPoint),
        pin(".git/commondir", Pin::ReadOnly),
        pin(".git/config", Pin::ReadOnly),
        pin(".git/hooks", Pin::ReadOnly),
        pin(".git/info", Pin::ReadOnly),
        pin("shared", Pin::MountPoint),
        pin("shared/config", Pin::ReadOnly),
        pin("shared/hooks", Pin::ReadOnly),
        pin("shared/info", Pin::ReadOnly),
    ];
    assert_eq!(pins(&volume), expected);
}

#[test]
fn repository_that_a_git_file_refers_to_is_protected() {
    let (_guard, volume) = directory();
    fs::create_dir(volume.join(".bare")).unwrap();
    for named in ["./.bare".to_owned(), volume.join(".bare").display().to_string()] {
        fs::write(volume.join(".git"), format!("gitdir: {named}\n")).unwrap();
        let pins = pins(&volume);
        for expected in [pin(".git", Pin::ReadOnly), pin(".bare", Pin::MountPoint), pin(".bare/hooks", Pin::ReadOnly)] {
            assert!(pins.contains(&expected), "{named}: {pins:?}");
        }
    }
    fs::write(volume.join(".git"), "gitdir: ../../elsewhere\n").unwrap();
    assert_eq!(pins(&volume), [pin(".git", Pin::ReadOnly)]);
}

#[test]
fn links_are_pinned_and_their_targets_in_the_volume_are_protected() {
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
        pin("dotfiles", Pin::MountPoint),
        pin("dotfiles/bashrc", Pin::ReadOnly),
        pin("dotfiles/config", Pin::MountPoint),
        pin("dotfiles/config/systemd", Pin::ReadOnly),
    ];
    assert_eq!(pins(&volume), expected);
}

#[test]
fn directories_of_ringfence_are_hidden() {
    let (_guard, volume) = directory();
    fs::create_dir_all(volume.join(".config/ringfence")).unwrap();
    fs::write(volume.join(".config/ringfence/ringfence.toml"), "").unwrap();
    let ringfence_nodes = [
        (".config/ringfence".into(), NodeKind::Directory),
        (".config/ringfence/ringfence.toml".into(), NodeKind::File),
    ];
    let (pins, _) = protect(&open(&volume), &volume, &ringfence_nodes, None).unwrap();
    assert_eq!(pins, [pin(".config", Pin::MountPoint), pin(".config/ringfence", Pin::Hidden)]);
}

#[test]
fn unprotectable_volumes_are_refused_without_blocking() {
    let (_guard, volume) = directory();
    rustix::fs::mknodat(CWD, volume.join(".envrc"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    assert!(protect(&open(&volume), &volume, &[], None).is_err());
    let packages = volume.join("lib/site-packages/x");
    fs::create_dir_all(&packages).unwrap();
    assert!(protect(&open(&packages), &packages, &[], None).is_err());
}

#[test]
fn locks_of_guests_on_a_volume_or_placeholder_delay_no_sandbox() {
    let ((_guard, volume), (_other, locks)) = (directory(), directory());
    let lock = |path: &Path| {
        let opened = fs::File::open(path).unwrap();
        rustix::fs::flock(&opened, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        opened
    };
    let _volume_lock = lock(&volume);
    assert_eq!(pins(&volume), []);
    let first = protect_strictly(&volume, &locks);
    let _placeholder_lock = lock(&volume.join(".envrc"));
    drop((protect_strictly(&volume, &locks), first));
    assert_eq!(names(&volume), Vec::<String>::new());
}

#[test]
fn placeholders_of_strict_volumes_are_removed_by_their_last_user() {
    let ((_guard, volume), (_other, locks)) = (directory(), directory());
    fs::create_dir(volume.join(".git")).unwrap();
    let (pins, first) = protect_strictly(&volume, &locks);
    assert!(pins.contains(&pin(".git", Pin::ReadOnly)), "{pins:?}");
    assert!(pins.contains(&pin(".cargo", Pin::ReadOnly)) && pins.contains(&pin(".envrc", Pin::ReadOnly)), "{pins:?}");
    let (second_pins, second) = protect_strictly(&volume, &locks);
    assert_eq!(second_pins, pins);
    drop(first);
    assert!(volume.join(".envrc").exists() && volume.join(".cargo").is_dir(), "the second still needs them");
    drop(second);
    assert_eq!(names(&volume), [".git"]);
}

#[test]
fn changed_files_are_never_removed_and_stale_placeholders_always() {
    let ((_guard, volume), (_other, locks)) = (directory(), directory());
    fs::create_dir(volume.join(".vscode")).unwrap();
    fs::write(volume.join(".mcp.json"), "{}\n").unwrap();
    let (_, placeholders) = protect_strictly(&volume, &locks);
    fs::write(volume.join(".envrc"), "export A=1\n").unwrap();
    fs::write(volume.join(".claude/settings.json"), "{}").unwrap();
    let inode = fs::metadata(volume.join(".mcp.json")).unwrap().ino();
    // Without the drop the placeholders stay, as after SIGKILL.
    std::mem::forget(placeholders);
    assert!(names(&volume).len() > 4);
    // The forgotten share still locks the old files; with a new lock directory there is no other user.
    let (_third, fresh) = directory();
    drop(protect_strictly(&volume, &fresh));
    assert_eq!(names(&volume), [".claude", ".envrc", ".mcp.json", ".vscode"]);
    assert_eq!(fs::metadata(volume.join(".mcp.json")).unwrap().ino(), inode);
}

#[test]
fn lock_directory_that_guests_could_open_is_refused() {
    let (_guard, volume) = directory();
    let locks = volume.join("state/locks");
    assert!(protect(&open(&volume), &volume, &[], Some(&locks)).is_err());
    fs::create_dir(volume.join("state")).unwrap();
    let ringfence_nodes = [("state".into(), NodeKind::Directory)];
    assert!(protect(&open(&volume), &volume, &ringfence_nodes, Some(&locks)).is_ok());
}

fn watch(volume: &Path) -> VolumeWatch {
    let volume = Volume { host: volume.into(), guest: "/data".into(), access: Access::ReadWrite, allowed_root: None };
    VolumeWatch::start(&[volume]).unwrap()
}

fn changes(watch: &mut VolumeWatch) -> Vec<(String, &'static str)> {
    let found = watch.take_changes().into_iter();
    found.map(|change| (change.guest.display().to_string(), change.change.name())).collect()
}

#[test]
fn created_name_is_reported_once() {
    let (_guard, volume) = directory();
    let mut watch = watch(&volume);
    fs::write(volume.join("ordinary"), "").unwrap();
    assert!(watch.is_unchanged());
    assert_eq!(changes(&mut watch), []);
    fs::write(volume.join(".envrc"), "").unwrap();
    fs::create_dir_all(volume.join(".git/hooks")).unwrap();
    fs::create_dir(volume.join(".cargo")).unwrap();
    symlink("/nowhere", volume.join(".cargo/config.toml")).unwrap();
    assert!(!watch.is_unchanged());
    let created = ["/data/.envrc", "/data/.git", "/data/.cargo/config.toml"].map(|name| (name.to_owned(), "created"));
    let found = changes(&mut watch);
    assert!(created.iter().all(|name| found.contains(name)) && found.len() == created.len(), "{found:?}");
    assert_eq!(changes(&mut watch), []);
    fs::remove_file(volume.join(".envrc")).unwrap();
    assert_eq!(changes(&mut watch), []);
    fs::write(volume.join(".envrc"), "").unwrap();
    assert_eq!(changes(&mut watch).len(), 1, "a name is reported again after it was absent");
}

#[test]
fn replaced_name_is_reported() {
    let (_guard, volume) = directory();
    fs::create_dir(volume.join(".git")).unwrap();
    fs::write(volume.join(".git/config"), "").unwrap();
    symlink("target", volume.join(".envrc")).unwrap();
    let mut watch = watch(&volume);
    fs::write(volume.join(".git/config"), "changed in place").unwrap();
    assert_eq!(changes(&mut watch), []);
    fs::write(volume.join(".git/config.lock"), "").unwrap();
    fs::rename(volume.join(".git/config.lock"), volume.join(".git/config")).unwrap();
    fs::write(volume.join(".git/commondir"), "../evil").unwrap();
    fs::write(volume.join("target"), "").unwrap();
    let found = changes(&mut watch);
    let expected =
        [("/data/.git/config", "replaced"), ("/data/.git/commondir", "created"), ("/data/.envrc", "replaced")];
    assert!(expected.iter().all(|(path, change)| found.contains(&((*path).to_owned(), change))), "{found:?}");
    assert_eq!(found.len(), expected.len(), "{found:?}");
}

#[test]
fn read_only_volumes_are_not_watched() {
    let (_guard, path) = directory();
    let volume = Volume { host: path, guest: "/data".into(), access: Access::ReadOnly, allowed_root: None };
    assert!(VolumeWatch::start(&[volume]).is_none());
}
