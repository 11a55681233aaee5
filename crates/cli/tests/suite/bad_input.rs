//! Bad input: one clear error with a hint, exit code 125, and nothing left behind.

use ringfence_testkit::{User, for_each_user, run_as};

/// What is said for a set of options, with the code; the command would succeed.
fn refuse(who: User, options: &[&str]) -> (i32, String) {
    let outcome = run_as(who, options, &["true"]);
    (outcome.code, outcome.stderr)
}

#[test]
fn each_is_one_error_with_a_hint() {
    let long = "9".repeat(40);
    for_each_user("bad_input", |who| {
        for (options, expected) in [
            (
                vec!["--volume", "/does/not/exist:/data"],
                "error: cannot mount volume /does/not/exist\n  caused by: No such file or directory (os error 2)\nhint: create the directory first: ringfence does not create volumes\n",
            ),
            (vec!["--volume", "/usr/../etc:/data"], "volume path /usr/../etc contains `..`"),
            (vec!["--volume", "/usr:/data/../x"], "volume path /data/../x contains `.` or `..`"),
            (vec!["--volume", "/usr:data"], "volume path data is not an absolute path"),
            (vec!["--volume", "/usr:/proc/x"], "is under /proc or /dev"),
            (vec!["--volume", "/usr:/workspace"], "is the workspace of the sandbox"),
            (vec!["--volume", "/usr:/etc"], "is reserved for the sandbox"),
            (vec!["--volume", "/usr:/a", "--volume", "/usr:/a"], "two volumes have the guest path /a"),
            (vec!["--volume", "/dev/null:/data"], "hint: only directories and regular files can be mounted"),
            (vec!["--volume", "/proc:/data"], "hint: this path shows or controls the host itself"),
            (vec!["--volume", "/:/data"], "hint: this path shows or controls the host itself"),
            (vec!["--volume", "/run:/data:rw"], "hint: this path shows or controls the host itself"),
            (vec!["--volume", "/proc/self/root/etc/..:/data"], "contains `..`"),
            (vec!["--volume", "/proc/self/cwd:/data"], "hint: this path is a symbolic link"),
            (vec!["--volume", "nonsense"], "`nonsense` is not a volume; write HOST:GUEST[:ro|rw]"),
            (vec!["--memory", "0"], "memory of 0 bytes is out of range (16 MiB to 1 TiB)"),
            (vec!["--memory", "10T"], "memory of 10 TiB is out of range"),
            (vec!["--memory", "much"], "unknown unit `much`"),
            (vec!["--pids", "0"], "pids of 0 is out of range"),
            (vec!["--cpus", "0"], "cpus of 0 is out of range"),
            (vec!["--cpus", "-1"], "error:"),
            (vec!["--nofile", "0"], "open files of 0 is out of range"),
            (vec!["--timeout", "0"], "`0` is not a number of seconds between 0 and a year"),
            (vec!["--workspace", "0"], "workspace of 0 bytes is out of range"),
            (vec!["--memory", "64M", "--workspace", "64M"], "hint: the workspace is stored in memory"),
            (vec!["--template", "cobol"], "unknown template `cobol`; available templates: python, node and bash"),
            (vec!["--flavor", "huge"], "unknown flavor `huge`; available flavors: small, medium and large"),
            (vec!["--network", "all"], "`all` is not a network; write `none` or `allow=HOST,…`"),
            (vec!["--network", "allow=exa mple"], "error:"),
            (vec!["--network", "allow=https://h"], "has an invalid host: the host contains the character '/'"),
            (vec!["--network", "allow=https://h"], "hint: write only the host, without scheme and path"),
            (vec!["--env", "NOT_SET_HERE"], "the variable `NOT_SET_HERE` is not set in this environment"),
            (vec!["--env", "=x"], "environment variable `` has an empty name"),
            (vec!["--workdir", "relative"], "working directory relative is not an absolute path"),
            (vec!["--accept", "everything"], "unknown weakness `everything`"),
            (vec!["--memory", &long], "error:"),
            (vec!["--no-such-option"], "unexpected argument '--no-such-option'"),
        ] {
            let (code, stderr) = refuse(who, &options);
            assert_eq!(code, 125, "{who:?} {options:?}: {stderr}");
            assert!(stderr.contains(expected), "{who:?} {options:?}: {stderr}");
            assert_eq!(stderr.matches("error:").count(), 1, "{who:?} {options:?}: {stderr}");
        }
    });
}

#[test]
fn commands_that_cannot_run_are_told_as_shells_do() {
    for_each_user("bad_command", |who| {
        let outcome = run_as(who, &[], &["no-such-command"]);
        assert_eq!(outcome.code, 127, "{who:?}: {}", outcome.stderr);
        assert!(
            outcome.stderr.starts_with("error: command not found: no-such-command\nhint: "),
            "{who:?}: {}",
            outcome.stderr
        );
        let outcome = run_as(who, &[], &["/etc/passwd"]);
        assert_eq!(outcome.code, 126, "{who:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("command cannot be executed: /etc/passwd"), "{who:?}: {}", outcome.stderr);
        assert_eq!(run_as(who, &[], &["/usr"]).code, 126, "{who:?}");
        assert_eq!(run_as(who, &["--workdir", "/nowhere"], &["true"]).code, 125, "{who:?}");
        assert_eq!(run_as(who, &[], &[]).code, 125, "{who:?}");
        assert_eq!(run_as(who, &[], &[""]).code, 125, "{who:?}");
    });
}

#[test]
fn a_missing_protection_is_an_error_unless_it_is_accepted_by_name() {
    for who in [User::Plain, User::WithSubids] {
        if let Some(reason) = who.unavailable() {
            ringfence_testkit::skip("a_missing_protection", &reason);
            continue;
        }
        let (code, stderr) = refuse(who, &["--accept", "own-uid"]);
        assert_eq!(code, 125, "{who:?}: {stderr}");
        assert!(stderr.contains("this host lacks control groups for this user"), "{who:?}: {stderr}");
        assert!(stderr.contains("add `cgroup` to --accept"), "{who:?}: {stderr}");
    }
    if User::Plain.unavailable().is_none() {
        let (code, stderr) = refuse(User::Plain, &["--accept", "cgroup"]);
        assert_eq!(code, 125, "{stderr}");
        assert!(stderr.contains("a separate uid") && stderr.contains("/etc/subuid"), "{stderr}");
        assert_eq!(refuse(User::WithSubids, &["--accept", "cgroup"]).0, 0, "a user with subordinate ids lacks none");
    }
}
