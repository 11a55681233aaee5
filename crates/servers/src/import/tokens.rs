//! Tokens in the variables of imported servers, and the services that they are for.
//!
//! The table has only variables of well-known servers that send the token in header fields or in the query, which
//! ringfence can exchange for a placeholder, and those that need another solution.

use ringfence_egress::{Location, SecretValue};
use ringfence_entries::{ServerEntry, StdioSettings, Transport};

/// A service and the variables of its servers.
#[derive(Debug, PartialEq, Eq)]
pub struct Service {
    /// The name for the secret.
    pub name: &'static str,
    variables: &'static [&'static str],
    pub hosts: &'static [&'static str],
    usage: Usage,
    /// Variables that make the server use another host.
    host_variables: &'static [&'static str],
}

/// How a server uses its token.
#[derive(Debug, PartialEq, Eq)]
enum Usage {
    /// It sends the token in these parts of requests.
    Sent(&'static [Location]),
    /// It sends the token in the body of requests.
    Body,
    /// It computes signatures.
    Signature,
}

const HEADER: Usage = Usage::Sent(&[Location::Header]);

const fn service(
    name: &'static str,
    variables: &'static [&'static str],
    hosts: &'static [&'static str],
    usage: Usage,
    host_variables: &'static [&'static str],
) -> Service {
    Service { name, variables, hosts, usage, host_variables }
}

/// Sorted by name.
const SERVICES: [Service; 28] = [
    service("airtable", &["AIRTABLE_API_KEY"], &["api.airtable.com"], HEADER, &[]),
    service("anthropic", &["ANTHROPIC_API_KEY"], &["api.anthropic.com"], HEADER, &["ANTHROPIC_BASE_URL"]),
    service("apify", &["APIFY_TOKEN"], &["api.apify.com"], HEADER, &[]),
    service("aws", &["AWS_SECRET_ACCESS_KEY"], &[], Usage::Signature, &[]),
    service("brave", &["BRAVE_API_KEY"], &["api.search.brave.com"], HEADER, &[]),
    service("cloudflare", &["CLOUDFLARE_API_TOKEN"], &["api.cloudflare.com"], HEADER, &[]),
    service("context7", &["CONTEXT7_API_KEY"], &["context7.com"], HEADER, &["CONTEXT7_API_URL"]),
    service("elevenlabs", &["ELEVENLABS_API_KEY"], &["api.elevenlabs.io"], HEADER, &[]),
    service("exa", &["EXA_API_KEY"], &["api.exa.ai"], HEADER, &[]),
    service("figma", &["FIGMA_API_KEY", "FIGMA_ACCESS_TOKEN"], &["api.figma.com"], HEADER, &[]),
    service("firecrawl", &["FIRECRAWL_API_KEY"], &["api.firecrawl.dev"], HEADER, &["FIRECRAWL_API_URL"]),
    service(
        "github",
        &["GITHUB_PERSONAL_ACCESS_TOKEN", "GITHUB_TOKEN", "GH_TOKEN"],
        &["api.github.com"],
        HEADER,
        &["GITHUB_HOST", "GITHUB_API_URL"],
    ),
    service(
        "gitlab",
        &["GITLAB_PERSONAL_ACCESS_TOKEN", "GITLAB_TOKEN"],
        &["gitlab.com"],
        HEADER,
        &["GITLAB_API_URL", "GITLAB_HOST", "GITLAB_URL"],
    ),
    // Older interfaces take the key in the query.
    service(
        "google-maps",
        &["GOOGLE_MAPS_API_KEY"],
        &["maps.googleapis.com", "places.googleapis.com", "routes.googleapis.com"],
        Usage::Sent(&[Location::Header, Location::Query]),
        &[],
    ),
    service("huggingface", &["HF_TOKEN", "HUGGINGFACE_API_KEY"], &["huggingface.co"], HEADER, &["HF_ENDPOINT"]),
    service("linear", &["LINEAR_API_KEY", "LINEAR_API_TOKEN"], &["api.linear.app"], HEADER, &[]),
    service("notion", &["NOTION_TOKEN", "NOTION_API_KEY", "NOTION_API_TOKEN"], &["api.notion.com"], HEADER, &[]),
    service("openai", &["OPENAI_API_KEY"], &["api.openai.com"], HEADER, &["OPENAI_BASE_URL", "OPENAI_API_BASE"]),
    service("perplexity", &["PERPLEXITY_API_KEY"], &["api.perplexity.ai"], HEADER, &[]),
    service("replicate", &["REPLICATE_API_TOKEN"], &["api.replicate.com"], HEADER, &[]),
    service("resend", &["RESEND_API_KEY"], &["api.resend.com"], HEADER, &[]),
    service(
        "sentry",
        &["SENTRY_AUTH_TOKEN", "SENTRY_ACCESS_TOKEN"],
        &["sentry.io", "us.sentry.io", "de.sentry.io"],
        HEADER,
        &["SENTRY_HOST", "SENTRY_URL"],
    ),
    service("slack", &["SLACK_BOT_TOKEN"], &["slack.com"], HEADER, &[]),
    service("stripe", &["STRIPE_SECRET_KEY", "STRIPE_API_KEY"], &["api.stripe.com"], HEADER, &[]),
    service("supabase", &["SUPABASE_ACCESS_TOKEN"], &["api.supabase.com"], HEADER, &["SUPABASE_API_URL"]),
    // Sends the key in a field of the JSON body, also if it has a header field.
    service("tavily", &["TAVILY_API_KEY"], &["api.tavily.com"], Usage::Body, &[]),
    service("todoist", &["TODOIST_API_TOKEN", "TODOIST_API_KEY"], &["api.todoist.com"], HEADER, &[]),
    service("vercel", &["VERCEL_TOKEN", "VERCEL_API_KEY"], &["api.vercel.com"], HEADER, &[]),
];

/// A variable of an entry that contains a token.
#[derive(Debug, PartialEq, Eq)]
pub struct Token {
    pub variable: String,
    pub kind: TokenKind,
}

#[derive(Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// The token can be a secret for the hosts of this service.
    OfService { service: &'static Service, value: SecretValue },
    /// The token stays in the entry, for this reason. `is_movable` means that it can be a secret if the user names its
    /// hosts.
    Remains { reason: String, is_movable: bool },
}

impl Service {
    pub fn locations(&self) -> &'static [Location] {
        match self.usage {
            Usage::Sent(locations) => locations,
            Usage::Body | Usage::Signature => &[],
        }
    }
}

/// Returns the variables of an entry that contain a token. References and examples such as `<your token>` are left out.
pub fn find_tokens(entry: &ServerEntry) -> Vec<Token> {
    let Transport::Stdio(settings) = &entry.transport else { return Vec::new() };
    let tokens = settings.env.iter().filter(|(_, value)| is_literal(value)).filter_map(|(variable, value)| {
        let service = SERVICES.iter().find(|service| service.variables.contains(&variable.as_str()));
        let kind = match service {
            Some(service) => of_service(service, settings, value),
            None if looks_like_token(variable, value) => {
                TokenKind::Remains { reason: "its hosts are not known".into(), is_movable: true }
            }
            None => return None,
        };
        Some(Token { variable: variable.clone(), kind })
    });
    tokens.collect()
}

fn of_service(service: &'static Service, settings: &StdioSettings, value: &str) -> TokenKind {
    let remains = |reason: &str, is_movable| TokenKind::Remains { reason: reason.to_owned(), is_movable };
    match service.usage {
        Usage::Sent(_) => {}
        Usage::Body => {
            return remains("the server sends it in the body of requests, where no value is inserted", false);
        }
        Usage::Signature => {
            return remains("the server computes signatures with it, so it needs the value", false);
        }
    }
    if settings.sandbox_settings.shared {
        return remains("a server in a shared sandbox cannot have secrets", false);
    }
    if let Some(variable) = service.host_variables.iter().find(|variable| settings.env.contains_key(**variable)) {
        return remains(&format!("{variable} sets another host"), true);
    }
    match SecretValue::new(value) {
        Ok(value) => TokenKind::OfService { service, value },
        Err(error) => remains(&error.to_string(), false),
    }
}

/// Removes a token from an entry, which gets the secret instead and may reach its hosts.
pub fn replace_token(entry: &mut ServerEntry, variable: &str, secret: &str, hosts: &[&str]) {
    let Transport::Stdio(settings) = &mut entry.transport else { return };
    settings.env.remove(variable);
    let sandbox = &mut settings.sandbox_settings;
    if !sandbox.secrets.iter().any(|name| name == secret) {
        sandbox.secrets.push(secret.to_owned());
    }
    for host in hosts {
        // A rule of the entry for this host may be limited to some requests.
        let is_allowed = |rule: &String| rule.split([' ', ':', '+']).next() == Some(*host);
        if !sandbox.allow.iter().any(is_allowed) {
            sandbox.allow.push((*host).to_owned());
        }
    }
}

/// Whether a value is neither a reference to a variable nor an example that the user should replace.
fn is_literal(value: &str) -> bool {
    const EXAMPLES: [&str; 10] =
        ["your-", "your_", "your ", "yourtoken", "yourapikey", "xxxx", "****", "changeme", "replace", "insert"];
    let lower = value.trim().to_lowercase();
    let is_reference = lower.contains("${") || lower.starts_with('$') || lower.contains("{{");
    let is_example = lower.starts_with('<')
        || lower.starts_with('[')
        || lower.ends_with("...")
        || lower.ends_with("-here")
        || lower.ends_with("_here")
        || EXAMPLES.iter().any(|example| lower.starts_with(example))
        || ["-your-", "_your_", "xxxxxx"].iter().any(|part| lower.contains(part));
    !lower.is_empty() && !is_reference && !is_example
}

/// Whether a variable probably contains a token, by its name. Paths, numbers and URLs are none.
fn looks_like_token(variable: &str, value: &str) -> bool {
    const WORDS: [&str; 9] =
        ["TOKEN", "KEY", "APIKEY", "SECRET", "PASSWORD", "PASSWD", "PAT", "CREDENTIAL", "CREDENTIALS"];
    const OTHER_WORDS: [&str; 6] = ["FILE", "PATH", "DIR", "ID", "NAME", "PUBLIC"];
    let upper = variable.to_uppercase();
    let has_word = |words: &[&str]| upper.split(['_', '-']).any(|part| words.contains(&part));
    let is_other = value.starts_with(['/', '~', '.']) || value.contains("://") || value.parse::<f64>().is_ok();
    has_word(&WORDS) && !has_word(&OTHER_WORDS) && !is_other && SecretValue::new(value).is_ok()
}

#[cfg(test)]
mod tests {
    use ringfence_entries::entry_from_json;
    use serde_json::{Value, json};

    use super::*;

    fn entry(env: &Value, sandbox: &Value) -> ServerEntry {
        entry_from_json("x", &json!({"command": "x", "env": env, "box": sandbox})).unwrap().0
    }

    /// Returns what happens to the only token.
    fn outcome(env: &Value) -> String {
        let tokens = find_tokens(&entry(env, &json!({})));
        match tokens.as_slice() {
            [] => "no token".into(),
            [Token { kind: TokenKind::OfService { service, .. }, .. }] => service.name.into(),
            [Token { kind: TokenKind::Remains { reason, .. }, .. }] => reason.clone(),
            _ => panic!("{tokens:?}"),
        }
    }

    #[test]
    fn services_are_sorted_and_have_valid_hosts() {
        assert!(SERVICES.is_sorted_by_key(|service| service.name));
        for service in &SERVICES {
            let is_sent = matches!(service.usage, Usage::Sent(_));
            assert_eq!(is_sent, !service.locations().is_empty(), "{}", service.name);
            assert!(!is_sent || !service.hosts.is_empty(), "{}", service.name);
            for host in service.hosts {
                assert_eq!(host.parse::<ringfence_egress::Rule>().unwrap().to_string(), *host);
            }
        }
        let variables: Vec<&str> = SERVICES.iter().flat_map(|service| service.variables).copied().collect();
        assert_eq!(variables.iter().collect::<std::collections::BTreeSet<_>>().len(), variables.len());
    }

    #[test]
    fn only_literal_tokens_are_found() {
        let github = |value: &str| outcome(&json!({"GITHUB_TOKEN": value}));
        assert_eq!(github("ghp_0123456789abcdef"), "github");
        for reference in [
            "${GITHUB_TOKEN}",
            "$GITHUB_TOKEN",
            "${env:X:-ghp_0123456789}",
            "{{token}}",
            "<your token>",
            "",
            "ghp_xxxxxxxx",
        ] {
            assert_eq!(github(reference), "no token", "{reference}");
        }
        for example in ["YOUR_API_KEY_HERE", "your-token", "xxxx-xxxx", "ghp_your_token", "changeme-please", "sk-..."] {
            assert_eq!(github(example), "no token", "{example}");
        }
        assert!(github("short").contains("shorter than 8 bytes"));
    }

    #[test]
    fn tokens_that_cannot_be_exchanged_remain() {
        assert!(outcome(&json!({"TAVILY_API_KEY": "tvly-0123456789"})).contains("in the body"));
        assert!(outcome(&json!({"AWS_SECRET_ACCESS_KEY": "0123456789abcdef"})).contains("signatures"));
        let own_host = json!({"GITLAB_TOKEN": "glpat-0123456789", "GITLAB_API_URL": "https://git.example/api/v4"});
        assert_eq!(outcome(&own_host), "GITLAB_API_URL sets another host");
        assert_eq!(outcome(&json!({"ACME_API_KEY": "0123456789abcdef"})), "its hosts are not known");
        for other in ["ACME_KEY_FILE", "AWS_ACCESS_KEY_ID", "MONKEY", "PUBLIC_KEY"] {
            assert_eq!(outcome(&json!({other: "0123456789abcdef"})), "no token", "{other}");
        }
        for value in ["/etc/key", "~/key.pem", "https://token.example", "1234567890"] {
            assert_eq!(outcome(&json!({"ACME_TOKEN": value})), "no token", "{value}");
        }
        let shared = entry(&json!({"GITHUB_TOKEN": "ghp_0123456789"}), &json!({"shared": true}));
        assert!(matches!(&find_tokens(&shared)[0].kind, TokenKind::Remains { is_movable: false, .. }));
    }

    #[test]
    fn secret_replaces_the_token_and_limited_rules_stay() {
        let limited = json!({"allow": ["api.github.com method=GET"], "secrets": ["other"]});
        let mut changed = entry(&json!({"GITHUB_TOKEN": "ghp_0123456789", "A": "b"}), &limited);
        replace_token(&mut changed, "GITHUB_TOKEN", "github", &["api.github.com", "uploads.github.com"]);
        let expected = json!({
            "allow": ["api.github.com method=GET", "uploads.github.com"], "secrets": ["other", "github"],
        });
        assert_eq!(changed.transport, entry(&json!({"A": "b"}), &expected).transport);
    }
}
