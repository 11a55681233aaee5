//! What every request passes before anything looks at it: Host, Origin, token, room.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Frame, SizeHint};
use ringfence_runtime::audit::{Audit, AuditEvent, AuditKind, Sparing};
use ringfence_runtime::session::Principal;
use subtle::ConstantTimeEq;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::peers::Peers;
use super::{Token, refuse};
use crate::Gateway;
use crate::policy::Policy;

#[derive(Clone)]
pub(super) struct Gate {
    peers: Peers,
    tokens: Arc<[Token]>,
    room: Arc<Semaphore>,
    /// In KiB.
    response_room: Arc<Semaphore>,
    audit: Audit,
    strangers: Arc<Sparing>,
    policy: Policy,
}

impl Gate {
    pub(super) fn new(
        peers: Peers,
        tokens: Vec<Token>,
        max_requests: usize,
        max_response_bytes: usize,
        gateway: &Gateway,
    ) -> Self {
        let semaphore = |permits: usize| Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)));
        let (room, response_room) = (semaphore(max_requests), semaphore(max_response_bytes >> 10));
        let (audit, policy) = (gateway.audit(), gateway.policy().clone());
        Self { peers, tokens: tokens.into(), room, response_room, audit, strangers: Arc::default(), policy }
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
    let Ok(permit) = Arc::clone(&gate.room).try_acquire_owned() else {
        gate.tell(AuditKind::Refused, "too_many_requests");
        return busy("too many requests at a time");
    };
    request.extensions_mut().insert(gate.policy.principal(principal));
    let response = next.run(request).await;
    let kib = u32::try_from(response.body().size_hint().lower() >> 10).unwrap_or(u32::MAX);
    let Ok(room) = gate.response_room.try_acquire_many_owned(kib) else {
        return busy("too much is on its way to clients");
    };
    response.map(|body| Body::new(Counted { body, _permits: [permit, room] }))
}

fn busy(error: &str) -> Response {
    let mut refusal = refuse(StatusCode::SERVICE_UNAVAILABLE, error, "try again shortly");
    refusal.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    refusal
}

/// A body that counts, with its request, as under way until it is sent or given up.
struct Counted {
    body: Body,
    _permits: [OwnedSemaphorePermit; 2],
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
