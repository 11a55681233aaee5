//! What every request passes before anything looks at it: Host, Origin, token, room.

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
use ringfence_runtime::audit::{Audit, AuditEvent, AuditKind, Sparing};
use ringfence_runtime::session::{Failure, Kind, Principal};
use subtle::ConstantTimeEq;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::peers::Peers;
use super::place::{Admitted, Place};
use super::status::ENDING;
use super::{HttpOptions, Token, refuse};
use crate::policy::Policy;
use crate::rpc::{self, Id, Message, Sent};
use crate::{Gateway, busy, failure};

/// What is read of messages for which there is no room: most are refused by their id, but answers and notifications
/// are heard, since what is under way may wait for them.
const ASIDE_AT_ONCE: usize = 32;
const ASIDE_BYTES: usize = 1 << 20;
const ASIDE_WITHIN: Duration = Duration::from_secs(2);

/// With less room than this for answers nothing is begun, as its answer might be lost.
const SPARE_KIB: usize = 1 << 10;

/// On requests of connections for which there is no room: they are only told so.
#[derive(Clone, Copy)]
pub(super) struct Crowded;

/// On an answer over MCP: whose it is, where it cannot be kept.
#[derive(Clone)]
pub(super) struct AnswerTo {
    pub(super) id: Id,
    /// Whoever asks again does no harm.
    pub(super) only_reads: bool,
}

/// Why a request is not let in just now.
#[derive(Clone, Copy)]
enum NoRoom {
    Ending,
    Connections,
    Requests,
    Answers,
}

impl NoRoom {
    fn why(self) -> &'static str {
        match self {
            Self::Ending => ENDING,
            Self::Connections => "too many connections",
            Self::Requests => "too many requests at a time",
            Self::Answers => "too much is on its way to clients",
        }
    }

    /// What the audit hears of it.
    fn outcome(self) -> Option<&'static str> {
        match self {
            Self::Ending => None,
            Self::Connections => Some("too_many_connections"),
            Self::Requests => Some("too_many_requests"),
            Self::Answers => Some("too_much_to_send"),
        }
    }
}

pub(super) struct Gate {
    peers: Peers,
    tokens: Arc<[Token]>,
    room: Arc<Semaphore>,
    most_requests: u32,
    draining: CancellationToken,
    /// Those that are read although there is no room for them.
    aside: Arc<Semaphore>,
    /// In KiB.
    response_room: Arc<Semaphore>,
    spare_kib: usize,
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
            aside: semaphore(ASIDE_AT_ONCE),
            response_room: semaphore(options.max_response_bytes >> 10),
            spare_kib: SPARE_KIB.min(options.max_response_bytes >> 11),
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

    /// Lets a request in, with a place unless it takes none.
    fn admit(&self, request: &Request) -> Result<Option<Place>, NoRoom> {
        if self.draining.is_cancelled() && !is_coming_back(request) {
            return Err(NoRoom::Ending);
        }
        if request.extensions().get::<Crowded>().is_some() {
            return Err(NoRoom::Connections);
        }
        if is_listening(request) {
            return Ok(None);
        }
        if self.response_room.available_permits() < self.spare_kib {
            return Err(NoRoom::Answers);
        }
        let permit = Arc::clone(&self.room).try_acquire_owned().map_err(|_| NoRoom::Requests)?;
        Ok(Some(Place::new(permit)))
    }

    /// Reads a message for which there is no room. Gives the request back where it asks for nothing, and else its id.
    async fn hear_aside(&self, request: Request) -> Result<(Request, OwnedSemaphorePermit), Option<Id>> {
        let (parts, body) = request.into_parts();
        if body.size_hint().lower() > ASIDE_BYTES as u64 {
            return Err(None);
        }
        let permit = timeout(ASIDE_WITHIN, Arc::clone(&self.aside).acquire_owned()).await;
        let permit = permit.ok().and_then(Result::ok).ok_or(None)?;
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
        busy::with_retry_after(refuse(StatusCode::SERVICE_UNAVAILABLE, no_room.why(), "try again shortly"))
    }

    /// The same in the words of MCP.
    fn busy_over_mcp(&self, no_room: NoRoom, id: Option<&Id>) -> Response {
        self.tell_of(no_room);
        let answer = rpc::answer(id, Err(busy::error(no_room.why())));
        busy::with_retry_after((StatusCode::SERVICE_UNAVAILABLE, axum::Json(answer)).into_response())
    }

    /// Stands for an answer that cannot be kept until its client has read it.
    fn instead_of(&self, answer: &Response, method: &Method) -> Response {
        match answer.extensions().get::<AnswerTo>() {
            Some(AnswerTo { id, only_reads: true }) => self.busy_over_mcp(NoRoom::Answers, Some(id)),
            Some(AnswerTo { id, only_reads: false }) => {
                self.tell_of(NoRoom::Answers);
                let lost = Err(failure::render(answer_lost()));
                axum::Json(rpc::answer(Some(id), lost)).into_response()
            }
            None if *method == Method::GET => self.busy(NoRoom::Answers),
            None => {
                self.tell_of(NoRoom::Answers);
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

    /// Lets whoever may pass go on to what comes next. Who probes is nobody.
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
        let Some(principal) = self.principal(request.headers()) else {
            let sent = request.headers().contains_key(header::AUTHORIZATION);
            self.tell(AuditKind::AuthenticationFailed, if sent { "wrong_token" } else { "no_token" });
            let hint = "send `Authorization: Bearer <token>` with a token of the configuration";
            let mut refusal = refuse(StatusCode::UNAUTHORIZED, "a token is needed", hint);
            refusal.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return refusal;
        };
        let (request, place, _aside) = match self.admit(&request) {
            Ok(place) => (request, place, None),
            Err(no_room) if !request.uri().path().starts_with("/mcp") => return self.busy(no_room),
            Err(no_room) => match self.hear_aside(request).await {
                Ok((request, permit)) => (request, None, Some(permit)),
                Err(id) => return self.busy_over_mcp(no_room, id.as_ref()),
            },
        };
        let method = request.method().clone();
        let admitted = Admitted { principal: self.policy.principal(principal), place: place.clone() };
        let response = next(request, Some(admitted)).await;
        let kib = u32::try_from(response.body().size_hint().lower() >> 10).unwrap_or(u32::MAX);
        match Arc::clone(&self.response_room).try_acquire_many_owned(kib) {
            Ok(room) => response.map(|body| Body::new(Counted { body, kept: Arc::new((place, room)) })),
            Err(_) => self.instead_of(&response, &method),
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
        .suggest("look whether it has had an effect before you ask again")
        .suggest("ask for less at a time")
}

/// A body that counts, with its request, as under way until it is sent or given up.
struct Counted {
    body: Body,
    kept: Kept,
}

type Kept = Arc<(Option<Place>, OwnedSemaphorePermit)>;

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
