//! Invalid options and commands of `ringfence run`: exactly one error, and the documented exit code.

use ringfence_testkit::{User, for_each_user, run_as};

/// Runs `true` with these options. Returns the exit code and stderr.
fn run_with_options(user: User, options: &[&str]) -> (i32, String) {
    let outcome = run_as(user, options, &["true"]);
    (outcome.code, outcome.stderr)
}

#[test]
fn invalid_options_are_refused_with_one_error() {
    let long = "9".repeat(40);
    for_each_user("invalid_options_are_refused_with_one_error", |user| {
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
            let (code, stderr) = run_with_options(user, &options);
            assert_eq!(code, 125, "{user:?} {options:?}: {stderr}");
            assert!(stderr.contains(expected), "{user:?} {options:?}: {stderr}");
            assert_eq!(stderr.matches("error:").count(), 1, "{user:?} {options:?}: {stderr}");
        }
    });
}

#[test]
fn unrunnable_commands_exit_with_shell_codes() {
    for_each_user("unrunnable_commands_exit_with_shell_codes", |user| {
        let outcome = run_as(user, &[], &["no-such-command"]);
        assert_eq!(outcome.code, 127, "{user:?}: {}", outcome.stderr);
        assert!(
            outcome.stderr.starts_with("error: command not found: no-such-command\nhint: "),
            "{user:?}: {}",
            outcome.stderr
        );
        let outcome = run_as(user, &[], &["/etc/passwd"]);
        assert_eq!(outcome.code, 126, "{user:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("command cannot be executed: /etc/passwd"), "{user:?}: {}", outcome.stderr);
        assert_eq!(run_as(user, &[], &["/usr"]).code, 126, "{user:?}");
        assert_eq!(run_as(user, &["--workdir", "/nowhere"], &["true"]).code, 125, "{user:?}");
        assert_eq!(run_as(user, &[], &[]).code, 125, "{user:?}");
        assert_eq!(run_as(user, &[], &[""]).code, 125, "{user:?}");
    });
}

#[test]
fn missing_protection_is_an_error_unless_accepted_by_name() {
    for user in [User::Plain, User::WithSubids] {
        if let Some(reason) = user.unavailable() {
            ringfence_testkit::skip("missing_protection_is_an_error_unless_accepted_by_name", &reason);
            continue;
        }
        let (code, stderr) = run_with_options(user, &["--accept", "own-uid"]);
        assert_eq!(code, 125, "{user:?}: {stderr}");
        assert!(stderr.contains("this host lacks control groups for this user"), "{user:?}: {stderr}");
        assert!(stderr.contains("add `cgroup` to --accept"), "{user:?}: {stderr}");
    }
    if User::Plain.unavailable().is_none() {
        let (code, stderr) = run_with_options(User::Plain, &["--accept", "cgroup"]);
        assert_eq!(code, 125, "{stderr}");
        assert!(stderr.contains("a separate uid") && stderr.contains("/etc/subuid"), "{stderr}");
        assert_eq!(
            run_with_options(User::WithSubids, &["--accept", "cgroup"]).0,
            0,
            "a user with subordinate ids has a separate uid"
        );
    }
}
