//! Real clients reach an allowed host over HTTP and HTTPS, in sessions and with `ringfence run`, with and without the
//! variables of the proxy. No other host receives anything.

use std::process::Command;

use ringfence_testkit::{Server, User, process, skip};
use serde_json::{Value, json};

use super::sessions::network_lines;
use super::test_network::TestNetwork;

const ALLOW: [&str; 2] = ["example.test+private", "example.test:7000+private"];

pub(crate) const WITHOUT_PROXY: &str = "env -u HTTP_PROXY -u HTTPS_PROXY -u ALL_PROXY -u http_proxy -u https_proxy -u all_proxy \
                             -u NODE_USE_ENV_PROXY";

struct Client {
    name: &'static str,
    /// A shell command that succeeds if the client is installed in the sandbox.
    is_installed: &'static str,
    /// The program, which prints the body at the URL that is its last argument.
    program: &'static [&'static str],
}

const NODE_FETCH: &str = "fetch(process.argv[1]).then(async r => console.log(await r.text()))";
const NODE_HTTPS: &str =
    "const url = process.argv[1]; require(url.split(':')[0]).get(url, r => r.pipe(process.stdout))";
const JAVA: &str = r"mkdir -p /tmp/java && cat > /tmp/java/Fetch.java <<'END'
class Fetch {
    public static void main(String[] arguments) throws Exception {
        var request = java.net.http.HttpRequest.newBuilder(java.net.URI.create(arguments[0])).build();
        var text = java.net.http.HttpResponse.BodyHandlers.ofString();
        System.out.println(java.net.http.HttpClient.newHttpClient().send(request, text).body());
    }
}
END
javac -d /tmp/java /tmp/java/Fetch.java";

const CLIENTS: [Client; 11] = [
    Client { name: "curl", is_installed: "command -v curl", program: &["curl", "-sS"] },
    Client {
        name: "urllib",
        is_installed: "command -v python3",
        program: &[
            "python3",
            "-c",
            "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=20).read().decode())",
        ],
    },
    Client {
        name: "requests",
        is_installed: "python3 -c 'import requests'",
        program: &["python3", "-c", "import sys, requests; print(requests.get(sys.argv[1], timeout=20).text)"],
    },
    Client {
        name: "httpx",
        is_installed: "python3 -c 'import httpx'",
        program: &["python3", "-c", "import sys, httpx; print(httpx.get(sys.argv[1], timeout=20).text)"],
    },
    Client {
        name: "aiohttp",
        is_installed: "python3 -c 'import aiohttp'",
        program: &[
            "python3",
            "-c",
            "import asyncio, sys, aiohttp
async def main():
    async with aiohttp.ClientSession() as session, session.get(sys.argv[1]) as response:
        print(await response.text())
asyncio.run(main())",
        ],
    },
    Client { name: "fetch of Node", is_installed: "command -v node", program: &["node", "-e", NODE_FETCH] },
    Client { name: "https of Node", is_installed: "command -v node", program: &["node", "-e", NODE_HTTPS] },
    Client { name: "fetch of Node 22", is_installed: "test -x /node/node", program: &["/node/node", "-e", NODE_FETCH] },
    Client { name: "https of Node 22", is_installed: "test -x /node/node", program: &["/node/node", "-e", NODE_HTTPS] },
    Client { name: "Go", is_installed: "test -x /trusted/go-fetch", program: &["/trusted/go-fetch"] },
    Client {
        name: "Java",
        is_installed: JAVA,
        program: &[
            "java",
            "-Xmx256m",
            "-Djavax.net.ssl.trustStore=/trusted/java.p12",
            "-Djavax.net.ssl.trustStorePassword=changeit",
            "-cp",
            "/tmp/java",
            "Fetch",
        ],
    },
];

/// Returns a shell command that requests both URLs of each host.
fn requests(client: &Client, prefix: &str, hosts: &[&str]) -> String {
    let quote = |word: &&str| format!("'{}'", word.replace('\'', r"'\''"));
    let program = client.program.iter().map(quote).collect::<Vec<_>>().join(" ");
    let urls = hosts.iter().flat_map(|host| ["http", "https"].map(|scheme| format!("{scheme}://{host}/")));
    urls.map(|url| format!("{prefix} {program} {url};")).collect::<Vec<_>>().concat()
}

pub(crate) fn run(server: &Server, session: &str, command: &str) -> Value {
    let response = server.call("execute_command", &json!({"command": command, "session_id": session, "timeout": 120}));
    response["result"]["structuredContent"].clone()
}

/// Returns the log lines of requests of other hosts and of connections to other ports.
fn strays(log: &[String]) -> Vec<&String> {
    let is_expected = |line: &&String| {
        ["connection 80", "connection 443", "request 80 example.test /", "request 443 example.test /"]
            .contains(&line.as_str())
    };
    log.iter().filter(|line| !is_expected(line)).collect()
}

#[test]
fn clients_in_sessions_reach_the_allowed_host_and_no_other() {
    const TEST: &str = "network::reach::clients_in_sessions_reach_the_allowed_host_and_no_other";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    let server = network.server(User::Root, &ALLOW);
    let session = server.create_session("probe-bash", "true");
    for client in &CLIENTS {
        let name = client.name;
        if run(&server, &session, client.is_installed)["exit_code"] != 0 {
            skip(TEST, &format!("{name} is not installed"));
            continue;
        }
        for prefix in [WITHOUT_PROXY, "env"] {
            let result = run(&server, &session, &requests(client, prefix, &["example.test", "other.test"]));
            let stdout = result["stdout"].as_str().unwrap_or_default();
            assert_eq!(stdout.matches("allowed content").count(), 2, "{name}, {prefix}: {result}");
            let lines = network_lines(&result);
            let is_refusal = |line: &String| line.starts_with("network: blocked other.test");
            assert!(lines.len() == 1 && lines.iter().all(is_refusal), "{name}, {prefix}: {lines:?}");
            let log = network.take_log();
            assert_eq!(strays(&log), Vec::<&String>::new(), "{name}, {prefix}");
        }
    }
}

#[test]
fn clients_in_run_reach_the_allowed_host_and_no_other() {
    const TEST: &str = "network::reach::clients_in_run_reach_the_allowed_host_and_no_other";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    for user in User::ALL {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let run = |command: &str| process::run(network.run(user, &ALLOW).args(["--", "sh", "-c", command]));
        // What a client does depends on its user only in what it can read.
        let clients = if user == User::Root { &CLIENTS[..] } else { &CLIENTS[..3] };
        for client in clients {
            let name = client.name;
            let requests =
                [WITHOUT_PROXY, "env"].map(|prefix| requests(client, prefix, &["example.test", "other.test"])).concat();
            let outcome = run(&format!("{} >/dev/null 2>&1 || exit 77; {requests}", client.is_installed));
            if outcome.code == 77 {
                skip(TEST, &format!("{name} is not installed"));
                continue;
            }
            assert_eq!(outcome.text().matches("allowed content").count(), 4, "{user:?}, {name}: {outcome:?}");
            let refusals = outcome.stderr.lines().filter(|line| line.contains("network: blocked other.test"));
            assert_eq!(refusals.count(), 1, "{user:?}, {name}: {}", outcome.stderr);
            assert_eq!(strays(&network.take_log()), Vec::<&String>::new(), "{user:?}, {name}");
        }
    }
}

#[test]
fn raw_tcp_and_git_reach_the_allowed_host() {
    const TEST: &str = "network::reach::raw_tcp_and_git_reach_the_allowed_host";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    let git = |arguments: &[&str]| {
        let pages = network.path().join("pages");
        let identity = ["-c", "user.name=a", "-c", "user.email=a@example.test", "-c", "safe.directory=*"];
        let output = Command::new("git").args(identity).args(arguments).current_dir(pages).output();
        assert!(output.as_ref().is_ok_and(|output| output.status.success()), "{arguments:?}: {output:?}");
    };
    git(&["init", "-q", "source"]);
    git(&["-C", "source", "commit", "-q", "--allow-empty", "-m", "First"]);
    git(&["clone", "-q", "--bare", "source", "repository.git"]);
    git(&["--git-dir=repository.git", "update-server-info"]);
    for user in User::ALL {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let server = network.server(user, &ALLOW);
        let session = server.create_session("probe-python", "1");
        let lines = "import socket
with socket.create_connection(('example.test', 7000), timeout=20) as connection:
    for text in (b'one\\n', b'x' * 100_000 + b'\\n'):
        connection.sendall(text)
        stream = connection.makefile('rb')
        print(stream.readline() == text)
    connection.shutdown(socket.SHUT_WR)
    print(stream.read())";
        let result = server.execute(&session, lines);
        assert_eq!(result["stdout"], "True\nTrue\nb''\n", "{user:?}: {result}");
        for prefix in [WITHOUT_PROXY, "env"] {
            for scheme in ["http", "https"] {
                let clone = format!(
                    "{prefix} git clone -q {scheme}://example.test/repository.git a && git -C a log && rm -r a"
                );
                let result = run(&server, &session, &clone);
                let stdout = result["stdout"].as_str().unwrap_or_default();
                assert!(stdout.contains("First"), "{user:?}, {prefix}, {scheme}: {result}");
            }
            let refused = run(&server, &session, &format!("{prefix} git clone -q https://other.test/repository.git b"));
            assert_ne!(refused["exit_code"], 0, "{refused}");
            assert_eq!(network_lines(&refused).len(), 1, "{user:?}, {prefix}: {refused}");
        }
    }
}
