//! Cases 38, 39 and 41 as far as volumes go: odd names, and things that are no directory or file.
//!
//! `an_ordinary_one_is_shown` is the proof that these can fail.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use ringfence_testkit::Who;
use rustix::fs::{CWD, FileType, Mode};

use super::judge::unavailable;
use super::run::{self, Ended};
use super::stage::Stage;

/// Shows `host` as `guest`, and lists it.
fn show(stage: &Stage, host: &Path, guest: &str, access: &str) -> Ended {
    let mut volume = host.as_os_str().to_owned();
    volume.push(format!(":{guest}:{access}"));
    let mut command = stage.ringfence("");
    command.arg("--volume").arg(volume).args(["--", "ls", guest]);
    run::to_end(&mut command)
}

fn assert_refused(test: &str, ended: &Ended) {
    assert_eq!((ended.code, &*ended.stdout), (125, ""), "{test}: {}", ended.stderr);
    assert!(ended.stderr.contains("error:"), "{test} is refused without a word: {}", ended.stderr);
}

fn for_everyone(test: &str, check: impl Fn(&Stage)) {
    for who in Who::ALL {
        if !unavailable(test, who) {
            check(&Stage::set(who));
        }
    }
}

fn directory(stage: &Stage, name: impl AsRef<OsStr>) -> std::path::PathBuf {
    let path = stage.path("").join(Path::new(name.as_ref()));
    fs::create_dir_all(&path).expect("a directory");
    fs::write(path.join("file"), "").expect("a file");
    stage.give(&path);
    path
}

#[test]
fn an_ordinary_one_is_shown() {
    for_everyone("c39_odd_volumes", |stage| {
        let ended = show(stage, &directory(stage, "ordinary"), "/shown", "rw");
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(ended.stdout.contains("file"), "{}", ended.stdout);
    });
}

#[test]
fn odd_names_show_what_they_name_or_are_refused() {
    let names: [&[u8]; 6] = [b"new\nline", b"-v", b" space ", b"\x1b[31m", b"bad-utf8-\xff", b"..."];
    for_everyone("c38_odd_names", |stage| {
        for name in names {
            let ended = show(stage, &directory(stage, OsStr::from_bytes(name)), "/shown", "ro");
            if ended.code == 0 {
                assert_eq!(ended.stdout, "file\n", "{name:?}");
            } else {
                assert_refused(&format!("{name:?}"), &ended);
            }
        }
    });
}

#[test]
fn places_that_are_the_sandboxs_own_are_refused() {
    let guests = ["relative", "/../up", "/a/../b", "/./a", "/", "/proc/self", "/dev/shm/x", "/etc", "/usr", "/workspace"];
    for_everyone("c38_places", |stage| {
        let host = directory(stage, "ordinary");
        for guest in guests {
            assert_refused(guest, &show(stage, &host, guest, "ro"));
        }
        assert_refused("..", &show(stage, &host.join("../ordinary"), "/shown", "ro"));
    });
}

#[test]
fn a_fifo_a_socket_or_a_device_is_refused() {
    for_everyone("c39_special_files", |stage| {
        let (fifo, socket) = (stage.path("fifo"), stage.path("socket"));
        make_fifo(&fifo);
        let _bound = UnixListener::bind(&socket).expect("a socket");
        for path in [fifo, socket, "/dev/null".into(), "/dev/full".into(), stage.path("none")] {
            assert_refused(&path.display().to_string(), &show(stage, &path, "/shown", "ro"));
        }
    });
}

#[test]
fn a_special_file_at_a_protected_name_is_refused() {
    for_everyone("c39_special_protected_names", |stage| {
        let volume = directory(stage, "with-fifo");
        make_fifo(&volume.join(".envrc"));
        stage.give(&volume.join(".envrc"));
        assert_refused("a FIFO", &show(stage, &volume, "/shown", "rw"));
        let volume = directory(stage, "with-link");
        symlink(stage.host_file(), volume.join(".mcp.json")).expect("a link");
        assert_refused("a link", &show(stage, &volume, "/shown", "rw"));
    });
}

#[test]
fn what_programs_import_may_not_be_written() {
    for_everyone("c41_site_packages", |stage| {
        let packages = directory(stage, "lib/python3/site-packages");
        let below = directory(stage, "lib/python3/site-packages/package");
        symlink(&packages, stage.path("alias")).expect("a link");
        for path in [packages, below, stage.path("alias")] {
            assert_refused(&path.display().to_string(), &show(stage, &path, "/shown", "rw"));
        }
    });
}

fn make_fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
}
