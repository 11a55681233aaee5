//! MCP over streamable HTTP at `/mcp` and `/mcp/{profile}`: both protocol eras, and bare requests by hand.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Bytes, HttpBody as _, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ringfence_core::Principal;
use serde_json::Value;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::clients::Clients;
use super::gate::AnswerTo;
use super::last_words::LastWords;
use super::patience::Manner;
use super::place::{Admitted, Place};
use super::{HttpOptions, headers, patience, refuse};
use crate::client::{Client, Context, Outlet};
use crate::era;
use crate::era::{CAPABILITIES_KEY, ENDLESS, Era, NEWER};
use crate::in_flight::{InFlight, Key, Ticket};
use crate::rpc;
use crate::rpc::{Id, Message, Outcome, RpcError, Sent};
use crate::share::Pool;
use crate::{Gateway, busy};

/// How long a client may take to send its request.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Of more than this not many are taken at a time.
pub(super) const LARGE_BODY: usize = 4 << 20;
const LARGE_BODIES: usize = 8;

const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");

pub(super) struct Mcp {
    gateway: Arc<Gateway>,
    in_flight: InFlight,
    clients: Clients,
    max_body_bytes: usize,
    large_bodies: Pool,
    shutdown: CancellationToken,
    /// Nobody is let in any more: what has no end of its own ends.
    closing: CancellationToken,
}

impl Mcp {
    pub(super) fn new(
        gateway: Gateway,
        options: &HttpOptions,
        shutdown: &CancellationToken,
        closing: &CancellationToken,
    ) -> Self {
        let clients = gateway.clients().clone();
        let (gateway, shutdown, closing) = (Arc::new(gateway), shutdown.clone(), closing.clone());
        let large_bodies = Pool::new(LARGE_BODIES, options.principals());
        let max_body_bytes = options.max_body_bytes;
        Self { gateway, in_flight: InFlight::default(), clients, max_body_bytes, large_bodies, shutdown, closing }
    }

    /// What is offered at the path of a request.
    fn offered(&self, profile: Option<&str>) -> Result<Arc<Gateway>, Box<Response>> {
        match profile {
            None => Ok(Arc::clone(&self.gateway)),
            Some(name) => self.gateway.with_profile(name).map(Arc::new).ok_or_else(|| {
                let hint = "profiles are named in the configuration: [profiles.NAME]";
                Box::new(refuse(StatusCode::NOT_FOUND, "there is no such profile", hint))
            }),
        }
    }

    fn has_ended(&self, principal: &Principal, headers: &HeaderMap) -> bool {
        session(headers).is_some_and(|id| self.clients.has_ended(principal, id))
    }

    /// Hears a message, at the path of a profile or of none.
    pub(super) async fn post(
        self: Arc<Self>,
        profile: Option<&str>,
        admitted: Option<Admitted>,
        request: Request,
    ) -> Response {
        let Some(Admitted { principal, place }) = admitted else {
            return refuse(StatusCode::UNAUTHORIZED, "it is not known who asks", "send a token");
        };
        let gateway = match self.offered(profile) {
            Ok(gateway) => gateway,
            Err(refusal) => return *refusal,
        };
        let (parts, body) = request.into_parts();
        if !names(&parts.headers, &header::CONTENT_TYPE, "application/json") {
            let hint = "send `Content-Type: application/json`";
            return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the request is not declared to be JSON", hint);
        }
        // Those in memory at a time are bounded: a large one waits for its turn.
        let is_large = body.size_hint().lower() > LARGE_BODY as u64;
        let turn = if is_large {
            timeout(BODY_TIMEOUT, self.large_bodies.acquire(&principal)).await.ok().flatten()
        } else {
            None
        };
        if is_large && turn.is_none() {
            let why = "too many large requests at a time";
            return busy::with_retry_after(refuse(StatusCode::SERVICE_UNAVAILABLE, why, "try again shortly"));
        }
        let most = if is_large { self.max_body_bytes } else { self.max_body_bytes.min(LARGE_BODY) };
        let body: Bytes = match timeout(BODY_TIMEOUT, to_bytes(body, most)).await {
            Ok(Ok(body)) => body,
            Ok(Err(_)) => {
                let (most, undeclared) = (self.max_body_bytes >> 20, LARGE_BODY >> 20);
                let hint = format!("send at most {most} MiB at a time, or {undeclared} MiB without a Content-Length");
                return refuse(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large", &hint);
            }
            Err(_) => return refuse(StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time", "try again"),
        };
        let sent = match rpc::parse_all(&body) {
            Ok(sent) => sent,
            Err(error) => return bad_request(None, error),
        };
        if self.has_ended(&principal, &parts.headers) {
            return ended();
        }
        let caller = Caller { mcp: self, gateway, principal, headers: parts.headers, place };
        let answer = match sent {
            Sent::One(Message::Answer { id, outcome }) => caller.answered(&id, outcome),
            Sent::One(Message::Notification { method, params }) => caller.notified(&method, &params),
            Sent::One(Message::Request { id, method, params }) => {
                if let Some(words) = parts.extensions.get::<LastWords>() {
                    words.asked(&id);
                }
                caller.asked(id, method, params).await
            }
            Sent::Together(batch) => Box::pin(caller.asked_together(batch)).await,
        };
        drop(turn);
        answer
    }
}

pub(super) async fn post(
    State(mcp): State<Arc<Mcp>>,
    Extension(principal): Extension<Principal>,
    profile: Option<Path<String>>,
    request: Request,
) -> Response {
    let place = request.extensions().get::<Place>().cloned();
    let profile = profile.as_ref().map(|Path(name)| name.as_str());
    mcp.post(profile, Some(Admitted { principal, place }), request).await
}

/// The stream on which a client hears what it has not asked for.
pub(super) async fn get(
    State(mcp): State<Arc<Mcp>>,
    Extension(principal): Extension<Principal>,
    profile: Option<Path<String>>,
    headers: HeaderMap,
) -> Response {
    if let Err(refusal) = mcp.offered(profile.as_ref().map(|Path(name)| name.as_str())) {
        return *refusal;
    }
    if mcp.has_ended(&principal, &headers) {
        return ended();
    }
    let is_newer = headers.get("mcp-protocol-version").is_some_and(|version| version.as_bytes() >= NEWER.as_bytes());
    let client = session(&headers).filter(|_| !is_newer).and_then(|id| mcp.clients.find(&principal, id));
    let (Some(client), true) = (client, names(&headers, &header::ACCEPT, "text/event-stream")) else {
        let hint = "POST requests here; GET is for the event stream of a client that has opened with `initialize`";
        let mut refusal = refuse(StatusCode::METHOD_NOT_ALLOWED, "there is no stream for this request", hint);
        refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return refusal;
    };
    let last_event = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    if let Some(rest) = last_event.and_then(|id| patience::resume(&client, id)) {
        return rest;
    }
    let (stream, messages) = Outlet::new();
    client.listen(stream);
    // Such a stream has no end of its own.
    let ticket = mcp.in_flight.enter_with(None, mcp.closing.child_token());
    patience::endless(messages, ticket)
}

pub(super) async fn delete(
    State(mcp): State<Arc<Mcp>>,
    Extension(principal): Extension<Principal>,
    headers: HeaderMap,
) -> Response {
    match session(&headers) {
        Some(id) if mcp.clients.remove(&principal, id) => StatusCode::NO_CONTENT.into_response(),
        Some(_) => refuse(StatusCode::NOT_FOUND, "there is no such conversation", "it may have ended already"),
        None => refuse(StatusCode::METHOD_NOT_ALLOWED, "nothing can be deleted here", "name an Mcp-Session-Id"),
    }
}

fn ended() -> Response {
    refuse(StatusCode::NOT_FOUND, "the conversation has ended", "open another with `initialize`")
}

/// Whoever sent a message, and where to.
pub(super) struct Caller {
    mcp: Arc<Mcp>,
    pub(super) gateway: Arc<Gateway>,
    principal: Principal,
    headers: HeaderMap,
    pub(super) place: Option<Place>,
}

impl Caller {
    pub(super) fn client(&self) -> Option<Arc<Client>> {
        self.mcp.clients.find(&self.principal, session(&self.headers)?)
    }

    /// Under which a request can be cancelled.
    fn key(&self, request: Id) -> Option<Key> {
        let client = session(&self.headers)?.to_owned();
        Some(Key { principal: self.principal.clone(), client, request })
    }

    /// Lists a request among those under way, by its id where it can be cancelled by that.
    pub(super) fn enter(&self, request: Option<&Id>) -> Ticket {
        self.mcp.in_flight.enter(request.and_then(|id| self.key(id.clone())))
    }

    /// The version that its headers name.
    pub(super) fn version(&self) -> Option<&str> {
        self.headers.get("mcp-protocol-version")?.to_str().ok()
    }

    /// Whether it takes nothing but JSON.
    pub(super) fn takes_only_json(&self) -> bool {
        !names(&self.headers, &header::ACCEPT, "text/event-stream")
    }

    /// Which era a request belongs to, if all is in order with it.
    pub(super) fn era_of(&self, method: &str, params: &Value) -> Result<Era, RpcError> {
        let schema = |name: &str| self.gateway.input_schema(name);
        headers::check(&self.headers, method, params, true, schema).and_then(|()| era::of_request(method, params))
    }

    /// What is known of a request that has an end of its own.
    pub(super) fn context(
        &self,
        request: Id,
        era: Era,
        params: &Value,
        outlet: Outlet,
        client: Option<Arc<Client>>,
    ) -> Context {
        let capabilities = match era {
            Era::Modern => Arc::new(params["_meta"][CAPABILITIES_KEY].clone()),
            Era::Legacy => client.as_ref().map(|client| client.capabilities()).unwrap_or_default(),
        };
        let (principal, cancel) = (self.principal.clone(), self.mcp.shutdown.child_token());
        Context { principal, era, capabilities, outlet, client, cancel, request }
    }

    pub(super) fn answered(&self, id: &Id, outcome: Outcome) -> Response {
        if let Some(client) = self.client() {
            client.hear(id, outcome);
        }
        StatusCode::ACCEPTED.into_response()
    }

    pub(super) fn notified(&self, method: &str, params: &Value) -> Response {
        if let Err(error) = headers::check(&self.headers, method, params, false, |_| None) {
            return bad_request(None, error);
        }
        if method == "notifications/cancelled" {
            let request = serde_json::from_value(params["requestId"].clone()).ok();
            if let Some(key) = request.and_then(|request| self.key(request)) {
                self.mcp.in_flight.cancel(&key);
            }
        } else {
            self.gateway.hear(method, params);
        }
        StatusCode::ACCEPTED.into_response()
    }

    async fn asked(self, id: Id, method: String, params: Value) -> Response {
        let era = match self.era_of(&method, &params) {
            Ok(era) => era,
            Err(error) => return bad_request(Some(&id), error),
        };
        let is_opening = method == "initialize" && era == Era::Legacy;
        // A conversation begins here, with an id that cannot be guessed.
        let opened = is_opening.then(|| uuid::Uuid::new_v4().to_string());
        let client = match (&opened, era) {
            (Some(id), _) => self.mcp.clients.find(&self.principal, id),
            (None, Era::Legacy) => self.client(),
            (None, Era::Modern) => None,
        };
        let only_json = self.takes_only_json();
        let (outlet, messages) = if only_json || !self.gateway.tells_before_answer(&method, &params) {
            (Outlet::closed(), None)
        } else {
            let (outlet, messages) = Outlet::new();
            (outlet, Some(messages))
        };
        let ticket = self.enter((era == Era::Legacy).then_some(&id));
        let manner = Manner {
            only_json,
            always_streams: self.gateway.is_sole() && !is_opening,
            client: client.clone().filter(|client| !is_opening && client.can_resume()),
        };
        let mut context = self.context(id.clone(), era, &params, outlet, client);
        let is_endless = method == ENDLESS;
        if is_endless {
            self.place.iter().for_each(Place::give_back);
            context.cancel = self.mcp.closing.child_token();
        }
        let (gateway, place) = (self.gateway, self.place);
        let answer_to = AnswerTo { id: id.clone(), only_reads: only_reads(&method) };
        let answer = async move {
            // A call that its client may take up again goes on without the connection, and keeps its place.
            let _place = place;
            // A response that is dropped, because its client went away, ends the call.
            let _gone = context.cancel.clone().drop_guard();
            let outcome = gateway.serve(&method, params, &context).await;
            let status = outcome.as_ref().err().map_or(StatusCode::OK, |error| status(error, era));
            (status, rpc::answer(Some(&id), outcome))
        };
        let mut response = patience::respond(Box::pin(answer), messages, ticket, manner).await;
        if response.status() == StatusCode::SERVICE_UNAVAILABLE {
            response = busy::with_retry_after(response);
        }
        if response.status() == StatusCode::OK
            && let Some(Ok(id)) = opened.as_deref().map(HeaderValue::from_str)
        {
            response.headers_mut().insert(SESSION_HEADER, id);
        }
        // A small one always has room.
        if response.body().size_hint().lower() >= 1 << 10 {
            response.extensions_mut().insert(answer_to);
        }
        response
    }
}

/// Whether a request, made twice, has no other effect than once.
fn only_reads(method: &str) -> bool {
    matches!(method, "initialize" | "server/discover" | "ping" | "resources/read") || method.ends_with("/list")
}

fn session(headers: &HeaderMap) -> Option<&str> {
    headers.get(&SESSION_HEADER)?.to_str().ok()
}

/// In the newer era some errors have a status of their own; in both, that there is no room here.
fn status(error: &RpcError, era: Era) -> StatusCode {
    match (era, error.code) {
        _ if error.is_busy => StatusCode::SERVICE_UNAVAILABLE,
        (
            Era::Modern,
            RpcError::UNSUPPORTED_PROTOCOL_VERSION | RpcError::MISSING_CLIENT_CAPABILITY | RpcError::HEADER_MISMATCH,
        ) => StatusCode::BAD_REQUEST,
        (Era::Modern, RpcError::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
        (Era::Legacy | Era::Modern, _) => StatusCode::OK,
    }
}

pub(super) fn bad_request(id: Option<&Id>, error: RpcError) -> Response {
    (StatusCode::BAD_REQUEST, axum::Json(rpc::answer(id, Err(error)))).into_response()
}

/// Whether a header lists a media type.
fn names(headers: &HeaderMap, header: &HeaderName, media_type: &str) -> bool {
    headers
        .get_all(header)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|item| item.split(';').next())
        .any(|item| item.trim().eq_ignore_ascii_case(media_type))
}
