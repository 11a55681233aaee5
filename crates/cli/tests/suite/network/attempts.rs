//! Attempts to reach more than a rule for one host allows, as Python code for any kind of sandbox.

/// Defines the attempts. Each prints what it received, or the error.
pub(super) const ATTEMPTS: &str = r"
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

/// The code of an attempt, and the number of refusals that are reported: none if the kernel of the sandbox has refused it,
/// since nothing listens there.
pub(super) const CASES: [(&str, usize); 26] = [
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
    ("http('169.254.169.254', 80, 'example.test')", 0),
    // Addresses that have a listener in the sandbox, but no name
    ("http('198.19.255.254', 80, 'example.test')", 1),
    ("http('127.0.0.1', 80, 'example.test')", 1),
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
