//! A network with an API that demands a token, and servers whose sandboxes have placeholders for it.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;

use ringfence_testkit::{Server, User};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::network::test_network::{Services, TestNetwork};

/// `public.test` has a public address.
const HOSTS: &str = "127.0.0.1 localhost
10.20.30.1 api.github.com service.test checked.test other.test
93.184.216.1 public.test
";

const API: Services = Services { hosts: HOSTS, program: ("api.mjs", include_str!("api.mjs")), interpreter: &["node"] };

/// `checked.test` has no secret, but its requests are read. TLS to `other.test` is end to end.
pub(super) const ALLOW: &str = r#"[
    "api.github.com+private", "service.test+private", "other.test+private", "public.test",
    { host = "checked.test+private", paths = ["/*"] },
]"#;

pub(super) struct Api {
    pub(super) network: TestNetwork,
    /// The value of the secret `github`.
    pub(super) token: String,
    /// The value of the secret `service`. Its percent-encoding differs.
    pub(super) key: String,
}

impl Api {
    /// Creates the network and enters it. Records a skip if that is not possible.
    pub(super) fn enter(test: &str) -> Option<Self> {
        let (token, key) = (format!("ghp_{}", random_text(18)), format!("k/{}+{}==", random_text(8), random_text(8)));
        let values = json!({"token": token, "key": key}).to_string();
        let network = TestNetwork::enter_with(test, &API, &[("values", &values), ("key", &key)])?;
        Some(Self { network, token, key })
    }

    pub(super) fn configuration(&self) -> String {
        format!(
            r#"
[sessions]
ask = false
allow = {ALLOW}
secrets = ["github", "service"]

[templates.probe]
language = "python"
env = {{ PYTHONPATH = "/python-clients" }}

[secrets.github]
env = "GITHUB_TOKEN"
hosts = ["api.github.com+private", "public.test"]
in = ["header", "basic"]

[secrets.service]
file = "{}/key"
variable = "SERVICE_KEY"
hosts = ["service.test+private"]
in = ["header", "query"]
"#,
            self.network.path().display()
        )
    }

    /// The variables of a server: the value, and the authority that it trusts.
    pub(super) fn variables(&self) -> [(&str, String); 2] {
        let authority = self.network.path().join("trusted/ca.pem").display().to_string();
        [("GITHUB_TOKEN", self.token.clone()), ("SSL_CERT_FILE", authority)]
    }

    pub(super) fn server(&self, user: User) -> Server {
        self.server_in(user, Arc::new(user.directory()), &self.configuration())
    }

    pub(super) fn server_in(&self, user: User, state: Arc<TempDir>, configuration: &str) -> Server {
        let variables = self.variables();
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
        self.network.server_in(user, state, configuration, &variables)
    }

    /// Returns the complete requests that have arrived since the last call.
    pub(super) fn take_requests(&self) -> Vec<Value> {
        self.network.take_log().iter().map(|line| serde_json::from_str(line).expect("valid JSON")).collect()
    }
}

/// Returns random letters and digits, two for each byte.
fn random_text(bytes: usize) -> String {
    let mut random = vec![0; bytes];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random)).expect("read random bytes");
    random.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the value of a variable in a session.
pub(super) fn variable(server: &Server, session: &str, name: &str) -> String {
    let result = server.execute(session, &format!("import os; print(os.environ['{name}'])"));
    result["stdout"].as_str().unwrap_or_else(|| panic!("{result}")).trim().to_owned()
}
