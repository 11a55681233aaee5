//! The view of the host that the command has, and the system calls that it needs nevertheless.

use ringfence_testkit::{for_each_user, run_as, run_python_as};

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
