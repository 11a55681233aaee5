//! Cases 36, 38, 39, 41 and 47 as far as volumes go: links, odd names, things that are no directory or file, and
//! places that lead to the host itself.
//!
//! `an_ordinary_one_is_shown` is the proof that these can fail.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
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
    let guests =
        ["relative", "/../up", "/a/../b", "/./a", "/", "/proc/self", "/dev/shm/x", "/etc", "/usr", "/workspace"];
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
        let fifo = stage.path("fifo");
        make_fifo(&fifo);
        for path in [fifo, stage.path("socket"), "/dev/null".into(), "/dev/full".into(), stage.path("none")] {
            assert_refused(&path.display().to_string(), &show(stage, &path, "/shown", "ro"));
        }
    });
}

/// A guest that may write the directory could have planted it.
#[test]
fn a_link_is_refused() {
    for_everyone("c36_links", |stage| {
        symlink(directory(stage, "target"), stage.path("link")).expect("a link");
        for access in ["ro", "rw"] {
            assert_refused("a link", &show(stage, &stage.path("link"), "/shown", access));
        }
    });
}

#[test]
fn what_shows_or_controls_the_host_is_refused() {
    for_everyone("c47_places_of_the_host", |stage| {
        for place in ["/", "/proc", "/proc/self", "/sys", "/dev", "/dev/shm", "/run"] {
            assert_refused(place, &show(stage, Path::new(place), "/shown", "ro"));
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
    });
}

/// Homes are full of links to start files; one that leads out of the volume leads nowhere inside.
#[test]
fn a_link_at_a_protected_name_stays_what_it_is() {
    for_everyone("c36_links_at_protected_names", |stage| {
        let volume = directory(stage, "with-link");
        let link = volume.join(".mcp.json");
        symlink(stage.host_file(), &link).expect("a link");
        stage.give(&link);
        let mut command = stage.ringfence("");
        let attack = "cat /shown/.mcp.json; rm /shown/.mcp.json; ln -sfn /shown/file /shown/.mcp.json; \
                      touch /shown/other; mv /shown/other /shown/.mcp.json; echo tried";
        let shown = format!("{}:/shown:rw", volume.display());
        let ended = run::to_end(command.args(["--volume", &shown, "--", "sh", "-c", attack]));
        assert_eq!((ended.code, &*ended.stdout), (0, "tried\n"), "{}", ended.stderr);
        assert_eq!(fs::read_link(&link).expect("it is a link"), stage.host_file());
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
