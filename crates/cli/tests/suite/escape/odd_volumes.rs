//! Cases 36, 38, 39, 41 and 47 for volumes: links, odd names, special files, and paths that expose the host.
//!
//! `ordinary_directory_is_mounted` is the control, which shows that the other tests can fail.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use ringfence_testkit::escape::Setup;
use ringfence_testkit::{Outcome, User, process};
use rustix::fs::{CWD, FileType, Mode};

/// Mounts `host` as the volume `guest`, and lists it.
fn list_volume(setup: &Setup, host: &Path, guest: &str, access: &str) -> Outcome {
    let mut volume = host.as_os_str().to_owned();
    volume.push(format!(":{guest}:{access}"));
    let mut command = setup.ringfence("");
    command.arg("--volume").arg(volume).args(["--", "ls", guest]);
    process::run(&mut command)
}

fn assert_refused(test: &str, outcome: &Outcome) {
    assert_eq!((outcome.code, &*outcome.text()), (125, ""), "{test}: {}", outcome.stderr);
    assert!(outcome.stderr.contains("error:"), "{test} is refused without an error: {}", outcome.stderr);
}

fn for_each_user(test: &str, check: impl Fn(&Setup)) {
    for user in User::ALL {
        if !user.skip_if_unavailable(test) {
            check(&Setup::new(user));
        }
    }
}

fn directory(setup: &Setup, name: impl AsRef<OsStr>) -> std::path::PathBuf {
    let path = setup.path("").join(Path::new(name.as_ref()));
    fs::create_dir_all(&path).expect("directory is created");
    fs::write(path.join("file"), "").expect("file is written");
    setup.give_to_user(&path);
    path
}

#[test]
fn ordinary_directory_is_mounted() {
    for_each_user("c39_odd_volumes::ordinary_directory_is_mounted", |setup| {
        let outcome = list_volume(setup, &directory(setup, "ordinary"), "/volume", "rw");
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
        assert!(outcome.text().contains("file"), "{}", outcome.text());
    });
}

#[test]
fn odd_names_are_mounted_correctly_or_refused() {
    let names: [&[u8]; 6] = [b"new\nline", b"-v", b" space ", b"\x1b[31m", b"bad-utf8-\xff", b"..."];
    for_each_user("c38_odd_volumes::odd_names_are_mounted_correctly_or_refused", |setup| {
        for name in names {
            let outcome = list_volume(setup, &directory(setup, OsStr::from_bytes(name)), "/volume", "ro");
            if outcome.code == 0 {
                assert_eq!(outcome.text(), "file\n", "{name:?}");
            } else {
                assert_refused(&format!("{name:?}"), &outcome);
            }
        }
    });
}

#[test]
fn reserved_guest_paths_are_refused() {
    let guests =
        ["relative", "/../up", "/a/../b", "/./a", "/", "/proc/self", "/dev/shm/x", "/etc", "/usr", "/workspace"];
    for_each_user("c38_odd_volumes::reserved_guest_paths_are_refused", |setup| {
        let host = directory(setup, "ordinary");
        for guest in guests {
            assert_refused(guest, &list_volume(setup, &host, guest, "ro"));
        }
        assert_refused("..", &list_volume(setup, &host.join("../ordinary"), "/volume", "ro"));
    });
}

#[test]
fn fifos_sockets_and_devices_are_refused() {
    for_each_user("c39_odd_volumes::fifos_sockets_and_devices_are_refused", |setup| {
        let fifo = setup.path("fifo");
        make_fifo(&fifo);
        for path in [fifo, setup.path("socket"), "/dev/null".into(), "/dev/full".into(), setup.path("none")] {
            assert_refused(&path.display().to_string(), &list_volume(setup, &path, "/volume", "ro"));
        }
    });
}

/// A guest with write access to the parent directory could have created the link.
#[test]
fn symbolic_links_are_refused() {
    for_each_user("c36_odd_volumes::symbolic_links_are_refused", |setup| {
        symlink(directory(setup, "target"), setup.path("link")).expect("link is created");
        for access in ["ro", "rw"] {
            assert_refused("a link", &list_volume(setup, &setup.path("link"), "/volume", access));
        }
    });
}

#[test]
fn paths_that_expose_the_host_are_refused() {
    for_each_user("c47_odd_volumes::paths_that_expose_the_host_are_refused", |setup| {
        for path in ["/", "/proc", "/proc/self", "/sys", "/dev", "/dev/shm", "/run"] {
            assert_refused(path, &list_volume(setup, Path::new(path), "/volume", "ro"));
        }
    });
}

#[test]
fn special_file_at_protected_name_is_refused() {
    for_each_user("c39_odd_volumes::special_file_at_protected_name_is_refused", |setup| {
        let volume = directory(setup, "with-fifo");
        make_fifo(&volume.join(".envrc"));
        setup.give_to_user(&volume.join(".envrc"));
        assert_refused("a FIFO", &list_volume(setup, &volume, "/volume", "rw"));
    });
}

/// Home directories often contain links to start files. A link to a path outside of the volume is
/// dangling in the guest.
#[test]
fn link_at_protected_name_cannot_be_changed() {
    for_each_user("c36_odd_volumes::link_at_protected_name_cannot_be_changed", |setup| {
        let volume = directory(setup, "with-link");
        let link = volume.join(".mcp.json");
        symlink(setup.host_file(), &link).expect("link is created");
        setup.give_to_user(&link);
        let mut command = setup.ringfence("");
        let attack = "cat /volume/.mcp.json; rm /volume/.mcp.json; ln -sfn /volume/file /volume/.mcp.json; \
                      touch /volume/other; mv /volume/other /volume/.mcp.json; echo tried";
        let volume_option = format!("{}:/volume:rw", volume.display());
        let outcome = process::run(command.args(["--volume", &volume_option, "--", "sh", "-c", attack]));
        assert_eq!((outcome.code, &*outcome.text()), (0, "tried\n"), "{}", outcome.stderr);
        assert_eq!(fs::read_link(&link).expect("link still exists"), setup.host_file());
    });
}

#[test]
fn python_packages_cannot_be_mounted_read_write() {
    for_each_user("c41_odd_volumes::python_packages_cannot_be_mounted_read_write", |setup| {
        let packages = directory(setup, "lib/python3/site-packages");
        let below = directory(setup, "lib/python3/site-packages/package");
        symlink(&packages, setup.path("alias")).expect("link is created");
        for path in [packages, below, setup.path("alias")] {
            assert_refused(&path.display().to_string(), &list_volume(setup, &path, "/volume", "rw"));
        }
    });
}

fn make_fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("FIFO is created");
}
