//! Volumes of the command: access modes, protected names, and attacks on the host through them.

use std::path::Path;

use ringfence_testkit::{for_each_user, run_as, run_python_as};

#[test]
fn volumes_are_mounted_at_their_path_with_their_access_mode() {
    for_each_user("volumes_are_mounted_at_their_path_with_their_access_mode", |user| {
        let directory = user.directory();
        std::fs::write(directory.path().join("file"), "content").expect("file is written");
        let (uid, gid) = user.ids();
        std::os::unix::fs::chown(directory.path().join("file"), Some(uid), Some(gid)).expect("owner is set");
        let host = directory.path().display();
        let script = "cat /data/file; (echo x > /data/new) 2>/dev/null && echo written; ls -A /data | tr '\\n' ' '";
        let run_with_mode =
            |mode: &str| run_as(user, &["--volume", &format!("{host}:/data{mode}")], &["sh", "-c", script]);
        assert_eq!(run_with_mode("").text(), "contentfile ", "{user:?}");
        assert_eq!(run_with_mode(":ro").text(), "contentfile ", "{user:?}");
        let outcome = run_with_mode(":rw");
        assert_eq!(outcome.text(), "contentwritten\nfile new ", "{user:?}: {}", outcome.stderr);
        assert_eq!(outcome.stderr, "", "{user:?}: there is no warning about protected files");
        let metadata = std::fs::metadata(directory.path().join("new")).expect("file is on the host");
        assert_eq!(
            std::os::unix::fs::MetadataExt::uid(&metadata),
            uid,
            "{user:?}: the new file belongs to the owner of the directory"
        );
        let remaining: Vec<_> =
            std::fs::read_dir(directory.path()).expect("directory is read").flatten().map(|e| e.file_name()).collect();
        assert_eq!(remaining.len(), 2, "{user:?}: {remaining:?}");
    });
}

#[test]
fn created_protected_file_is_reported_and_then_read_only() {
    for_each_user("created_protected_file_is_reported_and_then_read_only", |user| {
        let directory = user.directory();
        let volume = format!("{}:/data:rw", directory.path().display());
        let create = "echo evil > /data/.envrc && mkdir -p /data/.git/hooks && echo done";
        let outcome = run_as(user, &["--volume", &volume], &["sh", "-c", create]);
        assert_eq!(outcome.text(), "done\n", "{user:?}: {}", outcome.stderr);
        for name in ["/data/.envrc", "/data/.git"] {
            let warning = format!("warning: {name} was created in a volume");
            assert_eq!(outcome.stderr.matches(&warning).count(), 1, "{user:?}: {}", outcome.stderr);
        }
        let again = run_as(user, &["--volume", &volume], &["sh", "-c", "echo more >> /data/.envrc || echo refused"]);
        assert_eq!(again.text(), "refused\n", "{user:?}: {}", again.stderr);
        assert!(!again.stderr.contains("warning:"), "{user:?}: {}", again.stderr);
    });
}

#[test]
fn strict_volumes_prevent_creation_of_protected_files_and_leave_no_files() {
    for_each_user("strict_volumes_prevent_creation_of_protected_files_and_leave_no_files", |user| {
        let (directory, state) = (user.directory(), user.directory());
        std::fs::create_dir(directory.path().join(".git")).expect("directory is created");
        let volume = format!("{}:/data:rw", directory.path().display());
        let mut command = user.ringfence();
        command.env("RINGFENCE_STATE_DIR", state.path());
        let create = "(echo evil > /data/.envrc) 2>/dev/null || echo refused; \
                     touch /data/.git/index 2>/dev/null || echo refused; touch /data/new && echo written";
        command.args(["run", "--strict-volumes", "--volume", &volume, "--", "sh", "-c", create]);
        let output = command.output().expect("command runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "refused\nrefused\nwritten\n", "{user:?}: {stderr}");
        assert!(!stderr.contains("warning:"), "{user:?}: {stderr}");
        let mut remaining: Vec<_> =
            std::fs::read_dir(directory.path()).expect("directory is read").flatten().map(|e| e.file_name()).collect();
        remaining.sort();
        assert_eq!(remaining, [".git", "new"], "{user:?}");
    });
}

/// The directory with ringfence's settings appears empty to the guest, although it contains a file.
#[test]
fn home_directory_with_a_configuration_file_can_be_a_volume() {
    for_each_user("home_directory_with_a_configuration_file_can_be_a_volume", |user| {
        let home = user.directory();
        let settings = home.path().join(".config/ringfence");
        std::fs::create_dir_all(&settings).expect("directory is created");
        std::fs::write(settings.join("ringfence.toml"), "# settings of the user\n").expect("file is written");
        let (uid, gid) = user.ids();
        for path in [home.path().join(".config"), settings.clone(), settings.join("ringfence.toml")] {
            std::os::unix::fs::chown(path, Some(uid), Some(gid)).expect("owner is set");
        }
        let volume = format!("{}:/data:rw", home.path().display());
        let attack = "ls -A /data/.config/ringfence; (echo x > /data/.config/ringfence/ringfence.toml) 2>/dev/null; \
                      mv /data/.config /data/moved 2>/dev/null; touch /data/new && echo written";
        let mut command = user.ringfence();
        command.env("HOME", home.path());
        let output =
            command.args(["run", "--volume", &volume, "--", "sh", "-c", attack]).output().expect("command runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "written\n", "{user:?}: {stderr}");
        let text = std::fs::read_to_string(settings.join("ringfence.toml")).expect("file exists");
        assert_eq!(text, "# settings of the user\n", "{user:?}");
    });
}

#[test]
fn git_works_in_a_volume_but_its_hooks_and_settings_are_read_only() {
    let git = Path::new("/usr/bin/git");
    if !git.exists() {
        return ringfence_testkit::skip(
            "git_works_in_a_volume_but_its_hooks_and_settings_are_read_only",
            "git is missing",
        );
    }
    let inside = r"
set -e; cd /data
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.com
git config --global safe.directory '*'
echo one > one; git add one; git commit -qm one
git checkout -qb topic; echo two > two; git add two; git commit -qm two
git checkout -q main; echo three > three; git add three; git commit -qm three
git merge -q -m merged topic
echo four >> one; git stash -q; git stash pop -q; git checkout -q one
git gc -q; git fsck --no-progress --no-dangling; git log --oneline | wc -l
set +e
refused() { if ( eval $1 ) 2>/dev/null; then echo allowed: $1; fi; }
refused 'echo evil > .git/hooks/post-checkout'
refused 'git config core.fsmonitor /data/evil'
refused 'echo evil > .git/info/attributes'
refused 'mv .git moved'
refused 'mv .git/hooks .git/moved'
refused 'rm -rf .git/hooks'
refused 'mkdir other && mv -T other .git'
rmdir other 2>/dev/null
exit 0
";
    for_each_user("git_works_in_a_volume_but_its_hooks_and_settings_are_read_only", |user| {
        let (directory, home) = (user.directory(), user.directory());
        let host_git = |arguments: &[&str]| {
            let mut command = user.program(git);
            command.env("HOME", home.path()).current_dir(directory.path()).args(arguments);
            let output = command.output().expect("git runs");
            assert!(output.status.success(), "{user:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        host_git(&["init", "-q", "-b", "main", "."]);
        let volume = format!("{}:/data:rw", directory.path().display());
        let outcome = run_as(user, &["--volume", &volume], &["sh", "-c", inside]);
        assert_eq!(outcome.text().trim(), "4", "{user:?}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("in a volume"), "{user:?}: {}", outcome.stderr);
        assert_eq!(host_git(&["status", "--porcelain"]), "", "{user:?}");
        assert_eq!(host_git(&["rev-list", "--count", "HEAD"]).trim(), "4", "{user:?}");
        // A file that redirects git's settings and hooks cannot be prevented, but is reported.
        let redirect = run_as(user, &["--volume", &volume], &["sh", "-c", "echo ../evil > /data/.git/commondir"]);
        assert!(redirect.stderr.contains("/data/.git/commondir was created"), "{user:?}: {}", redirect.stderr);
    });
}

#[test]
fn setuid_files_cannot_be_created_in_a_volume() {
    let program = r"
import ctypes, errno, os, stat
path = '/data/file'
open(path, 'w').close()
def refused(change):
    try:
        change()
    except OSError as error:
        return errno.errorcode[error.errno]
    return oct(stat.S_IMODE(os.stat(path).st_mode))
print(refused(lambda: os.chmod(path, 0o4755)), refused(lambda: os.chmod(path, 0o2755)))
print(refused(lambda: os.close(os.open('/data/new', os.O_CREAT | os.O_WRONLY, 0o6755))))
print(refused(lambda: os.chmod(path, 0o1755)))
";
    for_each_user("setuid_files_cannot_be_created_in_a_volume", |user| {
        let directory = user.directory();
        let outcome = run_python_as(user, &["--volume", &format!("{}:/data:rw", directory.path().display())], program);
        assert_eq!(outcome.text(), "EPERM EPERM\nEPERM\n0o1755\n", "{user:?}: {}", outcome.stderr);
    });
}

#[test]
fn symlink_created_by_a_guest_is_not_accepted_as_a_volume() {
    for_each_user("symlink_created_by_a_guest_is_not_accepted_as_a_volume", |user| {
        let (project, secret) = (user.directory(), user.directory());
        std::fs::create_dir(secret.path().join("b")).expect("directory is created");
        std::fs::write(secret.path().join("b/secret"), "secret").expect("file is written");
        let host = project.path().display();
        let create = format!("ln -s {} /data/a", secret.path().display());
        let outcome = run_as(user, &["--volume", &format!("{host}:/data:rw")], &["sh", "-c", &create]);
        assert_eq!(outcome.code, 0, "{user:?}: {}", outcome.stderr);
        for volume in [format!("{host}/a:/data"), format!("{host}/a/b:/data"), format!("{host}/a/b/secret:/data")] {
            let outcome = run_as(user, &["--volume", &volume], &["ls", "-R", "/data"]);
            assert_eq!(outcome.code, 125, "{user:?} {volume}: {}", outcome.text());
            assert!(outcome.stderr.contains("symbolic link; use"), "{user:?} {volume}: {}", outcome.stderr);
        }
    });
}
