//! Cases 36, 38, 39, 41 and 47 as far as volumes go: links, odd names, things that are no directory or file, and
//! places that lead to the host itself.
//!
//! `an_ordinary_one_is_shown` is the proof that these can fail.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use ringfence_testkit::escape::Setup;
use ringfence_testkit::{Outcome, User, process};
use rustix::fs::{CWD, FileType, Mode};

/// Shows `host` as `guest`, and lists it.
fn show(setup: &Setup, host: &Path, guest: &str, access: &str) -> Outcome {
    let mut volume = host.as_os_str().to_owned();
    volume.push(format!(":{guest}:{access}"));
    let mut command = setup.ringfence("");
    command.arg("--volume").arg(volume).args(["--", "ls", guest]);
    process::run(&mut command)
}

fn assert_refused(test: &str, ended: &Outcome) {
    assert_eq!((ended.code, &*ended.text()), (125, ""), "{test}: {}", ended.stderr);
    assert!(ended.stderr.contains("error:"), "{test} is refused without a word: {}", ended.stderr);
}

fn for_everyone(test: &str, check: impl Fn(&Setup)) {
    for who in User::ALL {
        if !who.skip_if_unavailable(test) {
            check(&Setup::new(who));
        }
    }
}

fn directory(setup: &Setup, name: impl AsRef<OsStr>) -> std::path::PathBuf {
    let path = setup.path("").join(Path::new(name.as_ref()));
    fs::create_dir_all(&path).expect("a directory");
    fs::write(path.join("file"), "").expect("a file");
    setup.give_to_user(&path);
    path
}

#[test]
fn an_ordinary_one_is_shown() {
    for_everyone("c39_odd_volumes", |setup| {
        let ended = show(setup, &directory(setup, "ordinary"), "/shown", "rw");
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(ended.text().contains("file"), "{}", ended.text());
    });
}

#[test]
fn odd_names_show_what_they_name_or_are_refused() {
    let names: [&[u8]; 6] = [b"new\nline", b"-v", b" space ", b"\x1b[31m", b"bad-utf8-\xff", b"..."];
    for_everyone("c38_odd_names", |setup| {
        for name in names {
            let ended = show(setup, &directory(setup, OsStr::from_bytes(name)), "/shown", "ro");
            if ended.code == 0 {
                assert_eq!(ended.text(), "file\n", "{name:?}");
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
    for_everyone("c38_places", |setup| {
        let host = directory(setup, "ordinary");
        for guest in guests {
            assert_refused(guest, &show(setup, &host, guest, "ro"));
        }
        assert_refused("..", &show(setup, &host.join("../ordinary"), "/shown", "ro"));
    });
}

#[test]
fn a_fifo_a_socket_or_a_device_is_refused() {
    for_everyone("c39_special_files", |setup| {
        let fifo = setup.path("fifo");
        make_fifo(&fifo);
        for path in [fifo, setup.path("socket"), "/dev/null".into(), "/dev/full".into(), setup.path("none")] {
            assert_refused(&path.display().to_string(), &show(setup, &path, "/shown", "ro"));
        }
    });
}

/// A guest that may write the directory could have planted it.
#[test]
fn a_link_is_refused() {
    for_everyone("c36_links", |setup| {
        symlink(directory(setup, "target"), setup.path("link")).expect("a link");
        for access in ["ro", "rw"] {
            assert_refused("a link", &show(setup, &setup.path("link"), "/shown", access));
        }
    });
}

#[test]
fn what_shows_or_controls_the_host_is_refused() {
    for_everyone("c47_places_of_the_host", |setup| {
        for place in ["/", "/proc", "/proc/self", "/sys", "/dev", "/dev/shm", "/run"] {
            assert_refused(place, &show(setup, Path::new(place), "/shown", "ro"));
        }
    });
}

#[test]
fn a_special_file_at_a_protected_name_is_refused() {
    for_everyone("c39_special_protected_names", |setup| {
        let volume = directory(setup, "with-fifo");
        make_fifo(&volume.join(".envrc"));
        setup.give_to_user(&volume.join(".envrc"));
        assert_refused("a FIFO", &show(setup, &volume, "/shown", "rw"));
    });
}

/// Homes are full of links to start files; one that leads out of the volume leads nowhere inside.
#[test]
fn a_link_at_a_protected_name_stays_what_it_is() {
    for_everyone("c36_links_at_protected_names", |setup| {
        let volume = directory(setup, "with-link");
        let link = volume.join(".mcp.json");
        symlink(setup.host_file(), &link).expect("a link");
        setup.give_to_user(&link);
        let mut command = setup.ringfence("");
        let attack = "cat /shown/.mcp.json; rm /shown/.mcp.json; ln -sfn /shown/file /shown/.mcp.json; \
                      touch /shown/other; mv /shown/other /shown/.mcp.json; echo tried";
        let shown = format!("{}:/shown:rw", volume.display());
        let ended = process::run(command.args(["--volume", &shown, "--", "sh", "-c", attack]));
        assert_eq!((ended.code, &*ended.text()), (0, "tried\n"), "{}", ended.stderr);
        assert_eq!(fs::read_link(&link).expect("it is a link"), setup.host_file());
    });
}

#[test]
fn what_programs_import_may_not_be_written() {
    for_everyone("c41_site_packages", |setup| {
        let packages = directory(setup, "lib/python3/site-packages");
        let below = directory(setup, "lib/python3/site-packages/package");
        symlink(&packages, setup.path("alias")).expect("a link");
        for path in [packages, below, setup.path("alias")] {
            assert_refused(&path.display().to_string(), &show(setup, &path, "/shown", "rw"));
        }
    });
}

fn make_fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
}
