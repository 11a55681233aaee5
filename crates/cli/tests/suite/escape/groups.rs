//! Case 68: the supplementary groups of the user who starts a sandbox, and what only their members may read.
//!
//! The runner is started with a group that no account has, in a mount namespace where `/etc/ssl` is a directory of the
//! stage with a private key for that group.

use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::Path;
use std::process::Command;

use ringfence_testkit::escape::Setup;
use ringfence_testkit::escape::report::{self, Finding};
use ringfence_testkit::{User, process};

const GROUP: u32 = 54321;

/// The files' owner: none of those who start sandboxes.
const OWNER: u32 = 54323;

const KEY: &str = "--key /etc/ssl/private/key";

/// With a file of the group in a volume, at the same path inside and outside.
const KEY_AND_FILE: &str = "--key /etc/ssl/private/key --group-file {directory}/volume/file";

const READ_ONLY: &str = "--volume {directory}/volume:{directory}/volume:ro";

/// Also a volume that can be written, which needs the user's own uid.
const READ_WRITE: &str = "--volume {directory}/volume:{directory}/volume:ro --volume {directory}/written:/written:rw";

fn new_setup(who: User) -> Setup {
    let setup = Setup::new(who);
    for directory in ["ssl", "ssl/certs", "ssl/private", "volume", "written"] {
        fs::create_dir(setup.path(directory)).expect("a directory");
    }
    for file in ["ssl/certs/authority.pem", "ssl/openssl.cnf"] {
        fs::write(setup.path(file), "public\n").expect("a public file");
    }
    for file in ["ssl/private/key", "volume/file"] {
        fs::write(setup.path(file), "private\n").expect("a private file");
        give_to_group(&setup.path(file), 0o640);
    }
    give_to_group(&setup.path("ssl/private"), 0o710);
    setup.give_to_user(&setup.path("written"));
    setup
}

fn give_to_group(path: &Path, mode: u32) {
    lchown(path, Some(OWNER), Some(GROUP)).expect("the group is set");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the mode is set");
}

/// The same command, as a member of the group that finds the stage's `/etc/ssl`.
fn as_member(setup: &Setup, who: User, command: &Command) -> Command {
    let (uid, gid) = who.ids();
    let mut wrapper = User::Root.program(Path::new("/usr/bin/unshare"));
    wrapper.args(["--mount", "sh", "-c", r#"mount --bind "$0" /etc/ssl && exec setpriv "$@""#]).arg(setup.path("ssl"));
    wrapper.args([format!("--reuid={uid}"), format!("--regid={gid}"), format!("--groups={GROUP}")]);
    wrapper.arg(command.get_program()).args(command.get_args());
    wrapper
}

fn findings(command: &mut Command) -> Vec<(String, Finding)> {
    let ended = process::run(command);
    assert_eq!(ended.code, 0, "the script failed: {}", ended.stderr);
    report::parse(&ended.text()).into_iter().collect()
}

fn assert_contained(test: &str, who: User, options: &str, attack: &str, attempts: usize) {
    if who.skip_if_unavailable(test) {
        return;
    }
    let setup = new_setup(who);
    let inside = setup.sandboxed(options, "c68_groups.py", attack);
    let findings = findings(&mut as_member(&setup, who, &inside));
    assert_eq!(findings.len(), attempts, "{findings:?}");
    for (attempt, finding) in findings {
        assert!(matches!(finding, Finding::Contained(_)), "{who:?}: `{attempt}`: {finding:?}");
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
        assert!(matches!(finding, Finding::Escaped(_)), "`{attempt}` cannot fail: {finding:?}");
    }
}

#[test]
fn private_keys_are_not_visible() {
    for who in User::ALL {
        assert_contained("c68_groups::private_keys", who, "", KEY, 1);
    }
}

#[test]
fn groups_are_dropped_where_the_kernel_allows_it() {
    for who in [User::Root, User::WithSubids] {
        assert_contained("c68_groups::dropped", who, READ_ONLY, KEY_AND_FILE, 3);
        assert_contained("c68_groups::dropped", who, READ_WRITE, KEY_AND_FILE, 3);
    }
}

#[test]
fn public_parts_of_ssl_are_visible() {
    for who in User::ALL {
        if who.skip_if_unavailable("c68_groups::public_parts") {
            continue;
        }
        let setup = new_setup(who);
        let mut ringfence = setup.ringfence("");
        ringfence.args(["--", "sh", "-c", "cd /etc/ssl && echo * && cat certs/authority.pem openssl.cnf"]);
        let ended = process::run(&mut as_member(&setup, who, &ringfence));
        assert_eq!(ended.text(), "certs openssl.cnf\npublic\npublic\n", "{who:?}: {}", ended.stderr);
    }
}

/// A file written to a read-write volume has the user's own ids, also where groups are dropped.
#[test]
fn written_files_have_the_users_own_ids() {
    use std::os::unix::fs::MetadataExt;
    for who in [User::Plain, User::WithSubids] {
        if who.skip_if_unavailable("c68_groups::written_files") {
            continue;
        }
        let setup = new_setup(who);
        let mut ringfence = setup.ringfence(READ_WRITE);
        ringfence.args(["--", "sh", "-c", "echo text > /written/file"]);
        let ended = process::run(&mut as_member(&setup, who, &ringfence));
        assert_eq!(ended.code, 0, "{who:?}: {}", ended.stderr);
        let written = fs::metadata(setup.path("written/file")).expect("the file is there");
        assert_eq!((written.uid(), written.gid()), who.ids(), "{who:?}");
    }
}
