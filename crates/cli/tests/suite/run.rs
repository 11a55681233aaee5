//! `ringfence run`: what goes in, what comes out, and what the command sees.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;

use ringfence_testkit::{User, for_each_user, run_as, run_python_as, run_with_input_as};

use crate::BINARY;

#[test]
fn a_command_runs_and_its_output_comes_back() {
    for_each_user("a_command_runs", |who| {
        let outcome = run_as(who, &[], &["python3", "-c", "print(1+1)"]);
        assert_eq!((outcome.code, outcome.text(), outcome.stderr), (0, "2\n".into(), String::new()), "{who:?}");
    });
}

#[test]
fn every_template_has_its_interpreter() {
    for_each_user("every_template", |who| {
        for (template, command) in [
            ("python", ["python3", "-c", "print('here')"].as_slice()),
            ("node", &["node", "-e", "console.log('here')"]),
            ("bash", &["bash", "-c", "echo here"]),
            ("shell", &["sh", "-c", "echo here"]),
        ] {
            let outcome = run_as(who, &["--template", template], command);
            assert_eq!(outcome.text(), "here\n", "{who:?} {template}: {}", outcome.stderr);
        }
    });
}

#[test]
fn the_exit_code_is_passed_on() {
    for_each_user("the_exit_code", |who| {
        let code = |options: &[&str], command: &[&str]| run_as(who, options, command).code;
        assert_eq!(code(&[], &["sh", "-c", "exit 0"]), 0, "{who:?}");
        assert_eq!(code(&[], &["sh", "-c", "exit 42"]), 42, "{who:?}");
        assert_eq!(code(&[], &["sh", "-c", "kill -TERM $$"]), 128 + 15, "{who:?}");
        assert_eq!(code(&[], &["sh", "-c", "kill -KILL $$"]), 128 + 9, "{who:?}");
        assert_eq!(code(&["--timeout", "0.5"], &["sleep", "60"]), 124, "{who:?}");
        assert_eq!(code(&["--timeout", "0.5"], &["sh", "-c", "trap '' TERM; sleep 60"]), 124, "{who:?}");
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
    for_each_user("nothing_of_the_host", |who| {
        let outcome = run_python_as(who, &[], program);
        let none = "0000000000000000";
        let expected = format!(
            "{{\"pids\": [1, 2], \"env\": [\"HOME\", \"LANG\", \"LOGNAME\", \"PATH\", \"SHELL\", \"TMPDIR\", \"USER\"], \
             \"root\": [\"bin\", \"dev\", \"etc\", \"lib\", \"lib64\", \"proc\", \"run\", \"sbin\", \"tmp\", \"usr\", \"var\", \"workspace\"], \
             \"etc\": false, \"interfaces\": [\"lo\"], \"status\": [\"1\", \"2\", \"{none}\", \"{none}\", \"{none}\", \"{none}\", \"{none}\"], \
             \"ids\": [1000, 1000], \"host\": \"ringfence\", \"groups\": [], \"cmdline\": \"\"}}\n"
        );
        assert_eq!(outcome.text(), expected, "{who:?}: {}", outcome.stderr);
    });
}

#[test]
fn only_the_workspace_can_be_written() {
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
    for_each_user("only_the_workspace", |who| {
        let outcome = run_python_as(who, &[], program);
        assert_eq!(outcome.text(), "['/dev/shm', '/tmp', '/workspace']\n", "{who:?}: {}", outcome.stderr);
    });
}

#[test]
fn a_full_workspace_is_an_error_and_not_the_end() {
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
    for_each_user("a_full_workspace", |who| {
        let outcome = run_python_as(who, &["--workspace", "64M"], program);
        assert_eq!(outcome.text(), "ENOSPC ENOSPC ENOSPC\nalive\n", "{who:?}: {}", outcome.stderr);
    });
}

#[test]
fn a_memory_bomb_ends_alone_and_is_explained() {
    for_each_user("a_memory_bomb", |who| {
        let sibling = who.ringfence().args(["run", "--", "cat"]).stdin(Stdio::piped()).spawn();
        let mut sibling = sibling.expect("a sibling starts");
        // Many processes, so that no limit of a single one is met first.
        let bomb = "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        x = bytearray(60 << 20)\n        for i in range(0, len(x), 4096): x[i] = 1\n        time.sleep(20)\ntime.sleep(20)";
        let outcome = run_python_as(who, &["--memory", "128M", "--timeout", "10"], bomb);
        assert!(outcome.stderr.contains("memory limit of 128 MiB"), "{who:?}: {} {}", outcome.code, outcome.stderr);
        sibling.stdin.take().expect("stdin is piped").write_all(b"still here").expect("the sibling reads");
        let mut answer = String::new();
        sibling.stdout.take().expect("stdout is piped").read_to_string(&mut answer).expect("the sibling answers");
        assert_eq!((answer.as_str(), sibling.wait().expect("it ends").code()), ("still here", Some(0)), "{who:?}");
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
    for_each_user("streams", |who| {
        let outcome = run_with_input_as(who, &[], &["sh", "-c", "tee /dev/stderr | cat"], &input);
        assert_eq!(outcome.code, 0, "{who:?}");
        assert!(outcome.stdout == input, "{who:?}: {} bytes came back of {}", outcome.stdout.len(), input.len());
    });
}

#[test]
fn a_command_that_ignores_its_input_ends_all_the_same() {
    for_each_user("ignored_input", |who| {
        let mut child = who.ringfence();
        child.args(["run", "--", "true"]).stdin(Stdio::piped());
        let mut child = child.spawn().expect("it starts");
        let stdin = child.stdin.take();
        assert_eq!(child.wait().expect("it ends").code(), Some(0), "{who:?}");
        drop(stdin);
    });
}

#[test]
fn output_written_at_the_very_end_is_not_lost() {
    for_each_user("last_output", |who| {
        for _ in 0..20 {
            let outcome = run_as(who, &[], &["sh", "-c", "echo out; echo err >&2"]);
            assert_eq!((outcome.text().as_str(), outcome.stderr.as_str()), ("out\n", "err\n"), "{who:?}");
        }
    });
}

#[test]
fn a_reader_that_goes_away_ends_the_writer() {
    for_each_user("reader_goes", |who| {
        let mut child = who.ringfence().args(["run", "--", "yes"]).spawn().expect("it starts");
        let mut start = [0; 2];
        child.stdout.take().expect("stdout is piped").read_exact(&mut start).expect("it writes");
        assert_eq!(child.wait().expect("it ends").code(), Some(128 + 13), "{who:?}");
    });
}

#[test]
fn options_reach_the_command() {
    for_each_user("options", |who| {
        let script = "pwd; echo $A $HOST_SECRET; ulimit -n; cat /proc/self/limits | grep -c 'Max processes *77 '";
        let options =
            ["--workdir", "/tmp", "--env", "A=b=c", "--env", "HOST_SECRET", "--nofile", "333", "--pids", "77"];
        let outcome = run_as(who, &options, &["sh", "-c", script]);
        assert_eq!(outcome.text(), "/tmp\nb=c a-secret-of-the-host\n333\n1\n", "{who:?}: {}", outcome.stderr);
    });
}

#[test]
fn volumes_are_shown_where_and_how_they_are_asked_for() {
    for_each_user("volumes", |who| {
        let directory = who.directory();
        std::fs::write(directory.path().join("file"), "content").expect("a file");
        let (uid, gid) = who.ids();
        std::os::unix::fs::chown(directory.path().join("file"), Some(uid), Some(gid)).expect("its owner");
        let host = directory.path().display();
        let script = "cat /data/file; (echo x > /data/new) 2>/dev/null && echo written; ls -A /data | tr '\\n' ' '";
        let show = |mode: &str| run_as(who, &["--volume", &format!("{host}:/data{mode}")], &["sh", "-c", script]);
        assert_eq!(show("").text(), "contentfile ", "{who:?}");
        assert_eq!(show(":ro").text(), "contentfile ", "{who:?}");
        let outcome = show(":rw");
        assert_eq!(outcome.text(), "contentwritten\nfile new ", "{who:?}: {}", outcome.stderr);
        assert_eq!(outcome.stderr, "", "{who:?}: nothing was created that the host obeys");
        let metadata = std::fs::metadata(directory.path().join("new")).expect("it is on the host");
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&metadata), uid, "{who:?}: it belongs to the owner");
        let left: Vec<_> =
            std::fs::read_dir(directory.path()).expect("readable").flatten().map(|e| e.file_name()).collect();
        assert_eq!(left.len(), 2, "{who:?}: {left:?}");
    });
}

#[test]
fn a_protected_name_that_is_created_is_reported_and_then_protected() {
    for_each_user("created_names", |who| {
        let directory = who.directory();
        let volume = format!("{}:/data:rw", directory.path().display());
        let plant = "echo evil > /data/.envrc && mkdir -p /data/.git/hooks && echo done";
        let outcome = run_as(who, &["--volume", &volume], &["sh", "-c", plant]);
        assert_eq!(outcome.text(), "done\n", "{who:?}: {}", outcome.stderr);
        for name in ["/data/.envrc", "/data/.git"] {
            let warning = format!("warning: {name} was created in a volume");
            assert_eq!(outcome.stderr.matches(&warning).count(), 1, "{who:?}: {}", outcome.stderr);
        }
        let again = run_as(who, &["--volume", &volume], &["sh", "-c", "echo more >> /data/.envrc || echo refused"]);
        assert_eq!(again.text(), "refused\n", "{who:?}: {}", again.stderr);
        assert!(!again.stderr.contains("warning:"), "{who:?}: {}", again.stderr);
    });
}

#[test]
fn strict_volumes_hold_absent_names_and_leave_nothing() {
    for_each_user("strict_volumes", |who| {
        let (directory, state) = (who.directory(), who.directory());
        std::fs::create_dir(directory.path().join(".git")).expect("a repository");
        let volume = format!("{}:/data:rw", directory.path().display());
        let mut command = who.ringfence();
        command.env("RINGFENCE_STATE_DIR", state.path());
        let plant = "(echo evil > /data/.envrc) 2>/dev/null || echo refused; \
                     touch /data/.git/index 2>/dev/null || echo refused; touch /data/new && echo written";
        command.args(["run", "--strict-volumes", "--volume", &volume, "--", "sh", "-c", plant]);
        let output = command.output().expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "refused\nrefused\nwritten\n", "{who:?}: {stderr}");
        assert!(!stderr.contains("warning:"), "{who:?}: {stderr}");
        let mut left: Vec<_> =
            std::fs::read_dir(directory.path()).expect("readable").flatten().map(|e| e.file_name()).collect();
        left.sort();
        assert_eq!(left, [".git", "new"], "{who:?}");
    });
}

/// The directory of ringfence's own settings is empty for the guest, with the file in it.
#[test]
fn a_home_with_a_configuration_file_can_be_a_volume() {
    for_each_user("home_with_configuration", |who| {
        let home = who.directory();
        let own = home.path().join(".config/ringfence");
        std::fs::create_dir_all(&own).expect("a directory");
        std::fs::write(own.join("ringfence.toml"), "# of the user\n").expect("a configuration");
        let (uid, gid) = who.ids();
        for path in [home.path().join(".config"), own.clone(), own.join("ringfence.toml")] {
            std::os::unix::fs::chown(path, Some(uid), Some(gid)).expect("its owner");
        }
        let volume = format!("{}:/data:rw", home.path().display());
        let attack = "ls -A /data/.config/ringfence; (echo x > /data/.config/ringfence/ringfence.toml) 2>/dev/null; \
                      mv /data/.config /data/away 2>/dev/null; touch /data/new && echo written";
        let mut command = who.ringfence();
        command.env("HOME", home.path());
        let output = command.args(["run", "--volume", &volume, "--", "sh", "-c", attack]).output().expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "written\n", "{who:?}: {stderr}");
        let text = std::fs::read_to_string(own.join("ringfence.toml")).expect("it is there");
        assert_eq!(text, "# of the user\n", "{who:?}");
    });
}

#[test]
fn git_works_in_a_volume_but_cannot_be_told_what_to_execute() {
    let git = Path::new("/usr/bin/git");
    if !git.exists() {
        return ringfence_testkit::skip("git_in_a_volume", "git is missing");
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
refused 'mv .git away'
refused 'mv .git/hooks .git/away'
refused 'rm -rf .git/hooks'
refused 'mkdir other && mv -T other .git'
rmdir other 2>/dev/null
exit 0
";
    for_each_user("git_in_a_volume", |who| {
        let (directory, home) = (who.directory(), who.directory());
        let host = |arguments: &[&str]| {
            let mut command = who.program(git);
            command.env("HOME", home.path()).current_dir(directory.path()).args(arguments);
            let output = command.output().expect("git runs");
            assert!(output.status.success(), "{who:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        host(&["init", "-q", "-b", "main", "."]);
        let volume = format!("{}:/data:rw", directory.path().display());
        let outcome = run_as(who, &["--volume", &volume], &["sh", "-c", inside]);
        assert_eq!(outcome.text().trim(), "4", "{who:?}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("in a volume"), "{who:?}: {}", outcome.stderr);
        assert_eq!(host(&["status", "--porcelain"]), "", "{who:?}");
        assert_eq!(host(&["rev-list", "--count", "HEAD"]).trim(), "4", "{who:?}");
        // A file that redirects git's settings and hooks cannot be prevented, but is reported.
        let redirect = run_as(who, &["--volume", &volume], &["sh", "-c", "echo ../evil > /data/.git/commondir"]);
        assert!(redirect.stderr.contains("/data/.git/commondir was created"), "{who:?}: {}", redirect.stderr);
    });
}

#[test]
fn no_setuid_file_is_left_in_a_volume() {
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
    for_each_user("setuid_files", |who| {
        let directory = who.directory();
        let outcome = run_python_as(who, &["--volume", &format!("{}:/data:rw", directory.path().display())], program);
        assert_eq!(outcome.text(), "EPERM EPERM\nEPERM\n0o1755\n", "{who:?}: {}", outcome.stderr);
    });
}

#[test]
fn a_link_that_a_guest_planted_leads_nowhere() {
    for_each_user("planted_link", |who| {
        let (project, secret) = (who.directory(), who.directory());
        std::fs::create_dir(secret.path().join("b")).expect("a directory");
        std::fs::write(secret.path().join("b/secret"), "secret").expect("a file");
        let host = project.path().display();
        let plant = format!("ln -s {} /data/a", secret.path().display());
        let outcome = run_as(who, &["--volume", &format!("{host}:/data:rw")], &["sh", "-c", &plant]);
        assert_eq!(outcome.code, 0, "{who:?}: {}", outcome.stderr);
        for volume in [format!("{host}/a:/data"), format!("{host}/a/b:/data"), format!("{host}/a/b/secret:/data")] {
            let outcome = run_as(who, &["--volume", &volume], &["ls", "-R", "/data"]);
            assert_eq!(outcome.code, 125, "{who:?} {volume}: {}", outcome.text());
            assert!(outcome.stderr.contains("symbolic link; use"), "{who:?} {volume}: {}", outcome.stderr);
        }
    });
}

#[test]
fn signals_are_passed_on() {
    let program =
        "trap 'echo got TERM; exit 7' TERM; trap 'echo got USR1' USR1; echo ready; while :; do sleep 0.05; done";
    for_each_user("signals", |who| {
        let mut child = who.ringfence();
        let mut child = child.args(["run", "--", "sh", "-c", program]).spawn().expect("it starts");
        let pid = rustix::process::Pid::from_child(&child);
        let mut stdout = child.stdout.take().expect("stdout is piped");
        let mut read = |expected: &str| {
            let mut line = vec![0; expected.len()];
            stdout.read_exact(&mut line).expect("it writes");
            assert_eq!(String::from_utf8_lossy(&line), expected, "{who:?}");
        };
        read("ready\n");
        rustix::process::kill_process(pid, rustix::process::Signal::USR1).expect("it lives");
        read("got USR1\n");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it lives");
        read("got TERM\n");
        assert_eq!(child.wait().expect("it ends").code(), Some(7), "{who:?}");
    });
}

#[test]
fn a_terminal_is_offered_where_there_is_one() {
    if User::Root.unavailable().is_some() || !Path::new("/usr/bin/script").exists() {
        return ringfence_testkit::skip("a_terminal_is_offered", "util-linux's `script` or root is missing");
    }
    let all = format!("{BINARY} run -- sh -c 'tty; stty size; test -t 0 && test -t 1 && test -t 2 && echo all'");
    assert_eq!(in_a_terminal(&all), "/dev/pts/0\n33 77\nall\n");
    // One that asks for the size as the first thing it does has it too, every time.
    let at_once = format!("for _ in 1 2 3 4 5 6 7 8 9 10; do {BINARY} run -- stty size; done");
    assert_eq!(in_a_terminal(&at_once), "33 77\n".repeat(10));
}

/// What a shell line shows in a terminal of 33 by 77.
fn in_a_terminal(line: &str) -> String {
    // `script` gives the program a terminal of its own, as a person's would be.
    let mut command = User::Root.program(Path::new("/usr/bin/script"));
    command.args(["-qec", &format!("stty rows 33 cols 77; {line}"), "/dev/null"]).env("TERM", "xterm");
    let mut child = command.stdin(Stdio::piped()).spawn().expect("script runs");
    // Its input must stay open: at its end, script types an end-of-file, which would be echoed.
    let stdin = child.stdin.take();
    let mut text = String::new();
    child.stdout.take().expect("stdout is piped").read_to_string(&mut text).expect("it writes");
    drop(stdin);
    child.wait().expect("it ends");
    text.replace('\r', "")
}

/// Watchers of Python (watchdog, watchfiles) ask for events of access, which they do not need and do not get.
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
    for_each_user("file_watchers", |who| {
        let outcome = run_as(who, &[], &["python3", "-c", program]);
        assert_eq!((outcome.code, outcome.text()), (0, "watched\n".into()), "{who:?}: {}", outcome.stderr);
    });
}

#[test]
fn programs_can_list_their_interfaces() {
    let program = r"
import socket
# more often than the limit of sockets that are open together
for _ in range(300):
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
print(socket.if_nameindex(), socket.getaddrinfo('localhost', 80, socket.AF_INET)[0][4])
";
    for_each_user("interfaces", |who| {
        let outcome = run_as(who, &["--memory", "128M", "--workspace", "16M"], &["python3", "-c", program]);
        let listed = "[(1, 'lo')] ('127.0.0.1', 80)\n";
        assert_eq!((outcome.code, outcome.text()), (0, listed.into()), "{who:?}: {}", outcome.stderr);
        let outcome = run_as(who, &["--template", "node"], &["node", "-p", "Object.keys(os.networkInterfaces())"]);
        assert_eq!((outcome.code, outcome.text()), (0, "[ 'lo' ]\n".into()), "{who:?}: {}", outcome.stderr);
    });
}
