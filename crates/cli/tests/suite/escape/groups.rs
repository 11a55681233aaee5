//! Case 68: supplementary groups of the user who starts a sandbox, and files that only members of a group may read.
//!
//! The runner starts with a group that no account has, in a mount namespace where `/etc/ssl` is a test directory with a
//! private key for that group.

use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::Path;
use std::process::Command;

use ringfence_testkit::escape::Setup;
use ringfence_testkit::escape::report::{self, Finding};
use ringfence_testkit::{User, process};

const GROUP: u32 = 54321;

/// Owner of the files: a uid that starts no sandbox.
const OWNER: u32 = 54323;

const KEY: &str = "--key /etc/ssl/private/key";

/// Also a file of the group in a volume, at the same path in the guest and on the host.
const KEY_AND_FILE: &str = "--key /etc/ssl/private/key --group-file {directory}/volume/file";

const READ_ONLY: &str = "--volume {directory}/volume:{directory}/volume:ro";

/// Also a read-write volume, which requires the uid of the user.
const READ_WRITE: &str = "--volume {directory}/volume:{directory}/volume:ro --volume {directory}/written:/written:rw";

fn new_setup(user: User) -> Setup {
    let setup = Setup::new(user);
    for directory in ["ssl", "ssl/certs", "ssl/private", "volume", "written"] {
        fs::create_dir(setup.path(directory)).expect("directory is created");
    }
    for file in ["ssl/certs/authority.pem", "ssl/openssl.cnf"] {
        fs::write(setup.path(file), "public\n").expect("public file is written");
    }
    for file in ["ssl/private/key", "volume/file"] {
        fs::write(setup.path(file), "private\n").expect("private file is written");
        give_to_group(&setup.path(file), 0o640);
    }
    give_to_group(&setup.path("ssl/private"), 0o710);
    setup.give_to_user(&setup.path("written"));
    setup
}

fn give_to_group(path: &Path, mode: u32) {
    lchown(path, Some(OWNER), Some(GROUP)).expect("group is set");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode is set");
}

/// Wraps a command: it runs as a member of the group, with the test directory mounted at `/etc/ssl`.
fn as_member(setup: &Setup, user: User, command: &Command) -> Command {
    let (uid, gid) = user.ids();
    let mut wrapper = User::Root.program(Path::new("/usr/bin/unshare"));
    wrapper.args(["--mount", "sh", "-c", r#"mount --bind "$0" /etc/ssl && exec setpriv "$@""#]).arg(setup.path("ssl"));
    wrapper.args([format!("--reuid={uid}"), format!("--regid={gid}"), format!("--groups={GROUP}")]);
    wrapper.arg(command.get_program()).args(command.get_args());
    wrapper
}

fn findings(command: &mut Command) -> Vec<(String, Finding)> {
    let outcome = process::run(command);
    assert_eq!(outcome.code, 0, "the script failed: {}", outcome.stderr);
    report::parse(&outcome.text()).into_iter().collect()
}

fn assert_contained(test: &str, user: User, options: &str, attack: &str, attempts: usize) {
    if user.skip_if_unavailable(test) {
        return;
    }
    let setup = new_setup(user);
    let inside = setup.sandboxed(options, "c68_groups.py", attack);
    let findings = findings(&mut as_member(&setup, user, &inside));
    assert_eq!(findings.len(), attempts, "{findings:?}");
    for (attempt, finding) in findings {
        assert!(matches!(finding, Finding::Contained(_)), "{user:?}: `{attempt}`: {finding:?}");
    }
}

#[test]
fn bare() {
    if User::Plain.skip_if_unavailable("c68_groups::bare") {
        return;
    }
    let setup = new_setup(User::Plain);
    let script = setup.bare("c68_groups.py", KEY_AND_FILE);
    let findings = findings(&mut as_member(&setup, User::Plain, &script));
    assert_eq!(findings.len(), 3, "{findings:?}");
    for (attempt, finding) in findings {
        assert!(matches!(finding, Finding::Escaped(_)), "the case `{attempt}` cannot fail: {finding:?}");
    }
}

#[test]
fn private_keys_are_not_visible() {
    for user in User::ALL {
        assert_contained("c68_groups::private_keys_are_not_visible", user, "", KEY, 1);
    }
}

#[test]
fn groups_are_dropped_where_the_kernel_allows_it() {
    for user in [User::Root, User::WithSubids] {
        assert_contained("c68_groups::groups_are_dropped_where_the_kernel_allows_it", user, READ_ONLY, KEY_AND_FILE, 3);
        assert_contained(
            "c68_groups::groups_are_dropped_where_the_kernel_allows_it",
            user,
            READ_WRITE,
            KEY_AND_FILE,
            3,
        );
    }
}

#[test]
fn public_parts_of_ssl_are_visible() {
    for user in User::ALL {
        if user.skip_if_unavailable("c68_groups::public_parts_of_ssl_are_visible") {
            continue;
        }
        let setup = new_setup(user);
        let mut ringfence = setup.ringfence("");
        ringfence.args(["--", "sh", "-c", "cd /etc/ssl && echo * && cat certs/authority.pem openssl.cnf"]);
        let outcome = process::run(&mut as_member(&setup, user, &ringfence));
        assert_eq!(outcome.text(), "certs openssl.cnf\npublic\npublic\n", "{user:?}: {}", outcome.stderr);
    }
}

/// Files written to a read-write volume have the uid and gid of the user, even if groups are dropped.
#[test]
fn written_files_have_the_ids_of_the_user() {
    use std::os::unix::fs::MetadataExt;
    for user in [User::Plain, User::WithSubids] {
        if user.skip_if_unavailable("c68_groups::written_files_have_the_ids_of_the_user") {
            continue;
        }
        let setup = new_setup(user);
        let mut ringfence = setup.ringfence(READ_WRITE);
        ringfence.args(["--", "sh", "-c", "echo text > /written/file"]);
        let outcome = process::run(&mut as_member(&setup, user, &ringfence));
        assert_eq!(outcome.code, 0, "{user:?}: {}", outcome.stderr);
        let written = fs::metadata(setup.path("written/file")).expect("file exists");
        assert_eq!((written.uid(), written.gid()), user.ids(), "{user:?}");
    }
}
