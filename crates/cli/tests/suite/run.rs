//! `ringfence run`: input, output, and the environment of the command.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;

use ringfence_testkit::{User, for_each_user, run_as, run_python_as, run_with_input_as};

use crate::BINARY;

#[test]
fn command_output_is_returned() {
    for_each_user("command_output_is_returned", |user| {
        let outcome = run_as(user, &[], &["python3", "-c", "print(1+1)"]);
        assert_eq!((outcome.code, outcome.text(), outcome.stderr), (0, "2\n".into(), String::new()), "{user:?}");
    });
}

#[test]
fn every_template_has_its_interpreter() {
    for_each_user("every_template_has_its_interpreter", |user| {
        for (template, command) in [
            ("python", ["python3", "-c", "print('here')"].as_slice()),
            ("node", &["node", "-e", "console.log('here')"]),
            ("bash", &["bash", "-c", "echo here"]),
            ("shell", &["sh", "-c", "echo here"]),
        ] {
            let outcome = run_as(user, &["--template", template], command);
            assert_eq!(outcome.text(), "here\n", "{user:?} {template}: {}", outcome.stderr);
        }
    });
}

#[test]
fn exit_code_is_passed_on() {
    for_each_user("exit_code_is_passed_on", |user| {
        let code = |options: &[&str], command: &[&str]| run_as(user, options, command).code;
        assert_eq!(code(&[], &["sh", "-c", "exit 0"]), 0, "{user:?}");
        assert_eq!(code(&[], &["sh", "-c", "exit 42"]), 42, "{user:?}");
        assert_eq!(code(&[], &["sh", "-c", "kill -TERM $$"]), 128 + 15, "{user:?}");
        assert_eq!(code(&[], &["sh", "-c", "kill -KILL $$"]), 128 + 9, "{user:?}");
        assert_eq!(code(&["--timeout", "0.5"], &["sleep", "60"]), 124, "{user:?}");
        assert_eq!(code(&["--timeout", "0.5"], &["sh", "-c", "trap '' TERM; sleep 60"]), 124, "{user:?}");
    });
}

#[test]
fn nothing_of_the_host_is_visible() {
    let program = r"
import os, json
caps = {line.split(':')[0]: line.split(':')[1].strip() for line in open('/proc/self/status') if ':' in line}
print(json.dumps({
    'pids': sorted(int(name) for name in os.listdir('/proc') if name.isdigit()),
    'env': sorted(os.environ),
    'root': sorted(os.listdir('/')),
    'etc': 'shadow' in os.listdir('/etc'),
    'interfaces': [line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line],
    'status': [caps[key] for key in ('NoNewPrivs', 'Seccomp', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')],
    'ids': [os.getuid(), os.getgid()],
    'host': os.uname().nodename,
    'groups': [group for group in os.getgroups() if group not in (1000, 65534)],
    'cmdline': open('/proc/1/cmdline').read().strip('\0'),
}))
";
    for_each_user("nothing_of_the_host_is_visible", |user| {
        let outcome = run_python_as(user, &[], program);
        let none = "0000000000000000";
        let expected = format!(
            "{{\"pids\": [1, 2], \"env\": [\"HOME\", \"LANG\", \"LOGNAME\", \"PATH\", \"SHELL\", \"TMPDIR\", \"USER\"], \
             \"root\": [\"bin\", \"dev\", \"etc\", \"lib\", \"lib64\", \"proc\", \"run\", \"sbin\", \"tmp\", \"usr\", \"var\", \"workspace\"], \
             \"etc\": false, \"interfaces\": [\"lo\"], \"status\": [\"1\", \"2\", \"{none}\", \"{none}\", \"{none}\", \"{none}\", \"{none}\"], \
             \"ids\": [1000, 1000], \"host\": \"ringfence\", \"groups\": [], \"cmdline\": \"\"}}\n"
        );
        assert_eq!(outcome.text(), expected, "{user:?}: {}", outcome.stderr);
    });
}

#[test]
fn only_workspace_and_temporary_directories_are_writable() {
    let program = r"
import os
def can_write(directory):
    try:
        open(os.path.join(directory, 'probe'), 'w').close()
        return True
    except OSError:
        return False
writable = [d for d, _, _ in os.walk('/') if not d.startswith('/proc') and can_write(d)]
print(sorted(writable))
";
    for_each_user("only_workspace_and_temporary_directories_are_writable", |user| {
        let outcome = run_python_as(user, &[], program);
        assert_eq!(outcome.text(), "['/dev/shm', '/tmp', '/workspace']\n", "{user:?}: {}", outcome.stderr);
    });
}

#[test]
fn full_workspace_fails_writes_but_does_not_end_the_command() {
    let program = r"
import errno, os
def fill(path):
    try:
        with open(path, 'wb') as file:
            for _ in range(128):
                file.write(b'x' * (1 << 20))
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        os.unlink(path)
print(fill('/workspace/big'), fill('/tmp/big'), fill('/dev/shm/big'))
open('/workspace/small', 'w').write('alive')
print(open('/workspace/small').read())
";
    for_each_user("full_workspace_fails_writes_but_does_not_end_the_command", |user| {
        let outcome = run_python_as(user, &["--workspace", "64M"], program);
        assert_eq!(outcome.text(), "ENOSPC ENOSPC ENOSPC\nalive\n", "{user:?}: {}", outcome.stderr);
    });
}

#[test]
fn memory_bomb_is_killed_with_a_reason_and_other_sandboxes_continue() {
    for_each_user("memory_bomb_is_killed_with_a_reason_and_other_sandboxes_continue", |user| {
        let sibling = user.ringfence().args(["run", "--", "cat"]).stdin(Stdio::piped()).spawn();
        let mut sibling = sibling.expect("second sandbox starts");
        // Many processes, so that no limit of a single process is reached first.
        let bomb = "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        x = bytearray(60 << 20)\n        for i in range(0, len(x), 4096): x[i] = 1\n        time.sleep(20)\ntime.sleep(20)";
        let outcome = run_python_as(user, &["--memory", "128M", "--timeout", "10"], bomb);
        assert!(outcome.stderr.contains("memory limit of 128 MiB"), "{user:?}: {} {}", outcome.code, outcome.stderr);
        sibling.stdin.take().expect("stdin is piped").write_all(b"still here").expect("input is written");
        let mut output = String::new();
        sibling.stdout.take().expect("stdout is piped").read_to_string(&mut output).expect("output is read");
        assert_eq!(
            (output.as_str(), sibling.wait().expect("process exits").code()),
            ("still here", Some(0)),
            "{user:?}"
        );
    });
}

#[test]
fn streams_are_binary_safe_and_unbounded() {
    let mut input = Vec::with_capacity(32 << 20);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    while input.len() < 32 << 20 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        input.extend(state.to_ne_bytes());
    }
    for_each_user("streams_are_binary_safe_and_unbounded", |user| {
        let outcome = run_with_input_as(user, &[], &["sh", "-c", "tee /dev/stderr | cat"], &input);
        assert_eq!(outcome.code, 0, "{user:?}");
        assert!(outcome.stdout == input, "{user:?}: {} of {} bytes were returned", outcome.stdout.len(), input.len());
    });
}

#[test]
fn command_ends_without_reading_its_input() {
    for_each_user("command_ends_without_reading_its_input", |user| {
        let mut child = user.ringfence();
        child.args(["run", "--", "true"]).stdin(Stdio::piped());
        let mut child = child.spawn().expect("process starts");
        let stdin = child.stdin.take();
        assert_eq!(child.wait().expect("process exits").code(), Some(0), "{user:?}");
        drop(stdin);
    });
}

#[test]
fn output_written_just_before_exit_is_not_lost() {
    for_each_user("output_written_just_before_exit_is_not_lost", |user| {
        for _ in 0..20 {
            let outcome = run_as(user, &[], &["sh", "-c", "echo out; echo err >&2"]);
            assert_eq!((outcome.text().as_str(), outcome.stderr.as_str()), ("out\n", "err\n"), "{user:?}");
        }
    });
}

#[test]
fn closed_stdout_ends_the_command() {
    for_each_user("closed_stdout_ends_the_command", |user| {
        let mut child = user.ringfence().args(["run", "--", "yes"]).spawn().expect("process starts");
        let mut start = [0; 2];
        child.stdout.take().expect("stdout is piped").read_exact(&mut start).expect("output is read");
        assert_eq!(child.wait().expect("process exits").code(), Some(128 + 13), "{user:?}");
    });
}

#[test]
fn options_apply_to_the_command() {
    for_each_user("options_apply_to_the_command", |user| {
        let script = "pwd; echo $A $HOST_SECRET; ulimit -n; cat /proc/self/limits | grep -c 'Max processes *77 '";
        let options =
            ["--workdir", "/tmp", "--env", "A=b=c", "--env", "HOST_SECRET", "--nofile", "333", "--pids", "77"];
        let outcome = run_as(user, &options, &["sh", "-c", script]);
        assert_eq!(outcome.text(), "/tmp\nb=c a-secret-of-the-host\n333\n1\n", "{user:?}: {}", outcome.stderr);
    });
}

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

#[test]
fn signals_are_forwarded() {
    let program =
        "trap 'echo got TERM; exit 7' TERM; trap 'echo got USR1' USR1; echo ready; while :; do sleep 0.05; done";
    for_each_user("signals_are_forwarded", |user| {
        let mut child = user.ringfence();
        let mut child = child.args(["run", "--", "sh", "-c", program]).spawn().expect("process starts");
        let pid = rustix::process::Pid::from_child(&child);
        let mut stdout = child.stdout.take().expect("stdout is piped");
        let mut read = |expected: &str| {
            let mut line = vec![0; expected.len()];
            stdout.read_exact(&mut line).expect("output is read");
            assert_eq!(String::from_utf8_lossy(&line), expected, "{user:?}");
        };
        read("ready\n");
        rustix::process::kill_process(pid, rustix::process::Signal::USR1).expect("process is alive");
        read("got USR1\n");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("process is alive");
        read("got TERM\n");
        assert_eq!(child.wait().expect("process exits").code(), Some(7), "{user:?}");
    });
}

#[test]
fn command_gets_a_terminal_of_the_same_size() {
    if User::Root.unavailable().is_some() || !Path::new("/usr/bin/script").exists() {
        return ringfence_testkit::skip(
            "command_gets_a_terminal_of_the_same_size",
            "util-linux's `script` or root is missing",
        );
    }
    let all = format!("{BINARY} run -- sh -c 'tty; stty size; test -t 0 && test -t 1 && test -t 2 && echo all'");
    assert_eq!(output_in_terminal(&all), "/dev/pts/0\n33 77\nall\n");
    // The size is set before the command starts, so that a command that queries it first gets it every time.
    let repeated = format!("for _ in 1 2 3 4 5 6 7 8 9 10; do {BINARY} run -- stty size; done");
    assert_eq!(output_in_terminal(&repeated), "33 77\n".repeat(10));
}

/// Returns the output of a shell line in a terminal of 33 rows and 77 columns.
fn output_in_terminal(line: &str) -> String {
    // `script` starts the program in a new terminal.
    let mut command = User::Root.program(Path::new("/usr/bin/script"));
    command.args(["-qec", &format!("stty rows 33 cols 77; {line}"), "/dev/null"]).env("TERM", "xterm");
    let mut child = command.stdin(Stdio::piped()).spawn().expect("script runs");
    // The input must stay open: when it ends, `script` writes an end-of-file character, which the terminal echoes.
    let stdin = child.stdin.take();
    let mut text = String::new();
    child.stdout.take().expect("stdout is piped").read_to_string(&mut text).expect("output is read");
    drop(stdin);
    child.wait().expect("process exits");
    text.replace('\r', "")
}

/// File watchers of Python (watchdog, watchfiles) also request access events. They do not need them, and the sandbox does
/// not deliver them.
#[test]
fn file_watchers_work() {
    let program = r#"
import ctypes, os, select, struct, threading
libc = ctypes.CDLL(None, use_errno=True)
IN_CREATE, IN_OPEN, IN_CLOSE_NOWRITE = 0x100, 0x20, 0x10
def watch(init, path):
    instance = init()
    assert instance >= 0, os.strerror(ctypes.get_errno())
    added = libc.inotify_add_watch(instance, path, IN_CREATE | IN_OPEN | IN_CLOSE_NOWRITE)
    assert added == 1, os.strerror(ctypes.get_errno())
    name = f'file{len(os.listdir("/workspace/watched"))}'
    open(f'/workspace/watched/{name}', 'x').close()
    open(f'/workspace/watched/{name}').close()
    assert select.select([instance], [], [], 5)[0]
    events = os.read(instance, 4096)
    _, mask, _, length = struct.unpack_from('iIII', events)
    assert (mask, events[16:].rstrip(b'\0').decode(), len(events)) == (IN_CREATE, name, 16 + length), events
    os.close(instance)
os.mkdir('/workspace/watched')
os.chdir('/workspace')
watch(libc.inotify_init, b'watched')
watch(lambda: libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK), b'/workspace/watched')
watch(libc.inotify_init, b'/proc/self/cwd/watched')
thread = threading.Thread(target=watch, args=(libc.inotify_init, b'watched'))
thread.start()
thread.join()
for _ in range(100):
    os.close(libc.inotify_init())
missing = libc.inotify_add_watch(libc.inotify_init(), b'absent', IN_CREATE | IN_OPEN)
assert (missing, ctypes.get_errno()) == (-1, 2), ctypes.get_errno()
print('watched')
"#;
    for_each_user("file_watchers_work", |user| {
        let outcome = run_as(user, &[], &["python3", "-c", program]);
        assert_eq!((outcome.code, outcome.text()), (0, "watched\n".into()), "{user:?}: {}", outcome.stderr);
    });
}

#[test]
fn programs_can_list_network_interfaces() {
    let program = r"
import socket
# more sockets than the limit of open ones
for _ in range(300):
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
print(socket.if_nameindex(), socket.getaddrinfo('localhost', 80, socket.AF_INET)[0][4])
";
    for_each_user("programs_can_list_network_interfaces", |user| {
        let outcome = run_as(user, &["--memory", "128M", "--workspace", "16M"], &["python3", "-c", program]);
        let listed = "[(1, 'lo')] ('127.0.0.1', 80)\n";
        assert_eq!((outcome.code, outcome.text()), (0, listed.into()), "{user:?}: {}", outcome.stderr);
        let outcome = run_as(user, &["--template", "node"], &["node", "-p", "Object.keys(os.networkInterfaces())"]);
        assert_eq!((outcome.code, outcome.text()), (0, "[ 'lo' ]\n".into()), "{user:?}: {}", outcome.stderr);
    });
}
