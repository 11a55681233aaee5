//! After calls that used it, the value of a secret is nowhere in the sandbox.

use ringfence_testkit::{User, wait_until};

use super::api::{Api, variable};
use super::search::search;

/// Requests by the interpreter of the session, whose results it still has.
const REQUESTS: &str = r#"
import os, subprocess, urllib.request
headers = {"Authorization": "Bearer " + os.environ["GITHUB_TOKEN"], "X-Api-Key": "none"}
results = []
for url, fields in [
    ("https://api.github.com/user", headers),
    ("https://api.github.com/echo", headers),
    ("https://service.test/echo", {"X-Api-Key": os.environ["SERVICE_KEY"]}),
]:
    results.append(urllib.request.urlopen(urllib.request.Request(url, headers=fields), timeout=20).read())
try:
    import requests
    results.append(requests.get("https://api.github.com/echo", headers=headers, timeout=20))
except ImportError:
    pass
open("result", "wb").write(results[1])
open("/dev/shm/result", "wb").write(results[2])
print(results[1].decode(), results[2].decode())
"#;

/// Clients that are in the middle of a response, each with its own memory.
const CLIENTS: &str = r#"
node = """fetch("https://api.github.com/hold", {headers: {authorization: `token ${process.env.GITHUB_TOKEN}`}})
    .then(async response => { for await (const part of response.body) console.log(part, response.headers) })"""
field = "Authorization: Bearer " + os.environ["GITHUB_TOKEN"]
commands = [
    ["curl", "-sSN", "--http1.1", "-H", field, "https://api.github.com/hold"],
    ["curl", "-sSN", "--http2", "-H", field, "https://api.github.com/hold"],
    ["node", "-e", node],
]
if os.path.exists("/node/node"):
    commands.append(["/node/node", "-e", node])
clients = [subprocess.Popen(command, stdout=open(f"/tmp/output{n}", "wb")) for n, command in enumerate(commands)]
print(len(clients))
"#;

fn check_sandbox(test: &str, user: User) {
    let Some(api) = Api::enter(test) else { return };
    if user.skip_if_unavailable(test) {
        return;
    }
    let server = api.server(user);
    let session = server.create_session("probe", "1");
    let placeholders = ["GITHUB_TOKEN", "SERVICE_KEY"].map(|name| variable(&server, &session, name));
    let echoed = server.execute(&session, REQUESTS);
    let stdout = echoed["stdout"].as_str().unwrap_or_else(|| panic!("{echoed}"));
    for (value, placeholder) in [&api.token, &api.key].into_iter().zip(&placeholders) {
        assert!(stdout.contains(placeholder.as_str()) && !stdout.contains(value.as_str()), "{echoed}");
    }
    let received = api.take_requests();
    for (name, value) in [("authorization", format!("Bearer {}", api.token)), ("x-api-key", api.key.clone())] {
        assert!(received.iter().any(|request| request["headers"][name] == value), "{name}: {received:?}");
    }

    let started = server.execute(&session, CLIENTS);
    let count = started["stdout"].as_str().and_then(|text| text.trim().parse::<u64>().ok());
    let count = count.unwrap_or_else(|| panic!("{started}"));
    wait_until("a client has not received the start of its response", || {
        let outputs = "print(sum(os.path.getsize(f'/tmp/output{n}') > 0 for n in range(len(clients))))";
        server.execute(&session, outputs)["stdout"] == format!("{count}\n")
    });
    let namespace = server.execute(&session, "print(os.readlink('/proc/self/ns/pid'))")["stdout"].clone();
    let namespace = namespace.as_str().expect("a text").trim();
    let [token_placeholder, key_placeholder] = &placeholders;
    let found = search(
        namespace,
        &[
            ("token", &api.token),
            ("key", &api.key),
            ("token-placeholder", token_placeholder),
            ("key-placeholder", key_placeholder),
        ],
    );
    // The init, the interpreter and the clients.
    assert!(found.processes >= 2 + count && found.bytes > 50 << 20, "{user:?}: {found:?}");
    // The search finds what is there.
    let expected = [
        ("token-placeholder", ["memory", "environ", "cmdline", "file"].as_slice()),
        ("key-placeholder", &["memory", "file"]),
    ];
    for (name, parts) in expected {
        let in_parts = found.parts(name);
        assert!(parts.iter().all(|part| in_parts.contains(part)), "{user:?}: {name} is in {in_parts:?}");
    }
    for name in ["token", "key"] {
        assert_eq!(found.parts(name), Vec::<&str>::new(), "{user:?}: the value of {name} is in the sandbox: {found:?}");
    }
}

#[test]
fn value_is_not_in_a_sandbox_of_root() {
    check_sandbox("secrets::memory::value_is_not_in_a_sandbox_of_root", User::Root);
}

#[test]
fn value_is_not_in_a_sandbox_of_an_ordinary_user() {
    check_sandbox("secrets::memory::value_is_not_in_a_sandbox_of_an_ordinary_user", User::Plain);
}
