//! Packages from the registries of this host: installed by sessions, then without a network, and what a guest can do to
//! those of others.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use ringfence_testkit::{Server, User, skip};
use serde_json::Value;
use tempfile::TempDir;

use super::{assert_runs, run};
use crate::network::test_network::TestNetwork;

/// The registries from which `scripts/test` downloads, as variables of pip and npm.
fn registries(test: &str) -> Option<Vec<(String, String)>> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (python, npm) = (variable("RINGFENCE_TEST_PYTHON_INDEX"), variable("RINGFENCE_TEST_NPM_REGISTRY"));
    let Some(npm) = npm else {
        skip(test, "the registries are not known; ./scripts/test reads them");
        return None;
    };
    let mut variables = vec![("npm_config_registry".to_owned(), npm)];
    // Without a setting, the server determines the default of pip.
    variables.extend(python.map(|python| ("PIP_INDEX_URL".to_owned(), python)));
    let passed = ["SSL_CERT_FILE", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"];
    variables.extend(passed.iter().filter_map(|name| Some(((*name).to_owned(), variable(name)?))));
    Some(variables)
}

/// Starts a server whose packages are in this cache.
fn start(user: User, cache: &TempDir, registries: &[(String, String)]) -> Server {
    let cache = cache.path().display().to_string();
    let mut variables = vec![("RINGFENCE_CACHE_DIR", cache.as_str())];
    variables.extend(registries.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    Server::start_as(user, &[], &variables)
}

fn assert_installs(user: User, server: &Server) {
    let session = server.create_session("python", "pass");
    let version = run(server, &session, "pip --version");
    assert_eq!(version["exit_code"], 0, "{user:?}: {version}");
    assert_runs(server, &session, "pip install requests");
    let imported = server.execute(&session, "import requests; requests.__file__.startswith('/workspace/.venv/')");
    assert_eq!(imported["result"], "True", "{user:?}: {imported}");
    assert_runs(server, &session, "uv pip install idna && uv pip show idna && uvx --help");
    let session = server.create_session("node", "1");
    assert_runs(server, &session, "npm install left-pad");
    let imported = server.execute(&session, "(await import('left-pad')).default('1', 3, '0')");
    assert_eq!(imported["result"], "'001'", "{user:?}: {imported}");
}

#[test]
fn packages_are_installed_from_registries_and_later_without_a_network() {
    const TEST: &str = "packages::registries::packages_are_installed_from_registries_and_later_without_a_network";
    let Some(registries) = registries(TEST) else { return };
    let mut caches = Vec::new();
    for user in User::ALL {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let cache = user.directory();
        assert_installs(user, &start(user, &cache, &registries));
        caches.push((user, cache));
    }
    let Some(network) = TestNetwork::enter(TEST) else { return };
    for (user, cache) in &caches {
        let mut command = network.ringfence(*user);
        command.args(["serve", "--port", "0"]).envs(registries.iter().map(|(name, value)| (name, value)));
        command.env("RINGFENCE_CACHE_DIR", cache.path());
        let server = Server::start_command(command, Arc::new(user.directory()));
        assert_installs(*user, &server);
        let session = server.create_session("python", "pass");
        let missing = run(&server, &session, "pip install certifi==2020.12.5");
        assert_ne!(missing["exit_code"], 0, "{user:?}: the network is not reached: {missing}");
    }
}

/// Returns the files of the cache with their contents.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.display().to_string(), fs::read(&path).unwrap_or_default());
        }
    }
    found
}

/// Sends requests to the mirror as they are, and prints the status of each response, or nothing if there is none.
const ATTACK: &str = r"
import socket
def send(request, body=b''):
    with socket.create_connection(('127.0.0.1', 3129), timeout=30) as connection:
        head = f'{request} HTTP/1.1\r\nHost: 127.0.0.1:3129\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n'
        received = b''
        try:
            connection.sendall(head.encode() + body)
            while part := connection.recv(65536):
                received += part
        except OSError:
            pass
    print(request, int(received[9:12] or 0), b'root:' in received)
";

#[test]
fn guest_cannot_change_what_another_session_installs() {
    const TEST: &str = "packages::registries::guest_cannot_change_what_another_session_installs";
    let Some(registries) = registries(TEST) else { return };
    let user = User::Root;
    if user.skip_if_unavailable(TEST) {
        return;
    }
    let cache = user.directory();
    let server = start(user, &cache, &registries);
    let session = server.create_session("python", ATTACK);
    assert_runs(&server, &session, "pip install idna");
    // The uv of the mirror is one program for all sessions.
    let uv = "uv=$(readlink -f /run/ringfence/bin/uv) && test -x $uv && ! chmod 777 $uv && ! cp /bin/true $uv && \
              ! rm -f $uv && ! touch /run/ringfence/bin/pip && uv --version";
    assert_runs(&server, &session, uv);
    let control = server.execute(&session, "send('GET /pypi/simple/idna/')");
    assert_eq!(control["stdout"], "GET /pypi/simple/idna/ 200 False\n", "{control}");
    let packages = cache.path().join("mirror");
    let before = files(&packages);
    assert!(before.len() > 1, "the cache has files: {:?}", before.keys());
    let methods = ["PUT", "POST", "DELETE", "PATCH", "MOVE"];
    let targets = ["/pypi/simple/idna/", "/npm/left-pad", "/npm/-/user/org.couchdb.user:a", "/pypi/legacy/", "/"];
    let writes = methods.iter().flat_map(|method| targets.iter().map(move |target| format!("{method} {target}")));
    let tricks = [
        "GET /pypi/simple/../../../../../etc/passwd",
        "GET /pypi/simple/..%2f..%2f..%2fetc%2fpasswd/",
        "GET /pypi/simple/%2e%2e/%2e%2e/etc/passwd",
        "GET /npm/..%2f..%2f..%2fetc%2fpasswd",
        "GET /npm/@a%2f..%2f..%2fetc/passwd",
        "GET //etc/passwd",
        "GET file:///etc/passwd",
        "GET http://127.0.0.1:80/pypi/simple/idna/",
        "GET /pypi/simple/idna/?index=http://127.0.0.1/",
        "CONNECT 127.0.0.1:443",
    ];
    for request in writes.chain(tricks.map(str::to_owned)) {
        let result = server.execute(&session, &format!("send({request:?}, b'evil' * 100)"));
        let printed = result["stdout"].as_str().unwrap_or_default().trim().to_owned();
        let status: Option<u16> = printed.split(' ').rev().nth(1).and_then(|status| status.parse().ok());
        let is_refused = status.is_some_and(|status| status == 0 || (400..500).contains(&status));
        assert!(is_refused && printed.ends_with("False"), "{request}: {result}");
    }
    // The lock and the times of use may change, but no content.
    let after = files(&packages);
    let changed: Vec<_> = before.iter().filter(|(path, content)| after.get(*path) != Some(content)).collect();
    assert!(changed.is_empty(), "{:?}", changed.iter().map(|(path, _)| path).collect::<Vec<_>>());
    let other = server.create_session("python", "pass");
    assert_runs(&server, &other, "pip install idna && python -c 'import idna; idna.encode(\"a.test\")'");
}

/// A source distribution whose setup.py records what it could do.
const SETUP: &str = r"
import json, os, socket, subprocess
from setuptools import setup

def attempt(function, *arguments):
    try:
        return repr(function(*arguments))[:200]
    except BaseException as error:
        return f'failed: {type(error).__name__}'

def write(path):
    with open(path, 'w') as file:
        return file.write('evil')

def connect(address, port):
    with socket.create_connection((address, port), timeout=5):
        return 'connected'

report = {
    'workspace': attempt(write, '/workspace/evil'),
    'host file': attempt(write, HOST_FILE),
    'read host file': attempt(lambda: open(HOST_FILE).read()),
    'system': attempt(write, '/usr/lib/evil'),
    'interpreter': attempt(write, os.path.realpath('/usr/bin/python3')),
    'internet': attempt(connect, '203.0.113.1', 443),
    'server': attempt(connect, '127.0.0.1', SERVER_PORT),
    'environment': attempt(lambda: [name for name, value in os.environ.items() if 'a-secret-of-the-host' in value]),
    'processes': attempt(lambda: [pid for pid in os.listdir('/proc') if pid.isdigit() and
                                  b'serve' in open(f'/proc/{pid}/cmdline', 'rb').read()]),
}
with open('/workspace/report.json', 'w') as file:
    json.dump(report, file)
setup(name='hostile', version='1.0', py_modules=['hostile'])
";

#[test]
fn hostile_setup_py_stays_in_its_session() {
    const TEST: &str = "packages::registries::hostile_setup_py_stays_in_its_session";
    let Some(registries) = registries(TEST) else { return };
    for user in User::ALL {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let (cache, private) = (user.directory(), user.directory());
        let server = start(user, &cache, &registries);
        let host_file = private.path().join("secret");
        fs::write(&host_file, "a-secret-of-the-host").expect("write the file");
        let (_, port) = server.address.split_once(':').expect("a port");
        let variables = format!("HOST_FILE, SERVER_PORT = {:?}, {port}\n", host_file.display().to_string());
        let session = server.create_session("python", "import json, os; os.mkdir('hostile')");
        let setup = Value::from(format!("{variables}{SETUP}"));
        server.execute(&session, &format!("open('hostile/setup.py', 'w').write({setup})"));
        server.execute(&session, "open('hostile/hostile.py', 'w').write('answer = 42')");
        assert_runs(&server, &session, "pip install ./hostile");
        let result = server.execute(&session, "import hostile; print(open('report.json').read())");
        let printed = result["stdout"].as_str().unwrap_or_default();
        let report: BTreeMap<String, String> =
            serde_json::from_str(printed).unwrap_or_else(|error| panic!("{user:?}: {error}: {result}"));
        assert_eq!(report["workspace"], "4", "{user:?}: the control: {report:?}");
        for name in ["host file", "read host file", "system", "interpreter", "internet", "server"] {
            assert!(report[name].starts_with("failed: "), "{user:?}: {name}: {report:?}");
        }
        for name in ["environment", "processes"] {
            assert_eq!(report[name], "[]", "{user:?}: {name}: {report:?}");
        }
        assert_eq!(fs::read_to_string(&host_file).expect("read the file"), "a-secret-of-the-host");
        let other = server.create_session("python", "pass");
        assert_runs(&server, &other, "test ! -e evil && ! python -c 'import hostile' && pip install idna");
        assert!(!files(cache.path()).keys().any(|path| path.contains("hostile")), "{user:?}");
    }
}
