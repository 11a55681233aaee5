//! `/v1/servers`: lists and changes the hosted servers.
//!
//! A principal sees the servers that it may use, and their state. Only the operator sees their stderr and changes entries,
//! because an entry decides which program starts on this machine.

use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use ringfence_core::{Failure, Kind, Principal};
use ringfence_entries::{EntryError, ServerEntry, Warning, apply_merge_patch, entry_from_json};
use ringfence_store::{OnConflict, PinKind, Store, StoreError};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{HandlerResult, Rest, RestError, body};
use crate::authorize::{Action, Object, Selection, Subject};
use crate::catalogue::name_of;
use crate::fleet::ServerInfo;
use crate::hosting::Hosting;

pub(super) async fn list(State(rest): State<Rest>, Extension(principal): Extension<Principal>) -> HandlerResult {
    let mut servers = rest.hosting()?.fleet().all();
    servers.retain(|info| is_visible(&rest, &principal, info));
    let may_manage = may_manage(&rest, &principal);
    for info in &mut servers {
        if !may_manage {
            info.blocked.clear();
        }
        hide_tools(&rest, &principal, info);
    }
    let servers: Vec<Value> =
        servers.iter().map(|info| describe_server(&rest, &principal, info)).collect::<Result<_, _>>()?;
    Ok(Json(json!({"servers": servers})).into_response())
}

pub(super) async fn show(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    Path(name): Path<String>,
) -> HandlerResult {
    let mut info = find_visible(&rest, &principal, &name)?;
    if !may_manage(&rest, &principal) {
        info.stderr = None;
        info.blocked.clear();
    }
    Ok(Json(describe_server(&rest, &principal, &info)?).into_response())
}

/// Describes a server. For principals that may manage servers, adds the withheld items of a pinned server.
fn describe_server(rest: &Rest, principal: &Principal, info: &ServerInfo) -> Result<Value, Failure> {
    let hosting = rest.hosting()?;
    let (pins, withheld) = (hosting.pins(), hosting.withheld(&info.name, &info.uuid).map(|withheld| json!(withheld)));
    let mut described = json!(info);
    if may_manage(rest, principal) && pins.is_pinned(&info.uuid) {
        described["pinned"] =
            if pins.covers_tools_only(&info.uuid) { "tools only; pin it again to cover all" } else { "yes" }.into();
        if let Some(withheld) = withheld.filter(|withheld| *withheld != json!({})) {
            described["held"] = withheld;
        }
    }
    Ok(described)
}

pub(super) async fn tools(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    Path(name): Path<String>,
) -> HandlerResult {
    let hosting = rest.hosting()?;
    let info = find_visible(&rest, &principal, &name)?;
    let link = hosting.fleet().link(&info.name).ok_or_else(|| not_connected(&info))?;
    let mut tools = link.catalogue().tools.clone();
    tools.retain(|tool| is_tool_visible(&rest, &principal, &info.name, name_of(tool)));
    let withheld = hosting.pins().withheld_tools(&info.uuid, &tools);
    let marked: Vec<Value> = tools
        .into_iter()
        .map(|mut tool| {
            let is_withheld = withheld.contains(name_of(&tool));
            tool["held"] = is_withheld.into();
            tool
        })
        .collect();
    Ok(Json(json!({"tools": marked, "pinned": hosting.pins().is_pinned(&info.uuid)})).into_response())
}

pub(super) async fn add(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> HandlerResult {
    let store = writable_store(&rest, &principal)?;
    let (parts, content) = request.into_parts();
    let mut entry: Value = body::read_json(&parts.headers, content, rest.max_body_bytes).await?;
    let name = entry.as_object_mut().and_then(|entry| entry.shift_remove("name"));
    let name = name.as_ref().and_then(Value::as_str).ok_or_else(|| {
        Failure::new(Kind::Validation, "the entry has no `name`").hint("send {\"name\": …, \"command\": …}")
    })?;
    let (entry, warnings) = parse_entry(name, &entry)?;
    let entry = store.add_server(entry, None, OnConflict::Refuse).await.map_err(store_failure)?;
    rest.hosting()?.reload().await;
    let location = format!("/v1/servers/{}", entry.name);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(describe_entry(&entry, &warnings))).into_response())
}

/// Changes some keys of an entry; `null` removes a key.
pub(super) async fn edit(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    let store = writable_store(&rest, &principal)?;
    let (parts, content) = request.into_parts();
    let changes: Value = body::read_json(&parts.headers, content, rest.max_body_bytes).await?;
    let stored = store.servers().await.map_err(store_failure)?.into_iter().find(|stored| stored.name == name);
    let stored = stored.ok_or_else(|| not_stored(&name))?;
    let entry = stored.entry.map_err(|error| Failure::new(Kind::Validation, error.to_string()))?;
    let (entry, warnings) = apply_merge_patch(&entry, &changes).map_err(invalid)?;
    let entry = store.add_server(entry, stored.origin, OnConflict::Replace).await.map_err(store_failure)?;
    rest.hosting()?.reload().await;
    Ok(Json(describe_entry(&entry, &warnings)).into_response())
}

pub(super) async fn remove(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    Path(name): Path<String>,
) -> HandlerResult {
    let store = writable_store(&rest, &principal)?;
    if !store.remove_server(&name).await.map_err(store_failure)? {
        return Err(not_stored(&name).into());
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
    /// Returns None if no field is given, which selects everything.
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

/// Pins the current items of a server: the selected ones, or all.
pub(super) async fn pin(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    Path(name): Path<String>,
    request: Request,
) -> HandlerResult {
    writable_store(&rest, &principal)?;
    let (parts, content) = request.into_parts();
    let params: PinParams = body::read_json(&parts.headers, content, rest.max_body_bytes).await?;
    let selection = params.into_selection();
    let hosting = rest.hosting()?;
    let info = find(hosting, &name)?;
    let link = hosting.fleet().link(&info.name).ok_or_else(|| not_connected(&info))?;
    let catalogue = link.catalogue();
    if let Some(missing) = selection.as_ref().and_then(|selection| selection.missing_in(&catalogue)) {
        let failure = Failure::new(Kind::Validation, format!("server {} has no {missing}", info.name));
        return Err(failure.hint("GET /v1/servers/{name}/tools lists its tools").into());
    }
    let accepted = hosting.pins().accept(&info.uuid, &catalogue, selection.as_ref()).await.map_err(store_failure)?;
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
) -> HandlerResult {
    writable_store(&rest, &principal)?;
    let hosting = rest.hosting()?;
    let info = find(hosting, &name)?;
    hosting.pins().forget(&info.uuid).await.map_err(store_failure)?;
    hosting.fleet().mark_changed();
    Ok(Json(json!({"name": info.name, "pinned": 0})).into_response())
}

pub(super) async fn restart(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    Path(name): Path<String>,
) -> HandlerResult {
    writable_store(&rest, &principal)?;
    let hosting = rest.hosting()?;
    let info = find(hosting, &name)?;
    let restarted = hosting.fleet().restart(&info.name).await;
    Ok(Json(json!({"name": info.name, "restarted": restarted})).into_response())
}

/// Returns the store if the principal may change servers: an entry decides what is started on this machine.
pub(super) fn writable_store<'a>(rest: &'a Rest, principal: &Principal) -> Result<&'a Store, RestError> {
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

/// Finds a server, whether the caller may see it or not.
pub(super) fn find(hosting: &Hosting, name: &str) -> Result<ServerInfo, Failure> {
    hosting.fleet().info(name).ok_or_else(unknown_server)
}

/// Finds a server that the caller may see, without the tools that it may not see.
fn find_visible(rest: &Rest, principal: &Principal, name: &str) -> Result<ServerInfo, Failure> {
    let mut info = find(rest.hosting()?, name)?;
    if !is_visible(rest, principal, &info) {
        return Err(unknown_server());
    }
    hide_tools(rest, principal, &mut info);
    Ok(info)
}

/// Removes tools that the caller may not see, also from their count.
fn hide_tools(rest: &Rest, principal: &Principal, info: &mut ServerInfo) {
    let before = info.tools.len();
    let name = info.name.clone();
    info.tools.retain(|tool| is_tool_visible(rest, principal, &name, &tool.name));
    info.tool_count -= before - info.tools.len();
}

fn unknown_server() -> Failure {
    Failure::new(Kind::NotFound, "unknown server").hint("GET /v1/servers lists the servers")
}

pub(super) fn not_connected(info: &ServerInfo) -> Failure {
    let reason = info.error.as_ref().map(|error| format!(": {}", error.message)).unwrap_or_default();
    Failure::new(Kind::Connection, format!("server {} is {}{reason}", info.name, info.status.name()))
        .hint("GET /v1/servers/{name} shows details")
}

pub(super) fn not_stored(name: &str) -> Failure {
    Failure::new(Kind::NotFound, format!("server {name} is not in the store"))
        .hint("change a server of a configuration file in that file")
}

fn parse_entry(name: &str, entry: &Value) -> Result<(ServerEntry, Vec<Warning>), Failure> {
    entry_from_json(name, entry).map_err(invalid)
}

#[allow(clippy::needless_pass_by_value, reason = "used with map_err")]
pub(super) fn invalid(error: EntryError) -> Failure {
    let failure = Failure::new(Kind::Validation, error.to_string());
    error.hints().into_iter().fold(failure, Failure::hint)
}

fn describe_entry(entry: &ServerEntry, warnings: &[Warning]) -> Value {
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    json!({"name": entry.name, "uuid": entry.uuid, "enable": entry.enable, "warnings": warnings})
}

#[allow(clippy::needless_pass_by_value, reason = "used with map_err")]
pub(super) fn store_failure(error: StoreError) -> Failure {
    let kind = match error {
        StoreError::NameTaken { .. } => Kind::Validation,
        _ => Kind::Internal,
    };
    let failure = Failure::new(kind, error.to_string());
    error.hints().into_iter().fold(failure, Failure::hint)
}
