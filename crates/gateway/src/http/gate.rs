//! The checks that every request passes first: Host, Origin, the token or the connecting user, and limits.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use ringfence_core::{AuditEvent, AuditKind, AuditThrottle};
use ringfence_core::{Failure, Kind, Principal};
use ringfence_store::Audit;
use subtle::ConstantTimeEq;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::access::{Origin, Refused};
use super::connection_table::Peer;
use super::failed_attempts::FailedAttempts;
use super::peers::Peers;
use super::place::{Admitted, Place};
use super::status::ENDING;
use super::{HttpOptions, Token, refuse};
use crate::policy::Policy;
use crate::rpc;
use crate::rpc::{Id, Message, Sent};
use crate::share::{Full, Permit, Pool};
use crate::{Gateway, busy, failure};

/// What is read of messages for which there is no room: most are refused by their id, but answers and notifications
/// are heard, since what is under way may wait for them.
const ASIDE_AT_ONCE: usize = 32;
const ASIDE_BYTES: usize = 1 << 20;
const ASIDE_WITHIN: Duration = Duration::from_secs(2);

/// With less room than this for answers nothing is begun, as its answer might be lost.
const SPARE_KIB: usize = 1 << 10;

/// On an answer over MCP: whose it is, where it cannot be kept.
#[derive(Clone)]
pub(super) struct AnswerTo {
    pub(super) id: Id,
    /// Whoever asks again does no harm.
    pub(super) only_reads: bool,
}

/// Why a request is refused for now.
#[derive(Clone, Copy)]
enum NoRoom {
    Ending,
    Connections,
    Requests,
    Answers,
    /// The principal has used its share of the connections, requests or pending response data.
    ConnectionShare(u32),
    RequestShare(u32),
    AnswerShare,
}

impl NoRoom {
    fn why(self) -> Cow<'static, str> {
        match self {
            Self::Ending => ENDING.into(),
            Self::Connections => "too many connections".into(),
            Self::Requests => "too many requests at a time".into(),
            Self::Answers => "too much is on its way to clients".into(),
            Self::ConnectionShare(share) => {
                format!("your token has {share} connections, its maximum: three quarters of server.max_connections")
                    .into()
            }
            Self::RequestShare(share) => format!(
                "your token has {share} requests under way, its maximum: three quarters of \
                 server.max_concurrent_requests"
            )
            .into(),
            Self::AnswerShare => {
                "your token has used its share of the response data that may wait to be sent: three quarters".into()
            }
        }
    }

    /// The outcome in the audit.
    fn outcome(self) -> Option<&'static str> {
        match self {
            Self::Ending => None,
            Self::Connections | Self::ConnectionShare(_) => Some("too_many_connections"),
            Self::Requests | Self::RequestShare(_) => Some("too_many_requests"),
            Self::Answers | Self::AnswerShare => Some("too_much_to_send"),
        }
    }
}

/// Why the sender of a request could not be identified.
enum Unknown {
    /// A token is missing or wrong.
    Token,
    TooManyFailures,
    Connection(Refused),
}

pub(super) struct Gate {
    peers: Peers,
    tokens: Arc<[Token]>,
    requests: Pool,
    draining: CancellationToken,
    /// Those that are read although there is no room for them.
    aside: Pool,
    /// In KiB.
    responses: Pool,
    spare_kib: usize,
    audit: Audit,
    strangers: Arc<AuditThrottle>,
    failures: FailedAttempts,
    policy: Policy,
}

impl Gate {
    pub(super) fn new(peers: Peers, options: &HttpOptions, gateway: &Gateway) -> Self {
        let principals = options.principals();
        Self {
            peers,
            tokens: options.tokens.clone().into(),
            requests: Pool::new(options.max_requests, principals),
            draining: options.drain.clone(),
            aside: Pool::new(ASIDE_AT_ONCE, principals),
            responses: Pool::new(options.max_response_bytes >> 10, principals),
            spare_kib: SPARE_KIB.min(options.max_response_bytes >> 11),
            audit: gateway.audit(),
            strangers: Arc::default(),
            failures: FailedAttempts::default(),
            policy: gateway.policy().clone(),
        }
    }

    pub(super) fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Waits until no request is under way.
    pub(super) async fn is_empty(&self) {
        self.requests.is_unused().await;
    }

    /// Admits a request, with a request slot unless it needs none.
    fn admit(&self, request: &Request, peer: &Peer, principal: &Principal) -> Result<Option<Place>, NoRoom> {
        if self.draining.is_cancelled() && !is_coming_back(request) {
            return Err(NoRoom::Ending);
        }
        if peer.is_crowded() {
            return Err(NoRoom::Connections);
        }
        peer.authenticate(principal).map_err(|full| match full {
            Full::Pool => NoRoom::Connections,
            Full::Share(share) => NoRoom::ConnectionShare(share),
        })?;
        if is_listening(request) {
            return Ok(None);
        }
        if self.responses.available(principal) < self.spare_kib {
            return Err(NoRoom::Answers);
        }
        match self.requests.try_acquire(principal) {
            Ok(permit) => Ok(Some(Place::new(permit))),
            Err(Full::Pool) => Err(NoRoom::Requests),
            Err(Full::Share(share)) => Err(NoRoom::RequestShare(share)),
        }
    }

    /// Reads a message for which there is no room. Gives the request back where it asks for nothing, and else its id.
    async fn hear_aside(&self, request: Request, principal: &Principal) -> Result<(Request, Permit), Option<Id>> {
        let (parts, body) = request.into_parts();
        if body.size_hint().lower() > ASIDE_BYTES as u64 {
            return Err(None);
        }
        let permit = timeout(ASIDE_WITHIN, self.aside.acquire(principal)).await;
        let permit = permit.ok().flatten().ok_or(None)?;
        let body = timeout(ASIDE_WITHIN, to_bytes(body, ASIDE_BYTES)).await;
        let body = body.ok().and_then(Result::ok).ok_or(None)?;
        let asks = |message: &Result<Message, _>| {
            !matches!(message, Ok(Message::Answer { .. } | Message::Notification { .. }))
        };
        match rpc::parse_all(&body) {
            Ok(Sent::One(Message::Request { id, .. })) => Err(Some(id)),
            Ok(Sent::Together(batch)) if batch.iter().any(asks) => Err(None),
            Ok(Sent::One(_) | Sent::Together(_)) => Ok((Request::from_parts(parts, Body::from(body)), permit)),
            Err(_) => Err(None),
        }
    }

    /// Refuses for want of room, and says when to ask again.
    fn busy(&self, no_room: NoRoom) -> Response {
        self.tell_of(no_room);
        busy::with_retry_after(refuse(StatusCode::SERVICE_UNAVAILABLE, &no_room.why(), "try again shortly"))
    }

    /// The same in the words of MCP.
    fn busy_over_mcp(&self, no_room: NoRoom, id: Option<&Id>) -> Response {
        self.tell_of(no_room);
        let answer = rpc::answer(id, Err(busy::error(&no_room.why())));
        busy::with_retry_after((StatusCode::SERVICE_UNAVAILABLE, axum::Json(answer)).into_response())
    }

    /// Stands for an answer that cannot be kept until its client has read it.
    fn instead_of(&self, answer: &Response, method: &Method, no_room: NoRoom) -> Response {
        match answer.extensions().get::<AnswerTo>() {
            Some(AnswerTo { id, only_reads: true }) => self.busy_over_mcp(no_room, Some(id)),
            Some(AnswerTo { id, only_reads: false }) => {
                self.tell_of(no_room);
                let lost = Err(failure::render(answer_lost()));
                axum::Json(rpc::answer(Some(id), lost)).into_response()
            }
            None if *method == Method::GET => self.busy(no_room),
            None => {
                self.tell_of(no_room);
                let (_, body) = failure::render_http(answer_lost());
                (StatusCode::INSUFFICIENT_STORAGE, axum::Json(body)).into_response()
            }
        }
    }

    fn tell_of(&self, no_room: NoRoom) {
        if let Some(outcome) = no_room.outcome() {
            self.tell(AuditKind::Refused, outcome);
        }
    }

    /// Tells the audit of somebody who is not let in.
    fn tell(&self, kind: AuditKind, outcome: &'static str) {
        if let Some(event) = self.strangers.admit(AuditEvent::new(kind, outcome)) {
            self.audit.record(event);
        }
    }

    /// Identifies the sender of a request. After too many failures tokens are no longer compared, except on loopback,
    /// where many users share one address.
    fn principal(&self, headers: &HeaderMap, peer: &Peer) -> Result<Principal, Unknown> {
        if self.tokens.is_empty() {
            return match peer.origin() {
                Origin::Owner | Origin::Unknown => Ok(Principal::local()),
                Origin::Refused(refused) => Err(Unknown::Connection(refused)),
            };
        }
        let address = peer.address();
        let is_limited = !address.is_loopback() && !peer.is_authenticated();
        if is_limited && self.failures.is_blocked(address) {
            return Err(Unknown::TooManyFailures);
        }
        self.holder(headers)
            .ok_or_else(|| if self.failures.record(address) { Unknown::Token } else { Unknown::TooManyFailures })
    }

    /// Compares with every token in full, so that the time reveals no more than the length of a token.
    fn holder(&self, headers: &HeaderMap) -> Option<Principal> {
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

    fn refuse_unknown(&self, unknown: &Unknown, request: &Request) -> Response {
        let hint = "send `Authorization: Bearer <token>` with a token of the configuration";
        match unknown {
            Unknown::Token => {
                let sent = request.headers().contains_key(header::AUTHORIZATION);
                self.tell(AuditKind::AuthenticationFailed, if sent { "wrong_token" } else { "no_token" });
                let mut refusal = refuse(StatusCode::UNAUTHORIZED, "a token is needed", hint);
                refusal.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                refusal
            }
            Unknown::TooManyFailures => {
                self.tell(AuditKind::AuthenticationFailed, "too_many_failures");
                let why = "authentication failed too often from this address";
                busy::with_retry_after(refuse(StatusCode::TOO_MANY_REQUESTS, why, hint))
            }
            Unknown::Connection(refused) => {
                self.tell(AuditKind::Refused, refused.outcome());
                refused.response()
            }
        }
    }

    /// Forwards a request if it passes all checks. Probes of `/health` have no principal.
    pub(super) async fn pass<F: Future<Output = Response>>(
        &self,
        request: Request,
        next: impl FnOnce(Request, Option<Admitted>) -> F,
    ) -> Response {
        if !self.peers.allow_host(request.uri(), request.headers()) {
            self.tell(AuditKind::Refused, "host");
            let hint = "call it by a loopback name, or add the name to `server.allowed_hosts` of the configuration";
            return refuse(StatusCode::FORBIDDEN, "the Host header is not a name of this server", hint);
        }
        if request.headers().get_all(header::ORIGIN).iter().any(|origin| !self.peers.allow_origin(origin)) {
            self.tell(AuditKind::Refused, "origin");
            let hint = "add the page's host to `server.allowed_hosts` of the configuration";
            return refuse(StatusCode::FORBIDDEN, "pages of this Origin may not call this server", hint);
        }
        // Probes carry no token, and must be answered when the server is at its busiest.
        if request.uri().path() == "/health" {
            return next(request, None).await;
        }
        let Some(peer) = request.extensions().get::<Peer>().cloned() else {
            return self.refuse_unknown(&Unknown::Connection(Refused::UnknownUser), &request);
        };
        let principal = match self.principal(request.headers(), &peer) {
            Ok(principal) => principal,
            Err(unknown) => return self.refuse_unknown(&unknown, &request),
        };
        let (request, place, _aside) = match self.admit(&request, &peer, &principal) {
            Ok(place) => (request, place, None),
            Err(no_room) if !request.uri().path().starts_with("/mcp") => return self.busy(no_room),
            Err(no_room) => match self.hear_aside(request, &principal).await {
                Ok((request, permit)) => (request, None, Some(permit)),
                Err(id) => return self.busy_over_mcp(no_room, id.as_ref()),
            },
        };
        let method = request.method().clone();
        let admitted = Admitted { principal: self.policy.principal(principal.clone()), place: place.clone() };
        let response = next(request, Some(admitted)).await;
        let kib = u32::try_from(response.body().size_hint().lower() >> 10).unwrap_or(u32::MAX);
        match self.responses.try_acquire_many(&principal, kib) {
            Ok(room) => response.map(|body| Body::new(Counted { body, kept: Arc::new((place, room)) })),
            Err(Full::Pool) => self.instead_of(&response, &method, NoRoom::Answers),
            Err(Full::Share(_)) => self.instead_of(&response, &method, NoRoom::AnswerShare),
        }
    }
}

pub(super) async fn pass(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    let go_on = |mut request: Request, admitted: Option<Admitted>| {
        if let Some(Admitted { principal, place }) = admitted {
            request.extensions_mut().insert(principal);
            place.map(|place| request.extensions_mut().insert(place));
        }
        next.run(request)
    };
    gate.pass(request, go_on).await
}

/// A stream on which a client only listens is bounded by its connection, and takes no place from those who ask.
fn is_listening(request: &Request) -> bool {
    request.method() == Method::GET && request.uri().path().starts_with("/mcp")
}

/// For the rest of what a call says whose connection broke.
fn is_coming_back(request: &Request) -> bool {
    is_listening(request) && request.headers().contains_key("last-event-id")
}

/// Whoever called again, thinking that nothing has happened, would do it twice.
fn answer_lost() -> Failure {
    let message = "the request has been carried out, but its answer is lost: too much is on its way to clients";
    Failure::new(Kind::ResourceLimit, message)
        .with("may_have_run", "true")
        .hint("look whether it has had an effect before you ask again")
        .hint("ask for less at a time")
}

/// A body that counts, with its request, as under way until it is sent or given up.
struct Counted {
    body: Body,
    kept: Kept,
}

type Kept = Arc<(Option<Place>, Permit)>;

/// Bytes on their way: the body itself is gone as soon as its last bytes wait to be written.
struct OnTheirWay {
    bytes: Bytes,
    _kept: Kept,
}

impl AsRef<[u8]> for OnTheirWay {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let kept = &self.kept;
        let keep = |bytes| Bytes::from_owner(OnTheirWay { bytes, _kept: Arc::clone(kept) });
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(keep))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
