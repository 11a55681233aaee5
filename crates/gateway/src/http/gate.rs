//! What every request passes before anything looks at it: Host, Origin, token, room.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use ringfence_runtime::audit::{Audit, AuditEvent, AuditKind, Sparing};
use ringfence_runtime::session::Principal;
use subtle::ConstantTimeEq;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::peers::Peers;
use super::status::ENDING;
use super::{HttpOptions, Token, refuse};
use crate::policy::Policy;
use crate::rpc::{self, Id, Message};
use crate::{Gateway, busy};

/// What is read of requests that are refused for want of room.
const REFUSED_AT_ONCE: usize = 32;
const REFUSED_BYTES: usize = 64 << 10;
const REFUSED_WITHIN: Duration = Duration::from_secs(2);

/// On requests of connections for which there is no room: they are only told so.
#[derive(Clone, Copy)]
pub(super) struct Crowded;

#[derive(Clone)]
pub(super) struct Gate {
    peers: Peers,
    tokens: Arc<[Token]>,
    room: Arc<Semaphore>,
    most_requests: u32,
    draining: CancellationToken,
    /// Those that are read a little further, so that the refusal bears their id.
    refusing: Arc<Semaphore>,
    /// In KiB.
    response_room: Arc<Semaphore>,
    audit: Audit,
    strangers: Arc<Sparing>,
    policy: Policy,
}

impl Gate {
    pub(super) fn new(peers: Peers, options: &HttpOptions, gateway: &Gateway) -> Self {
        let semaphore = |permits: usize| Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)));
        let most_requests = u32::try_from(options.max_requests).unwrap_or(u32::MAX >> 3);
        Self {
            peers,
            tokens: options.tokens.clone().into(),
            room: semaphore(most_requests as usize),
            most_requests,
            draining: options.drain.clone(),
            refusing: semaphore(REFUSED_AT_ONCE),
            response_room: semaphore(options.max_response_bytes >> 10),
            audit: gateway.audit(),
            strangers: Arc::default(),
            policy: gateway.policy().clone(),
        }
    }

    pub(super) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Waits until no request is under way.
    pub(super) async fn is_empty(&self) {
        let _ = self.room.acquire_many(self.most_requests).await;
    }

    /// Refuses for want of room, and says when to ask again; in the words of MCP where those are spoken.
    async fn busy(&self, why: &str, request: Option<Request>) -> Response {
        let Some(request) = request.filter(|request| request.uri().path().starts_with("/mcp")) else {
            let refusal = refuse(StatusCode::SERVICE_UNAVAILABLE, why, "try again shortly");
            return busy::with_retry_after(refusal);
        };
        let id = match self.refusing.try_acquire() {
            Ok(_permit) => id_of(request).await,
            Err(_) => None,
        };
        let answer = rpc::answer(id.as_ref(), &Err(busy::error(why)));
        busy::with_retry_after((StatusCode::SERVICE_UNAVAILABLE, axum::Json(answer)).into_response())
    }

    /// Tells the audit of somebody who is not let in.
    fn tell(&self, kind: AuditKind, outcome: &str) {
        if let Some(event) = self.strangers.pass(AuditEvent::new(kind, outcome)) {
            self.audit.record(event);
        }
    }

    /// Compares with every token in full, so that the time taken tells no more of one than its length.
    fn principal(&self, headers: &HeaderMap) -> Option<Principal> {
        if self.tokens.is_empty() {
            return Some(Principal::local());
        }
        let (scheme, secret) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let secret = secret.trim().as_bytes();
        let mut holder = None;
        for token in self.tokens.iter() {
            if token.secret.as_bytes().ct_eq(secret).into() {
                holder = Some(Principal::named(token.principal.as_str()));
            }
        }
        holder
    }
}

pub(super) async fn pass(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    if !gate.peers.allow_host(request.uri(), request.headers()) {
        gate.tell(AuditKind::Refused, "host");
        let hint = "call it by a loopback name, or add the name to the allowed hosts of the configuration";
        return refuse(StatusCode::FORBIDDEN, "the Host header is not a name of this server", hint);
    }
    if request.headers().get_all(header::ORIGIN).iter().any(|origin| !gate.peers.allow_origin(origin)) {
        gate.tell(AuditKind::Refused, "origin");
        let hint = "add the page's host to the allowed hosts of the configuration";
        return refuse(StatusCode::FORBIDDEN, "pages of this Origin may not call this server", hint);
    }
    // Probes carry no token, and must be answered when the server is at its busiest.
    if request.uri().path() == "/health" {
        return next.run(request).await;
    }
    let Some(principal) = gate.principal(request.headers()) else {
        let sent = request.headers().contains_key(header::AUTHORIZATION);
        gate.tell(AuditKind::AuthenticationFailed, if sent { "wrong_token" } else { "no_token" });
        let hint = "send `Authorization: Bearer <token>` with a token of the configuration";
        let mut refusal = refuse(StatusCode::UNAUTHORIZED, "a token is needed", hint);
        refusal.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return refusal;
    };
    if gate.draining.is_cancelled() {
        return gate.busy(ENDING, Some(request)).await;
    }
    if request.extensions().get::<Crowded>().is_some() {
        gate.tell(AuditKind::Refused, "too_many_connections");
        return gate.busy("too many connections", Some(request)).await;
    }
    let permit = Arc::clone(&gate.room).try_acquire_owned().ok().filter(|_| !is_listening(&request));
    if permit.is_none() && !is_listening(&request) {
        gate.tell(AuditKind::Refused, "too_many_requests");
        return gate.busy("too many requests at a time", Some(request)).await;
    }
    request.extensions_mut().insert(gate.policy.principal(principal));
    let response = next.run(request).await;
    let kib = u32::try_from(response.body().size_hint().lower() >> 10).unwrap_or(u32::MAX);
    let Ok(room) = Arc::clone(&gate.response_room).try_acquire_many_owned(kib) else {
        return gate.busy("too much is on its way to clients", None).await;
    };
    response.map(|body| Body::new(Counted { body, _request: permit, _room: room }))
}

/// A stream on which a client only listens is bounded by its connection, and takes no place from those who ask.
fn is_listening(request: &Request) -> bool {
    request.method() == Method::GET && request.uri().path().starts_with("/mcp")
}

/// The id of a request that is refused, if it is there at once.
async fn id_of(request: Request) -> Option<Id> {
    let body = timeout(REFUSED_WITHIN, to_bytes(request.into_body(), REFUSED_BYTES)).await.ok()?.ok()?;
    match rpc::parse(&body) {
        Ok(Message::Request { id, .. }) => Some(id),
        _ => None,
    }
}

/// A body that counts, with its request, as under way until it is sent or given up.
struct Counted {
    body: Body,
    _request: Option<OwnedSemaphorePermit>,
    _room: OwnedSemaphorePermit,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
