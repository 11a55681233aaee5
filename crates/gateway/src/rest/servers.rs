//! `/v1/servers`: the hosted servers, for whoever runs ringfence.
//!
//! Anyone who may call may see which servers there are and how they fare. What they log, and every change, is for the
//! operator alone: an entry says what is started on this machine.

use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use ringfence_core::{Failure, Kind, Principal};
use ringfence_entries::{EntryError, ServerEntry, Warning, apply_merge_patch, entry_from_json};
use ringfence_store::{OnConflict, PinKind, Store, StoreError};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Answer, Refusal, Rest, body};
use crate::authorize::{Action, Object, Selection, Subject};
use crate::catalogue::name_of;
use crate::fleet::ServerInfo;
use crate::hosting::Hosting;

pub(super) async fn list(State(rest): State<Rest>, Extension(principal): Extension<Principal>) -> Answer {
    let mut servers = rest.hosting()?.fleet().all();
    servers.retain(|info| is_visible(&rest, &principal, info));
    for info in &mut servers {
        leave_out_hidden(&rest, &principal, info);
    }
    let servers: Vec<Value> =
        servers.iter().map(|info| with_pins(&rest, &principal, info)).collect::<Result<_, _>>()?;
    Ok(Json(json!({"servers": servers})).into_response())
}

pub(super) async fn show(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    Path(name): Path<String>,
) -> Answer {
    let mut info = find_shown(&rest, &principal, &name)?;
    if !may_manage(&rest, &principal) {
        info.stderr = None;
    }
    Ok(Json(with_pins(&rest, &principal, &info)?).into_response())
}

/// Adds, for the operator, what of a pinned server is held back.
fn with_pins(rest: &Rest, principal: &Principal, info: &ServerInfo) -> Result<Value, Failure> {
    let hosting = rest.hosting()?;
    let (pins, held) = (hosting.pins(), hosting.withheld(&info.name, &info.uuid).map(|withheld| json!(withheld)));
    let mut shown = json!(info);
    if may_manage(rest, principal) && pins.is_pinned(&info.uuid) {
        shown["pinned"] =
            if pins.covers_tools_only(&info.uuid) { "tools only; pin it again to cover all" } else { "yes" }.into();
        if let Some(held) = held.filter(|held| *held != json!({})) {
            shown["held"] = held;
        }
    }
    Ok(shown)
}

pub(super) async fn tools(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    Path(name): Path<String>,
) -> Answer {
    let hosting = rest.hosting()?;
    let info = find_shown(&rest, &principal, &name)?;
    let link = hosting.fleet().link(&info.name).ok_or_else(|| not_connected(&info))?;
    let mut tools = link.catalogue().tools.clone();
    tools.retain(|tool| is_tool_visible(&rest, &principal, &info.name, name_of(tool)));
    let held = hosting.pins().withheld_tools(&info.uuid, &tools);
    let marked: Vec<Value> = tools
        .into_iter()
        .map(|mut tool| {
            let is_held = held.contains(name_of(&tool));
            tool["held"] = is_held.into();
            tool
        })
        .collect();
    Ok(Json(json!({"tools": marked, "pinned": hosting.pins().is_pinned(&info.uuid)})).into_response())
}

pub(super) async fn add(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Answer {
    let store = writable_store(&rest, &principal)?;
    let (parts, content) = request.into_parts();
    let mut entry: Value = body::json(&parts.headers, content, rest.max_body_bytes).await?;
    let name = entry.as_object_mut().and_then(|entry| entry.shift_remove("name"));
    let name = name.as_ref().and_then(Value::as_str).ok_or_else(|| {
        Failure::new(Kind::Validation, "an entry needs a `name`").hint("send {\"name\": …, \"command\": …}")
    })?;
    let (entry, warnings) = read(name, &entry)?;
    let entry = store.add_server(entry, None, OnConflict::Refuse).await.map_err(not_stored)?;
    rest.hosting()?.reload().await;
    let location = format!("/v1/servers/{}", entry.name);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(shown(&entry, &warnings))).into_response())
}

/// Changes some keys of an entry; `null` takes one away.
pub(super) async fn edit(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    Path(name): Path<String>,
    request: Request,
) -> Answer {
    let store = writable_store(&rest, &principal)?;
    let (parts, content) = request.into_parts();
    let changes: Value = body::json(&parts.headers, content, rest.max_body_bytes).await?;
    let stored = store.servers().await.map_err(not_stored)?.into_iter().find(|stored| stored.name == name);
    let stored = stored.ok_or_else(|| not_ours(&name))?;
    let entry = stored.entry.map_err(|error| Failure::new(Kind::Validation, error.to_string()))?;
    let (entry, warnings) = apply_merge_patch(&entry, &changes).map_err(invalid)?;
    let entry = store.add_server(entry, stored.origin, OnConflict::Replace).await.map_err(not_stored)?;
    rest.hosting()?.reload().await;
    Ok(Json(shown(&entry, &warnings)).into_response())
}

pub(super) async fn remove(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    Path(name): Path<String>,
) -> Answer {
    let store = writable_store(&rest, &principal)?;
    if !store.remove_server(&name).await.map_err(not_stored)? {
        return Err(not_ours(&name).into());
    }
    rest.hosting()?.reload().await;
    Ok(Json(json!({"name": name, "removed": true})).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PinParams {
    tools: Option<Vec<String>>,
    prompts: Option<Vec<String>>,
    /// URIs of resources and of resource templates.
    resources: Option<Vec<String>>,
    instructions: Option<bool>,
}

impl PinParams {
    /// Nothing if nothing is named, which means everything.
    fn into_selection(self) -> Option<Selection> {
        let Self { tools, prompts, resources, instructions } = self;
        let is_given = tools.is_some() || prompts.is_some() || resources.is_some() || instructions.is_some();
        is_given.then(|| Selection {
            tools: tools.unwrap_or_default(),
            prompts: prompts.unwrap_or_default(),
            resources: resources.unwrap_or_default(),
            instructions: instructions.unwrap_or_default(),
        })
    }
}

/// Accepts what a server offers as it is now: what is named, or everything.
pub(super) async fn pin(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    Path(name): Path<String>,
    request: Request,
) -> Answer {
    writable_store(&rest, &principal)?;
    let (parts, content) = request.into_parts();
    let params: PinParams = body::json(&parts.headers, content, rest.max_body_bytes).await?;
    let selection = params.into_selection();
    let hosting = rest.hosting()?;
    let info = find(hosting, &name)?;
    let link = hosting.fleet().link(&info.name).ok_or_else(|| not_connected(&info))?;
    let catalogue = link.catalogue();
    if let Some(missing) = selection.as_ref().and_then(|selection| selection.missing_in(&catalogue)) {
        let refusal = Failure::new(Kind::Validation, format!("{} has no {missing}", info.name));
        return Err(refusal.hint("GET /v1/servers/{name}/tools lists its tools").into());
    }
    let accepted = hosting.pins().accept(&info.uuid, &catalogue, selection.as_ref()).await.map_err(not_stored)?;
    hosting.fleet().mark_changed();
    let count = |kinds: &[PinKind]| accepted.iter().filter(|kind| kinds.contains(kind)).count();
    Ok(Json(json!({
        "name": info.name,
        "pinned": count(&[PinKind::Tool]),
        "prompts": count(&[PinKind::Prompt]),
        "resources": count(&[PinKind::Resource, PinKind::ResourceTemplate]),
        "instructions": count(&[PinKind::Instructions]) > 0,
    }))
    .into_response())
}

pub(super) async fn unpin(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    Path(name): Path<String>,
) -> Answer {
    writable_store(&rest, &principal)?;
    let hosting = rest.hosting()?;
    let info = find(hosting, &name)?;
    hosting.pins().forget(&info.uuid).await.map_err(not_stored)?;
    hosting.fleet().mark_changed();
    Ok(Json(json!({"name": info.name, "pinned": 0})).into_response())
}

pub(super) async fn restart(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    Path(name): Path<String>,
) -> Answer {
    writable_store(&rest, &principal)?;
    let hosting = rest.hosting()?;
    let info = find(hosting, &name)?;
    let restarted = hosting.fleet().restart(&info.name).await;
    Ok(Json(json!({"name": info.name, "restarted": restarted})).into_response())
}

/// Returns the store if the principal may change servers: an entry decides what is started on this machine.
fn writable_store<'a>(rest: &'a Rest, principal: &Principal) -> Result<&'a Store, Refusal> {
    rest.authorize(principal, Action::ManageServers)?;
    Ok(rest.hosting()?.store())
}

/// Whether the principal may see what only the operator sees: logs and withheld items.
fn may_manage(rest: &Rest, principal: &Principal) -> bool {
    rest.gateway.authorizer().allows(Subject::principal(principal), Action::ManageServers, Object::Endpoint)
}

fn is_visible(rest: &Rest, principal: &Principal, info: &ServerInfo) -> bool {
    let object = Object::ListedServer { name: &info.name, uuid: &info.uuid };
    rest.gateway.authorizer().allows(Subject::principal(principal), Action::UseServers, object)
}

fn is_tool_visible(rest: &Rest, principal: &Principal, server: &str, tool: &str) -> bool {
    let object = Object::ListedTool { server, tool };
    rest.gateway.authorizer().allows(Subject::principal(principal), Action::UseServers, object)
}

fn find(hosting: &Hosting, name: &str) -> Result<ServerInfo, Failure> {
    hosting.fleet().info(name).ok_or_else(no_server)
}

/// The same of those that the caller may see.
fn find_shown(rest: &Rest, principal: &Principal, name: &str) -> Result<ServerInfo, Failure> {
    let mut info = find(rest.hosting()?, name)?;
    if !is_visible(rest, principal, &info) {
        return Err(no_server());
    }
    leave_out_hidden(rest, principal, &mut info);
    Ok(info)
}

/// Tools that the caller may not see are not counted either.
fn leave_out_hidden(rest: &Rest, principal: &Principal, info: &mut ServerInfo) {
    let before = info.tools.len();
    let name = info.name.clone();
    info.tools.retain(|tool| is_tool_visible(rest, principal, &name, &tool.name));
    info.tool_count -= before - info.tools.len();
}

fn no_server() -> Failure {
    Failure::new(Kind::NotFound, "there is no such server").hint("GET /v1/servers lists those there are")
}

fn not_connected(info: &ServerInfo) -> Failure {
    let why = info.error.as_ref().map(|error| format!(": {}", error.message)).unwrap_or_default();
    Failure::new(Kind::Connection, format!("{} is {}{why}", info.name, info.status.name()))
        .hint("GET /v1/servers/{name} says more")
}

fn not_ours(name: &str) -> Failure {
    Failure::new(Kind::NotFound, format!("no server {name} was added here"))
        .hint("one that a configuration file names is changed there")
}

fn read(name: &str, entry: &Value) -> Result<(ServerEntry, Vec<Warning>), Failure> {
    entry_from_json(name, entry).map_err(invalid)
}

#[allow(clippy::needless_pass_by_value, reason = "it maps errors")]
fn invalid(error: EntryError) -> Failure {
    let failure = Failure::new(Kind::Validation, error.to_string());
    error.hints().into_iter().fold(failure, Failure::hint)
}

fn shown(entry: &ServerEntry, warnings: &[Warning]) -> Value {
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    json!({"name": entry.name, "uuid": entry.uuid, "enable": entry.enable, "warnings": warnings})
}

#[allow(clippy::needless_pass_by_value, reason = "it maps errors")]
fn not_stored(error: StoreError) -> Failure {
    let kind = match error {
        StoreError::NameTaken { .. } => Kind::Validation,
        _ => Kind::Internal,
    };
    let failure = Failure::new(kind, error.to_string());
    error.hints().into_iter().fold(failure, Failure::hint)
}
