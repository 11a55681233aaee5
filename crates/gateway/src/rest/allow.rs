//! `/v1/sessions/{id}/allow` and `/v1/servers/{name}/allow`: shows and extends the allow list of a running sandbox.

use axum::extract::{Path, Request, State};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use ringfence_core::{AuditEvent, AuditKind, Failure, Kind, Principal};
use ringfence_egress::Rule;
use ringfence_entries::{SandboxSettings, Transport, apply_merge_patch};
use ringfence_store::OnConflict;
use serde::Deserialize;
use serde_json::json;

use super::path::SessionPath;
use super::servers::{find, invalid, not_connected, not_stored, store_failure, writable_store};
use super::{HandlerResult, Rest, body};
use crate::authorize::{Action, Object, Subject};

/// Maximum number of rules in one request.
const MAX_RULES: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowSessionParams {
    hosts: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowServerParams {
    hosts: Vec<String>,
    /// Whether the rules are stored in the entry of the server, which is then restarted. Otherwise they apply until the
    /// server restarts.
    #[serde(default)]
    always: bool,
}

pub(super) async fn session_rules(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    SessionPath(id): SessionPath,
) -> HandlerResult {
    let rules = rest.sessions()?.allowed(&principal, &id)?;
    Ok(Json(json!({"session_id": id, "hosts": shown(&rules)})).into_response())
}

pub(super) async fn allow_session(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    SessionPath(id): SessionPath,
    request: Request,
) -> HandlerResult {
    let (parts, content) = request.into_parts();
    let AllowSessionParams { hosts } = body::read_json(&parts.headers, content, rest.max_body_bytes).await?;
    let rules = parse(&hosts)?;
    let existing = rest.sessions()?.allowed(&principal, &id)?;
    let subject = Subject { session: Some(&id), ..Subject::principal(&principal) };
    let object = Object::Rules { new: &rules, existing: &existing };
    rest.gateway.authorizer().authorize(subject, Action::ExtendNetwork, object)?;
    let rules = rest.sessions()?.allow(&principal, &id, rules).await?;
    Ok(Json(json!({"session_id": id, "hosts": shown(&rules)})).into_response())
}

pub(super) async fn allow_server(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    let store = writable_store(&rest, &principal)?;
    let (parts, content) = request.into_parts();
    let AllowServerParams { hosts, always } = body::read_json(&parts.headers, content, rest.max_body_bytes).await?;
    let rules = parse(&hosts)?;
    let hosting = rest.hosting()?;
    let info = find(hosting, &name)?;
    let event = || {
        AuditEvent::new(AuditKind::NetworkAllowed, "ok")
            .by(&principal, None)
            .with("server", info.name.as_str())
            .with("uuid", info.uuid.as_str())
            .with("rules", shown(&rules))
            .with("always", always)
    };
    if always {
        let stored = store.servers().await.map_err(store_failure)?.into_iter().find(|stored| stored.name == name);
        let stored = stored.ok_or_else(|| not_stored(&name))?;
        let entry = stored.entry.map_err(|error| Failure::new(Kind::Validation, error.to_string()))?;
        let Transport::Stdio(settings) = &entry.transport else { return Err(no_sandbox(&name).into()) };
        let allow = merged(&settings.sandbox_settings, &rules);
        let (entry, _) = apply_merge_patch(&entry, &json!({"box": {"allow": allow}})).map_err(invalid)?;
        store.add_server(entry, stored.origin, OnConflict::Replace).await.map_err(store_failure)?;
        rest.gateway.audit().record(event());
        // Restarts the server, because its entry has changed.
        hosting.reload().await;
        return Ok(Json(json!({"name": name, "hosts": allow, "restarted": true})).into_response());
    }
    let link = hosting.fleet().link(&info.name).ok_or_else(|| not_connected(&info))?;
    let all = link.allow(rules.clone()).await.ok_or_else(|| no_sandbox(&name))?;
    rest.gateway.audit().record(event());
    Ok(Json(json!({"name": name, "hosts": shown(&all), "restarted": false})).into_response())
}

fn parse(hosts: &[String]) -> Result<Vec<Rule>, Failure> {
    let invalid = |message: String| Failure::new(Kind::Validation, message).with("field", "hosts");
    if hosts.is_empty() || hosts.len() > MAX_RULES {
        let failure = invalid(format!("`hosts` has {} entries; it needs 1 to {MAX_RULES}", hosts.len()));
        return Err(failure.hint("send {\"hosts\": [\"api.example.com\"]}"));
    }
    let parse = |text: &String| {
        text.parse::<Rule>().map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            invalid(format!("{error}{cause}")).hint(error.hint())
        })
    };
    hosts.iter().map(parse).collect()
}

fn shown(rules: &[Rule]) -> Vec<String> {
    rules.iter().map(ToString::to_string).collect()
}

/// Returns the rules of an entry, followed by those of `rules` that it lacks.
fn merged(settings: &SandboxSettings, rules: &[Rule]) -> Vec<String> {
    let mut all = settings.allow.clone();
    for rule in shown(rules) {
        if !all.contains(&rule) {
            all.push(rule);
        }
    }
    all
}

fn no_sandbox(name: &str) -> Failure {
    Failure::new(Kind::Validation, format!("server {name} does not run in a sandbox, so its network is not limited"))
        .hint("only servers with a command and without `sandbox = false` have an allow list")
}
