//! Requests that a rule for one host does not allow. The services record what arrives, so
//! that a refusal is more than an error.

use ringfence_testkit::{Server, User};
use serde_json::Value;

use super::reach::run;
use super::sessions::{allow, network_lines};
use super::test_network::{HOSTS, TestNetwork};

const ALLOW: [&str; 3] = ["example.test+private", "example.test:7000+private", "public.test"];

/// Defines the attempts. Each prints what it received, or the error.
const ATTEMPTS: &str = r"
import os, socket, ssl
for name in list(os.environ):
    if name.lower().endswith('_proxy'):
        del os.environ[name]

def attempt(function):
    def attempted(*arguments, **options):
        try:
            print('received', function(*arguments, **options))
        except (OSError, EOFError) as error:
            print('failed', type(error).__name__)
    return attempted

def read(connection):
    received = b''
    while len(received) < 100_000 and (part := connection.recv(65536)):
        received += part
    return received

@attempt
def http(address, port, *hosts):
    with socket.create_connection((address, port), timeout=10) as connection:
        for host in hosts:
            end = 'close' if host == hosts[-1] else 'keep-alive'
            connection.sendall(f'GET / HTTP/1.1\r\nHost: {host}\r\nConnection: {end}\r\n\r\n'.encode())
            # Otherwise a refusal of the next request could come before this one has arrived.
            if end == 'keep-alive':
                first = b''
                while not first.endswith(b'allowed content\n') and (part := connection.recv(65536)):
                    first += part
        return read(connection)

@attempt
def https(address, port, server_name):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((address, port), timeout=10) as connection:
        with context.wrap_socket(connection, server_hostname=server_name) as tls:
            tls.sendall(b'GET / HTTP/1.1\r\nHost: example.test\r\nConnection: close\r\n\r\n')
            return read(tls)

@attempt
def raw(address, port, data):
    with socket.create_connection((address, port), timeout=10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return read(connection)

@attempt
def connect_by_proxy(target, data):
    with socket.create_connection(('127.0.0.1', 3128), timeout=10) as connection:
        connection.sendall(f'CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n'.encode())
        head = connection.recv(65536)
        if b' 200 ' not in head.split(b'\r\n')[0]:
            return head
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return read(connection)
";

fn probe(server: &Server) -> String {
    let session = server.create_session("probe-python", ATTEMPTS);
    let control = server.execute(&session, "http('example.test', 80, 'example.test')");
    assert!(control.to_string().contains("allowed content"), "the control fails: {control}");
    let control = server.execute(&session, "https('example.test', 443, 'example.test')");
    assert!(control.to_string().contains("allowed content"), "the control fails: {control}");
    session
}

fn assert_refused(network: &TestNetwork, user: User, code: &str, result: &Value, lines: usize) {
    let stdout = result["stdout"].as_str().unwrap_or_default();
    assert!(!stdout.contains("allowed content") && !stdout.is_empty(), "{user:?} {code}: {result}");
    assert_eq!(network_lines(result).len(), lines, "{user:?} {code}: {result}");
    assert_eq!(network.take_log(), Vec::<String>::new(), "{user:?} {code}: {result}");
}

#[test]
fn nothing_but_the_rule_is_reached() {
    const TEST: &str = "network::refusals::nothing_but_the_rule_is_reached";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    for user in User::ALL {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let server = network.server(user, &ALLOW);
        let session = probe(&server);
        network.take_log();
        // The code, and the number of lines in the response.
        let cases = [
            // Other names
            ("http('other.test', 80, 'other.test')", 1),
            ("https('sub.example.test', 443, 'sub.example.test')", 1),
            ("http('no-such-name.test', 80, 'no-such-name.test')", 1),
            ("http('other.test', 80, 'other.test'); https('other.test', 443, 'other.test')", 1),
            // Other ports: nothing listens there in the sandbox.
            ("http('example.test', 8080, 'example.test:8080')", 0),
            ("https('example.test', 8443, 'example.test')", 0),
            // IP literals and IPv6
            ("http('10.20.30.1', 80, 'example.test')", 0),
            ("https('10.20.30.1', 443, 'example.test')", 0),
            ("http('93.184.216.1', 80, 'public.test')", 0),
            ("http('::1', 80, 'example.test')", 0),
            ("http('::ffff:10.20.30.1', 80, 'example.test')", 0),
            ("http('2001:db8::1', 80, 'example.test')", 0),
            // TLS
            ("https('example.test', 443, None)", 1),
            ("https('example.test', 443, 'other.test')", 1),
            ("raw('example.test', 443, b'GET / HTTP/1.1\\r\\nHost: example.test\\r\\n\\r\\n')", 1),
            // HTTP
            ("http('example.test', 80, 'other.test')", 1),
            ("raw('example.test', 80, b'SSH-2.0-OpenSSH_9.2\\r\\n\\r\\n')", 1),
            // The proxy
            ("connect_by_proxy('other.test:443', b'')", 1),
            ("connect_by_proxy('example.test:8080', b'')", 1),
            ("connect_by_proxy('10.20.30.1:80', b'')", 1),
            ("connect_by_proxy('[::1]:80', b'')", 1),
            (
                "connect_by_proxy('example.test:80', b'GET / HTTP/1.1\\r\\nHost: other.test\\r\\nConnection: close\\r\\n\\r\\n')",
                1,
            ),
            ("connect_by_proxy('example.test:443', b'GET / HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n')", 1),
        ];
        let mut failures = Vec::new();
        for (code, lines) in cases {
            let result = server.execute(&session, code);
            let stdout = result["stdout"].as_str().unwrap_or_default();
            let (log, notices) = (network.take_log(), network_lines(&result));
            let requests: Vec<_> = log.iter().filter(|line| line.starts_with("request")).collect();
            if stdout.contains("allowed content") || stdout.is_empty() || !requests.is_empty() || notices.len() != lines
            {
                failures.push(format!("{code}: {log:?} {result}"));
            }
        }
        assert!(failures.is_empty(), "{user:?}: {failures:#?}");
    }
}

#[test]
fn second_request_of_a_connection_must_name_the_host_too() {
    const TEST: &str = "network::refusals::second_request_of_a_connection_must_name_the_host_too";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    let server = network.server(User::Root, &ALLOW);
    let session = probe(&server);
    network.take_log();
    let result = server.execute(&session, "http('example.test', 80, 'example.test', 'example.test', 'other.test')");
    assert_eq!(network_lines(&result).len(), 1, "{result}");
    let log = network.take_log();
    assert!(!log.is_empty() && log.iter().all(|line| !line.contains("other.test")), "{log:?}");
}

#[test]
fn name_with_a_private_address_needs_private() {
    const TEST: &str = "network::refusals::name_with_a_private_address_needs_private";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    for user in User::ALL {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        network.set_hosts(HOSTS);
        let server = network.server(user, &["public.test", "other.test", "example.test+private"]);
        let session = probe(&server);
        network.take_log();
        let code = "http('other.test', 80, 'other.test')";
        assert_refused(&network, user, code, &server.execute(&session, code), 1);
        // The name has a public address at first, and is then bound to a private one.
        let code = "http('public.test', 80, 'public.test')";
        let result = server.execute(&session, code);
        assert!(result.to_string().contains("allowed content"), "{user:?}: {result}");
        network.take_log();
        for address in ["10.20.30.1", "127.0.0.1", "169.254.169.254", "::1", "::ffff:10.20.30.1"] {
            network.set_hosts(&HOSTS.replace("93.184.216.1", address));
            assert_refused(&network, user, &format!("{address}: {code}"), &server.execute(&session, code), 1);
        }
    }
}

#[test]
fn command_of_the_refusal_makes_the_same_code_work() {
    const TEST: &str = "network::refusals::command_of_the_refusal_makes_the_same_code_work";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    for user in User::ALL {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let server = network.server(user, &[]);
        let session = server.create_session("probe-python", "1");
        let code = "import os, urllib.request
print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open('https://public.test/', timeout=20).read())";
        let refused = server.execute(&session, code);
        assert!(!refused["error"].is_null(), "{user:?}: {refused}");
        let lines = network_lines(&refused);
        let expected = format!(
            "network: blocked public.test, not on the allow list; to permit it: ringfence allow session {session} public.test"
        );
        assert_eq!(lines, [expected.as_str()], "{user:?}: {refused}");
        let (_, command) = lines[0].split_once("ringfence allow ").expect("a command");
        let allowed = allow(user, &server, &command.split(' ').collect::<Vec<_>>());
        assert!(allowed.status.success(), "{user:?}: {allowed:?}");
        let result = server.execute(&session, code);
        assert_eq!(result["stdout"], "b'allowed content\\n'\n", "{user:?}: {result}");
        assert_eq!(network_lines(&result), Vec::<String>::new(), "{user:?}: {result}");
        // A command in the same session, and a port besides the usual ones.
        let fetch = "curl -sS --noproxy '*' --max-time 20 http://public.test:8080/";
        assert_ne!(run(&server, &session, fetch)["exit_code"], 0, "{user:?}");
        assert!(allow(user, &server, &["session", &session, "public.test:8080"]).status.success(), "{user:?}");
        let result = run(&server, &session, fetch);
        assert_eq!(result["stdout"], "allowed content\n", "{user:?}: {result}");
    }
}
