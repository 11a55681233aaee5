//! Sessions that survive the death of their server lose their placeholders: the hosts of the secrets are refused.

use std::sync::Arc;

use ringfence_testkit::User;
use serde_json::Value;

use super::api::{Api, variable};
use crate::network::sessions::network_lines;

const SEND: &str = r#"
import http.client, os, ssl, urllib.request
def send(url):
    fields = {"Authorization": "Bearer " + os.environ["GITHUB_TOKEN"]}
    for handler in (urllib.request.ProxyHandler(), urllib.request.ProxyHandler({})):
        try:
            request = urllib.request.Request(url, headers=fields)
            print(urllib.request.build_opener(handler).open(request, timeout=20).status)
        except (OSError, http.client.HTTPException) as error:
            print("failed")
"#;

#[test]
fn adopted_session_does_not_reach_the_hosts_of_its_secrets() {
    const TEST: &str = "secrets::adoption::adopted_session_does_not_reach_the_hosts_of_its_secrets";
    let Some(api) = Api::enter(TEST) else { return };
    for user in [User::Root, User::Plain] {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let server = api.server(user);
        let session = server.create_session("probe", SEND);
        let user_request = "send('https://api.github.com/user')";
        let control = server.execute(&session, user_request);
        assert_eq!(control["stdout"], "200\n200\n", "{user:?}: {control}");
        let placeholder = variable(&server, &session, "GITHUB_TOKEN");
        api.take_requests();

        let state = server.kill();
        let server = api.server_in(user, Arc::clone(&state), &api.configuration());
        assert_eq!(variable(&server, &session, "GITHUB_TOKEN"), placeholder, "{user:?}: the variable is unchanged");
        for host in ["api.github.com", "service.test", "checked.test"] {
            let refused = server.execute(&session, &format!("send('https://{host}/open')"));
            assert_eq!(refused["stdout"], "failed\nfailed\n", "{user:?}: {host}: {refused}");
            let lines = network_lines(&refused);
            let [line] = lines.as_slice() else { panic!("{user:?}: {host}: {refused}") };
            assert!(
                line.starts_with(&format!("network: blocked {host}:443, "))
                    && line.ends_with("start a new session or restart the server"),
                "{user:?}: {line}"
            );
        }
        assert_eq!(api.take_requests(), Vec::<Value>::new(), "{user:?}");
        // Hosts without a secret are not affected.
        let other = server.execute(&session, "send('http://other.test/open')");
        assert_eq!(other["stdout"], "200\n200\n", "{user:?}: {other}");
        let received = api.take_requests();
        let has_value = received.iter().any(|request| request.to_string().contains(&api.token));
        assert!(received.len() == 2 && !has_value, "{user:?}: {received:?}");

        let new = server.create_session("probe", SEND);
        assert_eq!(server.execute(&new, user_request)["stdout"], "200\n200\n", "{user:?}");
        assert_ne!(variable(&server, &new, "GITHUB_TOKEN"), placeholder, "{user:?}");
    }
}
