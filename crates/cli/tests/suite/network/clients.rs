//! Clients of all kinds reach an allowed name, and no other: those that use the proxy variables, and those that do not.

use std::process::Command;

use ringfence_testkit::{Server, ringfence_path, skip};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::serve;

/// A server whose host resolves `example.test` and `other.test` to loopback, in a mount namespace of its own.
struct NamedHosts {
    server: Server,
    _files: TempDir,
}

impl NamedHosts {
    fn start(test: &str, allow: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip(test, "mounting needs root");
            return None;
        }
        let files = tempfile::tempdir().expect("create a directory");
        let hosts = files.path().join("hosts");
        let names = "127.0.0.1 localhost\n127.0.0.1 example.test sub.example.test other.test\n";
        std::fs::write(&hosts, names).expect("write the file");
        let mut command = Command::new("unshare");
        let script = r#"mount --bind "$1" /etc/hosts && shift && exec "$@""#;
        command
            .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
            .arg(&hosts)
            .arg(ringfence_path());
        command.env("RINGFENCE_SESSIONS_ALLOW", allow).env("RINGFENCE_SESSIONS_ASK", "false");
        Some(Self { server: Server::start_by(command), _files: files })
    }
}

struct Client {
    name: &'static str,
    /// A shell command that succeeds if the client is installed in the sandbox.
    is_installed: &'static str,
    /// A shell command that prints the body at `$URL`; `$HOST` and `$PORT` are its parts.
    fetch: &'static str,
}

const CLIENTS: [Client; 8] = [
    Client { name: "curl", is_installed: "command -v curl", fetch: "curl -sS --fail $URL" },
    Client {
        name: "urllib",
        is_installed: "python3 -c 'import urllib'",
        fetch: r"python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())' $URL",
    },
    Client {
        name: "requests",
        is_installed: "python3 -c 'import requests'",
        fetch: r"python3 -c 'import sys, requests; r = requests.get(sys.argv[1], timeout=10); r.raise_for_status(); print(r.text)' $URL",
    },
    Client {
        name: "httpx",
        is_installed: "python3 -c 'import httpx'",
        fetch: r"python3 -c 'import sys, httpx; print(httpx.get(sys.argv[1], timeout=10).raise_for_status().text)' $URL",
    },
    Client {
        name: "aiohttp",
        is_installed: "python3 -c 'import aiohttp'",
        fetch: r"python3 -c '
import asyncio, sys, aiohttp
async def main():
    async with aiohttp.ClientSession() as session, session.get(sys.argv[1]) as response:
        response.raise_for_status()
        print(await response.text())
asyncio.run(main())' $URL",
    },
    Client {
        name: "node fetch",
        is_installed: "command -v node",
        fetch: "node -e 'fetch(process.argv[1]).then(async r => { if (!r.ok) process.exit(1); console.log(await r.text()) })' $URL",
    },
    Client {
        name: "node http",
        is_installed: "command -v node",
        fetch: "node -e 'require(\"http\").get(process.argv[1], r => r.statusCode == 200 ? r.pipe(process.stdout) : process.exit(1))' $URL",
    },
    Client {
        name: "raw TCP",
        is_installed: "command -v bash",
        fetch: r#"bash -c 'exec 3<>/dev/tcp/$HOST/$PORT; printf "GET / HTTP/1.1\r\nHost: $HOST:$PORT\r\nConnection: close\r\n\r\n" >&3; cat <&3'"#,
    },
];

fn run(server: &Server, session: &str, command: &str) -> Value {
    let response = server.call("execute_command", &json!({"command": command, "session_id": session, "timeout": 60}));
    response["result"]["structuredContent"].clone()
}

#[test]
fn every_client_reaches_only_allowed_names() {
    const TEST: &str = "network::clients::every_client_reaches_only_allowed_names";
    let port = serve("allowed content");
    let Some(NamedHosts { server, _files }) = NamedHosts::start(TEST, &format!("example.test:{port}+private")) else {
        return;
    };
    let session = server.create_session("bash", "true");
    let without_proxy = "env -u HTTP_PROXY -u HTTPS_PROXY -u ALL_PROXY -u http_proxy -u https_proxy -u all_proxy \
                         -u NODE_USE_ENV_PROXY";
    for Client { name, is_installed, fetch } in CLIENTS {
        if run(&server, &session, is_installed)["exit_code"] != 0 {
            skip(TEST, &format!("{name} is not installed"));
            continue;
        }
        let fetch = |host: &str, prefix: &str| {
            let variables = format!("HOST={host} PORT={port} URL=http://{host}:{port}/");
            let script = fetch.replace('\'', r"'\''");
            run(&server, &session, &format!("{prefix} {variables} sh -c '{script}'"))
        };
        for prefix in ["env", without_proxy] {
            let allowed = fetch("example.test", prefix);
            let stdout = allowed["stdout"].as_str().unwrap_or_default();
            assert!(stdout.contains("allowed content"), "{name}, {prefix}: {allowed}");
            for other in ["other.test", "sub.example.test"] {
                let refused = fetch(other, prefix);
                assert!(!refused["stdout"].to_string().contains("allowed content"), "{name}, {prefix}: {refused}");
                let lines = super::sessions::network_lines(&refused);
                assert_eq!(lines.len(), 1, "{name}, {prefix}: one line for the host: {refused}");
                assert!(lines[0].starts_with(&format!("network: blocked {other}")), "{name}, {prefix}: {lines:?}");
            }
        }
    }
}

#[test]
fn address_of_a_refused_host_is_not_reached() {
    const TEST: &str = "network::clients::address_of_a_refused_host_is_not_reached";
    let port = serve("must not be seen");
    let Some(NamedHosts { server, _files }) = NamedHosts::start(TEST, "example.test") else { return };
    let session = server.create_session("bash", "true");
    for address in ["127.0.0.1", "198.18.0.1", "198.19.255.254", "10.0.0.1", "169.254.169.254", "[::1]"] {
        let result = run(&server, &session, &format!("curl -sS --max-time 5 --noproxy '*' http://{address}:{port}/"));
        assert!(result["exit_code"] != 0 && result["stdout"] == "", "{address}: {result}");
    }
}

#[test]
fn git_clones_from_an_allowed_name() {
    const TEST: &str = "network::clients::git_clones_from_an_allowed_name";
    let directory = tempfile::tempdir().expect("create a directory");
    let git = |arguments: &[&str]| {
        let status = Command::new("git").args(arguments).current_dir(directory.path()).status();
        assert!(status.expect("run git").success(), "{arguments:?}");
    };
    git(&["init", "-q", "--bare", "repository.git"]);
    git(&["--git-dir=repository.git", "update-server-info"]);
    let port = serve_directory(directory.path().to_owned());
    let Some(NamedHosts { server, _files }) = NamedHosts::start(TEST, &format!("example.test:{port}+private")) else {
        return;
    };
    let session = server.create_session("bash", "true");
    for proxy in ["", "env -u http_proxy -u HTTP_PROXY -u all_proxy -u ALL_PROXY "] {
        let clone =
            format!("{proxy}git clone -q http://example.test:{port}/repository.git a && rm -rf a && echo cloned");
        let result = run(&server, &session, &clone);
        assert_eq!(result["stdout"], "cloned\n", "{proxy}: {result}");
    }
}

/// Serves the files of a directory over HTTP; returns the port.
fn serve_directory(directory: std::path::PathBuf) -> u16 {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("bind a port");
    let port = listener.local_addr().expect("the bound address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("accept a connection");
            let mut request = [0; 4096];
            let length = stream.read(&mut request).unwrap_or(0);
            let head = String::from_utf8_lossy(&request[..length]).into_owned();
            let path = head.split([' ', '?']).nth(1).unwrap_or("/").trim_start_matches('/').to_owned();
            let (status, body) = match std::fs::read(directory.join(path)) {
                Ok(body) => ("200 OK", body),
                Err(_) => ("404 Not Found", Vec::new()),
            };
            let length = body.len();
            let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
            let _ = stream.write_all(&body);
        }
    });
    port
}
