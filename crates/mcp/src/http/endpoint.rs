//! The MCP endpoint at `/mcp` and `/mcp/{profile}`: both protocol eras, and plain requests without a handshake.

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

use super::crash_reply::CrashReply;
use super::gate::ResponseTo;
use super::request_slot::{Admitted, RequestSlot};
use super::response_stream::Form;
use super::{HttpOptions, headers, refuse, response_stream};
use crate::client::{Client, Context, MessageSink};
use crate::clients::Clients;
use crate::connection::{Connection, ConnectionName};
use crate::era::{CAPABILITIES_KEY, Era, MODERN_VERSION, SUBSCRIBE_METHOD};
use crate::fair_pool::{Permit, Pool};
use crate::in_flight::{InFlight, Key, Ticket};
use crate::rpc::{Id, Message, Outcome, Payload, RpcError};
use crate::service::Service;
use crate::{era, failure, rpc};

/// Maximum time for a client to send its request.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Bodies above this size are limited in number, and need a Content-Length.
pub const LARGE_BODY_BYTES: usize = 4 << 20;
const MAX_LARGE_BODIES: usize = 8;

/// Responses below this size are sent even if the memory for responses is used up.
const SMALL_RESPONSE_BYTES: u64 = 1 << 10;

const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");

pub(super) struct Endpoint<S> {
    service: Arc<S>,
    in_flight: InFlight,
    clients: Clients,
    max_body_bytes: usize,
    large_bodies: Pool,
    shutdown: CancellationToken,
    /// Cancelled when no further requests are accepted: streams without an end are closed.
    closing: CancellationToken,
}

impl<S: Service> Endpoint<S> {
    pub(super) fn new(
        service: S,
        options: &HttpOptions,
        shutdown: &CancellationToken,
        closing: &CancellationToken,
    ) -> Self {
        Self {
            clients: service.clients().clone(),
            service: Arc::new(service),
            in_flight: InFlight::default(),
            max_body_bytes: options.max_body_bytes,
            large_bodies: Pool::new(MAX_LARGE_BODIES, options.principals),
            shutdown: shutdown.clone(),
            closing: closing.clone(),
        }
    }

    /// Returns the service at the path of a request.
    fn service(&self, profile: Option<&str>) -> Result<Arc<S>, Box<Response>> {
        match profile {
            None => Ok(Arc::clone(&self.service)),
            Some(name) => self.service.with_profile(name).map(Arc::new).ok_or_else(|| {
                let hint = "define the profile in the configuration: [profiles.NAME]";
                Box::new(refuse(StatusCode::NOT_FOUND, "unknown profile", hint))
            }),
        }
    }

    fn has_ended(&self, principal: &Principal, headers: &HeaderMap) -> bool {
        session_header(headers).is_some_and(|id| self.clients.has_ended(principal, id))
    }

    /// Handles a POST request: one message, or a batch of the older era.
    pub(super) async fn post(
        self: Arc<Self>,
        profile: Option<&str>,
        admitted: Option<Admitted>,
        request: Request,
    ) -> Response {
        let Some(Admitted { principal, slot }) = admitted else {
            return refuse(StatusCode::UNAUTHORIZED, "the sender of this request is unknown", "send a token");
        };
        let service = match self.service(profile) {
            Ok(service) => service,
            Err(refusal) => return *refusal,
        };
        let (parts, body) = request.into_parts();
        let name = match ConnectionName::in_query(parts.uri.query().unwrap_or_default()) {
            Ok(name) => name,
            Err(error) => {
                let hint = "use 1 to 64 letters, digits, `-`, `_` and `.` in `?session=NAME`, or omit it";
                return refuse(StatusCode::BAD_REQUEST, &error.to_string(), hint);
            }
        };
        if !lists_media_type(&parts.headers, &header::CONTENT_TYPE, "application/json") {
            let hint = "send `Content-Type: application/json`";
            return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the request is not declared as JSON", hint);
        }
        let (body, _large_body) = match self.read_body(&principal, body).await {
            Ok(read) => read,
            Err(refusal) => return *refusal,
        };
        let sent = match rpc::parse_all(&body) {
            Ok(sent) => sent,
            Err(error) => return bad_request(None, error),
        };
        if self.has_ended(&principal, &parts.headers) {
            return mcp_session_ended();
        }
        let caller = Caller { endpoint: self, service, principal, headers: parts.headers, name, slot };
        match sent {
            Payload::Single(Message::Response { id, outcome }) => caller.handle_response(&id, outcome),
            Payload::Single(Message::Notification { method, params }) => caller.handle_notification(&method, &params),
            Payload::Single(Message::Request { id, method, params }) => {
                if let Some(crash_reply) = parts.extensions.get::<CrashReply>() {
                    crash_reply.request_read(&id);
                }
                caller.handle_request(id, method, params).await
            }
            Payload::Batch(batch) => Box::pin(caller.handle_batch(batch)).await,
        }
    }

    /// Reads a body. The number of large ones in memory is limited: the permit is for as long as the request runs.
    async fn read_body(
        &self,
        principal: &Principal,
        body: axum::body::Body,
    ) -> Result<(Bytes, Option<Permit>), Box<Response>> {
        let is_large = body.size_hint().lower() > LARGE_BODY_BYTES as u64;
        let permit = if is_large {
            timeout(BODY_TIMEOUT, self.large_bodies.acquire(principal)).await.ok().flatten()
        } else {
            None
        };
        if is_large && permit.is_none() {
            let refusal =
                refuse(StatusCode::SERVICE_UNAVAILABLE, "too many large requests at a time", "try again shortly");
            return Err(Box::new(failure::with_retry_after(refusal)));
        }
        let limit = if is_large { self.max_body_bytes } else { self.max_body_bytes.min(LARGE_BODY_BYTES) };
        match timeout(BODY_TIMEOUT, to_bytes(body, limit)).await {
            Ok(Ok(body)) => Ok((body, permit)),
            Ok(Err(_)) => {
                let (max, max_undeclared) = (self.max_body_bytes >> 20, LARGE_BODY_BYTES >> 20);
                let hint = format!("send at most {max} MiB, or {max_undeclared} MiB without a Content-Length");
                Err(Box::new(refuse(StatusCode::PAYLOAD_TOO_LARGE, "the request is too large", &hint)))
            }
            Err(_) => Err(Box::new(refuse(
                StatusCode::REQUEST_TIMEOUT,
                "the request did not arrive in time",
                "send it again",
            ))),
        }
    }
}

pub(super) async fn post<S: Service>(
    State(endpoint): State<Arc<Endpoint<S>>>,
    Extension(principal): Extension<Principal>,
    profile: Option<Path<String>>,
    request: Request,
) -> Response {
    let slot = request.extensions().get::<RequestSlot>().cloned();
    let profile = profile.as_ref().map(|Path(name)| name.as_str());
    endpoint.post(profile, Some(Admitted { principal, slot }), request).await
}

/// Opens the event stream for messages that belong to no request, or resumes the stream of a call.
pub(super) async fn get<S: Service>(
    State(endpoint): State<Arc<Endpoint<S>>>,
    Extension(principal): Extension<Principal>,
    profile: Option<Path<String>>,
    headers: HeaderMap,
) -> Response {
    if let Err(refusal) = endpoint.service(profile.as_ref().map(|Path(name)| name.as_str())) {
        return *refusal;
    }
    if endpoint.has_ended(&principal, &headers) {
        return mcp_session_ended();
    }
    let is_modern =
        headers.get("mcp-protocol-version").is_some_and(|version| version.as_bytes() >= MODERN_VERSION.as_bytes());
    let client = session_header(&headers).filter(|_| !is_modern).and_then(|id| endpoint.clients.find(&principal, id));
    let (Some(client), true) = (client, lists_media_type(&headers, &header::ACCEPT, "text/event-stream")) else {
        let hint = "POST requests here; GET is for the event stream of a client that has sent `initialize`";
        let mut refusal = refuse(StatusCode::METHOD_NOT_ALLOWED, "this request has no event stream", hint);
        refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return refusal;
    };
    let last_event_id = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    if let Some(rest) = last_event_id.and_then(|id| response_stream::resume(&client, id)) {
        return rest;
    }
    let (sink, messages) = MessageSink::new();
    client.set_stream(sink);
    let ticket = endpoint.in_flight.enter_with(None, endpoint.closing.child_token());
    response_stream::endless(messages, ticket)
}

pub(super) async fn delete<S: Service>(
    State(endpoint): State<Arc<Endpoint<S>>>,
    Extension(principal): Extension<Principal>,
    headers: HeaderMap,
) -> Response {
    match session_header(&headers) {
        Some(id) if endpoint.clients.remove(&principal, id) => {
            endpoint.service.connection_ended(&principal, &Connection::McpSession(id.into())).await;
            StatusCode::NO_CONTENT.into_response()
        }
        Some(_) => refuse(StatusCode::NOT_FOUND, "unknown Mcp-Session-Id", "it may have ended already"),
        None => refuse(StatusCode::METHOD_NOT_ALLOWED, "nothing to delete", "send an Mcp-Session-Id header"),
    }
}

fn mcp_session_ended() -> Response {
    refuse(StatusCode::NOT_FOUND, "this Mcp-Session-Id has ended", "send `initialize` to get another")
}

/// The sender of a message, and the service it is for.
pub(super) struct Caller<S> {
    endpoint: Arc<Endpoint<S>>,
    pub(super) service: Arc<S>,
    principal: Principal,
    headers: HeaderMap,
    /// The name of the connection in the URL.
    name: Option<ConnectionName>,
    pub(super) slot: Option<RequestSlot>,
}

impl<S: Service> Caller<S> {
    pub(super) fn client(&self) -> Option<Arc<Client>> {
        self.endpoint.clients.find(&self.principal, session_header(&self.headers)?)
    }

    /// The key by which a request can be cancelled.
    fn key(&self, request: Id) -> Option<Key> {
        let client = session_header(&self.headers)?.to_owned();
        Some(Key { principal: self.principal.clone(), client, request })
    }

    /// Registers a request in progress, by its id if it can be cancelled by that.
    pub(super) fn enter(&self, request: Option<&Id>) -> Ticket {
        self.endpoint.in_flight.enter(request.and_then(|id| self.key(id.clone())))
    }

    /// The protocol version in the headers.
    pub(super) fn version(&self) -> Option<&str> {
        self.headers.get("mcp-protocol-version")?.to_str().ok()
    }

    /// Whether the client accepts nothing but JSON.
    pub(super) fn accepts_only_json(&self) -> bool {
        !lists_media_type(&self.headers, &header::ACCEPT, "text/event-stream")
    }

    /// Returns the era of a request if its headers and its body agree.
    pub(super) fn era_of(&self, method: &str, params: &Value) -> Result<Era, RpcError> {
        let schema = |name: &str| self.service.input_schema(name);
        headers::check(&self.headers, method, params, true, schema).and_then(|()| era::of_request(method, params))
    }

    pub(super) fn context(
        &self,
        request: Id,
        era: Era,
        params: &Value,
        sink: MessageSink,
        client: Option<Arc<Client>>,
    ) -> Context {
        let capabilities = match era {
            Era::Modern => Arc::new(params["_meta"][CAPABILITIES_KEY].clone()),
            Era::Legacy => client.as_ref().map(|client| client.capabilities()).unwrap_or_default(),
        };
        let connection = self.connection(era);
        let (principal, cancel) = (self.principal.clone(), self.endpoint.shutdown.child_token());
        // Clients of versions without the header name the MCP session that `initialize` gave them, even if it has ended.
        let declares_version = self.version().is_some()
            || session_header(&self.headers).is_some()
            || era::declared_version(params).is_some();
        Context { principal, era, capabilities, sink, client, connection, cancel, request, declares_version }
    }

    /// The connection of a request: by the name in the URL, otherwise the MCP session of the legacy era.
    fn connection(&self, era: Era) -> Option<Connection> {
        let mcp_session = || match era {
            Era::Legacy => session_header(&self.headers).and_then(Clients::known_length),
            Era::Modern => None,
        };
        let named = self.name.clone().map(Connection::Named);
        named.or_else(|| mcp_session().map(|id| Connection::McpSession(id.into())))
    }

    pub(super) fn handle_response(&self, id: &Id, outcome: Outcome) -> Response {
        if let Some(client) = self.client() {
            client.handle_response(id, outcome);
        }
        StatusCode::ACCEPTED.into_response()
    }

    pub(super) fn handle_notification(&self, method: &str, params: &Value) -> Response {
        if let Err(error) = headers::check(&self.headers, method, params, false, |_| None) {
            return bad_request(None, error);
        }
        if method == "notifications/cancelled" {
            let request = serde_json::from_value(params["requestId"].clone()).ok();
            if let Some(key) = request.and_then(|request| self.key(request)) {
                self.endpoint.in_flight.cancel(&key);
            }
        } else {
            self.service.handle_notification(method, params);
        }
        StatusCode::ACCEPTED.into_response()
    }

    async fn handle_request(self, id: Id, method: String, params: Value) -> Response {
        let era = match self.era_of(&method, &params) {
            Ok(era) => era,
            Err(error) => return bad_request(Some(&id), error),
        };
        let is_initialize = method == "initialize" && era == Era::Legacy;
        let new_session = is_initialize.then(|| uuid::Uuid::new_v4().to_string());
        let client = match (&new_session, era) {
            (Some(id), _) => self.endpoint.clients.find(&self.principal, id),
            (None, Era::Legacy) => self.client(),
            (None, Era::Modern) => None,
        };
        let only_json = self.accepts_only_json();
        let (sink, messages) = if only_json || !self.service.may_send_before_response(&method, &params) {
            (MessageSink::closed(), None)
        } else {
            let (sink, messages) = MessageSink::new();
            (sink, Some(messages))
        };
        let ticket = self.enter((era == Era::Legacy).then_some(&id));
        let form = Form {
            only_json,
            always_streams: self.service.always_streams() && !is_initialize,
            client: client.clone().filter(|client| !is_initialize && client.can_resume()),
        };
        let mut context = self.context(id.clone(), era, &params, sink, client);
        if method == SUBSCRIBE_METHOD {
            self.slot.iter().for_each(RequestSlot::release);
            context.cancel = self.endpoint.closing.child_token();
        }
        let (service, slot) = (self.service, self.slot);
        let response_to = ResponseTo { id: id.clone(), is_read_only: is_read_only(&method) };
        let future = async move {
            // A call whose client may resume its stream continues without the connection, and keeps its slot.
            let _slot = slot;
            // Cancels the call when the response is dropped because its client went away.
            let _cancel = context.cancel.clone().drop_guard();
            let outcome = service.handle(&method, params, &context).await;
            let status = outcome.as_ref().err().map_or(StatusCode::OK, |error| status(error, era));
            (status, rpc::response(Some(&id), outcome))
        };
        let mut response = response_stream::respond(Box::pin(future), messages, ticket, form).await;
        if response.status() == StatusCode::SERVICE_UNAVAILABLE {
            response = failure::with_retry_after(response);
        }
        if response.status() == StatusCode::OK
            && let Some(Ok(id)) = new_session.as_deref().map(HeaderValue::from_str)
        {
            response.headers_mut().insert(SESSION_HEADER, id);
        }
        if response.body().size_hint().lower() >= SMALL_RESPONSE_BYTES {
            response.extensions_mut().insert(response_to);
        }
        response
    }
}

/// Whether a request may be repeated without a further effect.
fn is_read_only(method: &str) -> bool {
    matches!(method, "initialize" | "server/discover" | "ping" | "resources/read") || method.ends_with("/list")
}

fn session_header(headers: &HeaderMap) -> Option<&str> {
    headers.get(&SESSION_HEADER)?.to_str().ok()
}

/// Returns the HTTP status of an error. In the newer era some errors have their own; in both, reached limits do.
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
    (StatusCode::BAD_REQUEST, axum::Json(rpc::response(id, Err(error)))).into_response()
}

/// Whether a header lists a media type.
fn lists_media_type(headers: &HeaderMap, header: &HeaderName, media_type: &str) -> bool {
    headers
        .get_all(header)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|item| item.split(';').next())
        .any(|item| item.trim().eq_ignore_ascii_case(media_type))
}
