//! Clients of all kinds use a token that they do not have: they send the placeholder, and the API receives the value.

use std::process::Command;

use ringfence_testkit::{User, skip};

use super::api::{Api, variable};
use crate::network::reach::{WITHOUT_PROXY, run};

struct Client {
    name: &'static str,
    is_installed: &'static str,
    /// A shell command that prints the body of `/user`.
    command: &'static str,
    /// The version of HTTP.
    version: &'static str,
}

const JAVA: &str = r#"mkdir -p /tmp/java && cat > /tmp/java/User.java <<'END'
class User {
    public static void main(String[] arguments) throws Exception {
        var uri = java.net.URI.create("https://api.github.com/user");
        var request = java.net.http.HttpRequest.newBuilder(uri);
        request.header("Authorization", "Bearer " + System.getenv("GITHUB_TOKEN"));
        var text = java.net.http.HttpResponse.BodyHandlers.ofString();
        System.out.println(java.net.http.HttpClient.newHttpClient().send(request.build(), text).body());
    }
}
END
javac -d /tmp/java /tmp/java/User.java"#;

/// Code like that of GitHub's clients for Node.
macro_rules! node {
    ($node:literal, fetch) => {
        concat!(
            $node,
            " -e 'fetch(\"https://api.github.com/user\", {headers: {authorization: `token ${process.env.GITHUB_TOKEN}`}})\
             .then(async r => console.log(await r.text()))'"
        )
    };
    ($node:literal, https) => {
        concat!(
            $node,
            " -e 'require(\"https\").get(\"https://api.github.com/user\", \
             {headers: {authorization: `token ${process.env.GITHUB_TOKEN}`}}, r => r.pipe(process.stdout))'"
        )
    };
    ($node:literal, http2) => {
        concat!(
            $node,
            " -e 'const client = require(\"http2\").connect(\"https://api.github.com\"); \
             const request = client.request({\":path\": \"/user\", authorization: `Bearer ${process.env.GITHUB_TOKEN}`}); \
             request.pipe(process.stdout); request.on(\"end\", () => client.close())'"
        )
    };
}

const CLIENTS: [Client; 15] = [
    Client {
        name: "curl, HTTP/1.1",
        is_installed: "command -v curl",
        command: r#"curl -sS --http1.1 -H "Authorization: Bearer $GITHUB_TOKEN" https://api.github.com/user"#,
        version: "1.1",
    },
    Client {
        name: "curl, HTTP/2",
        is_installed: "curl --version | grep HTTP2",
        command: r#"curl -sS --http2 -H "Authorization: Bearer $GITHUB_TOKEN" https://api.github.com/user"#,
        version: "2.0",
    },
    Client {
        name: "curl, Basic",
        is_installed: "command -v curl",
        command: r#"curl -sS --http1.1 -u "x-access-token:$GITHUB_TOKEN" https://api.github.com/user"#,
        version: "1.1",
    },
    Client {
        name: "curl, field",
        is_installed: "command -v curl",
        command: r#"curl -sS --http1.1 -H "X-Api-Key: $SERVICE_KEY" https://service.test/user"#,
        version: "1.1",
    },
    Client {
        name: "curl, query",
        is_installed: "command -v curl",
        command: r#"curl -sS --http1.1 -G --data-urlencode "key=$SERVICE_KEY" https://service.test/user"#,
        version: "1.1",
    },
    Client {
        name: "urllib",
        is_installed: "command -v python3",
        command: "python3 -c 'import os, urllib.request as u
request = u.Request(\"https://api.github.com/user\", headers={\"Authorization\": \"Bearer \" + os.environ[\"GITHUB_TOKEN\"]})
print(u.urlopen(request, timeout=20).read().decode())'",
        version: "1.1",
    },
    Client {
        name: "requests",
        is_installed: "python3 -c 'import requests'",
        command: "python3 -c 'import os, requests
headers = {\"Authorization\": \"Bearer \" + os.environ[\"GITHUB_TOKEN\"]}
print(requests.get(\"https://api.github.com/user\", headers=headers, timeout=20).text)'",
        version: "1.1",
    },
    Client {
        name: "httpx",
        is_installed: "python3 -c 'import httpx'",
        command: "python3 -c 'import os, httpx
headers = {\"Authorization\": \"Bearer \" + os.environ[\"GITHUB_TOKEN\"]}
print(httpx.get(\"https://api.github.com/user\", headers=headers, timeout=20).text)'",
        version: "1.1",
    },
    Client { name: "fetch of Node", is_installed: "command -v node", command: node!("node", fetch), version: "1.1" },
    Client { name: "https of Node", is_installed: "command -v node", command: node!("node", https), version: "1.1" },
    Client { name: "http2 of Node", is_installed: "command -v node", command: node!("node", http2), version: "2.0" },
    Client {
        name: "fetch of Node 22",
        is_installed: "test -x /node/node",
        command: node!("/node/node", fetch),
        version: "1.1",
    },
    Client {
        name: "https of Node 22",
        is_installed: "test -x /node/node",
        command: node!("/node/node", https),
        version: "1.1",
    },
    Client {
        name: "Go",
        is_installed: "test -x /trusted/go-fetch",
        command: "/trusted/go-fetch https://api.github.com/user",
        version: "2.0",
    },
    Client { name: "Java", is_installed: JAVA, command: "java -Xmx256m -cp /tmp/java User", version: "2.0" },
];

fn check_clients(test: &str, user: User) {
    let Some(api) = Api::enter(test) else { return };
    if user.skip_if_unavailable(test) {
        return;
    }
    let server = api.server(user);
    let session = server.create_session("probe", "1");
    for Client { name, is_installed, command, version } in &CLIENTS {
        if run(&server, &session, is_installed)["exit_code"] != 0 {
            skip(test, &format!("{name} is not installed"));
            continue;
        }
        for prefix in ["env", WITHOUT_PROXY] {
            let result = run(&server, &session, &format!("{prefix} {command}"));
            assert_eq!(result["stdout"].to_string().matches("octocat").count(), 1, "{name}, {prefix}: {result}");
            let requests = api.take_requests();
            let is_expected = requests.iter().all(|request| request["version"] == *version);
            assert!(requests.len() == 1 && is_expected, "{name}, {prefix}: {requests:?}");
        }
    }
}

#[test]
fn clients_of_root_use_the_value_without_having_it() {
    check_clients("secrets::clients::clients_of_root_use_the_value_without_having_it", User::Root);
}

#[test]
fn clients_of_an_ordinary_user_use_the_value_without_having_it() {
    check_clients("secrets::clients::clients_of_an_ordinary_user_use_the_value_without_having_it", User::Plain);
}

#[test]
fn git_clones_over_https_with_a_placeholder() {
    const TEST: &str = "secrets::clients::git_clones_over_https_with_a_placeholder";
    let Some(api) = Api::enter(TEST) else { return };
    let script = "git init -q source && git -C source -c user.name=a -c user.email=a@example.test commit -q --allow-empty \
                  -m First && git clone -q --bare source repository.git && git -C repository.git update-server-info";
    let output = Command::new("sh").args(["-c", script]).current_dir(api.network.path().join("pages")).output();
    assert!(output.as_ref().is_ok_and(|output| output.status.success()), "{output:?}");
    let server = api.server(User::Root);
    let session = server.create_session("probe", "1");
    let clone =
        r#"git clone -q "https://x-access-token:$GITHUB_TOKEN@api.github.com/repository.git" a && git -C a log"#;
    let result = run(&server, &session, clone);
    assert!(result["stdout"].to_string().contains("First"), "{result}");
    let stored = run(&server, &session, "cat a/.git/config");
    let placeholder = variable(&server, &session, "GITHUB_TOKEN");
    let text = stored["stdout"].to_string();
    assert!(text.contains(&placeholder) && !text.contains(&api.token), "{stored}");
}

#[test]
fn placeholder_without_the_proxy_is_not_a_valid_token() {
    const TEST: &str = "secrets::clients::placeholder_without_the_proxy_is_not_a_valid_token";
    let Some(api) = Api::enter(TEST) else { return };
    let server = api.server(User::Root);
    let [first, second] = [(); 2].map(|()| server.create_session("probe", "1"));
    let [first, second] = [&first, &second].map(|session| variable(&server, session, "GITHUB_TOKEN"));
    for placeholder in [&first, &second] {
        assert!(placeholder.starts_with("ghp_") && placeholder.len() == api.token.len(), "{placeholder}");
        let ca = api.network.path().join("trusted/ca.pem");
        let mut curl = Command::new("curl");
        let names = ["--connect-to", "api.github.com::10.20.30.1:", "https://api.github.com/user"];
        curl.args(["-sS", "--cacert"])
            .arg(&ca)
            .args(["-H", &format!("Authorization: Bearer {placeholder}")])
            .args(names);
        let output = curl.output().expect("run curl");
        assert!(String::from_utf8_lossy(&output.stdout).contains("Bad credentials"), "{output:?}");
    }
    assert_ne!(first, second, "each sandbox has its own");
}
