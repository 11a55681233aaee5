//! The checks that every request passes first: Host, Origin, authentication, and limits.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use ringfence_core::{AuditEvent, AuditKind, AuditThrottle, Failure, Kind, Principal};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::authenticator::Authenticator;
use super::connection_table::Peer;
use super::host_check::HostCheck;
use super::request_slot::{Admitted, RequestSlot};
use super::{HttpOptions, refuse};
use crate::fair_pool::{Full, Permit, Pool};
use crate::rpc::{Id, Message, Payload};
use crate::service::Service;
use crate::{failure, rpc};

/// Limits for reading messages that are over a limit. Requests among them are refused by their id; responses and
/// notifications are accepted, because calls in progress may wait for them.
const MAX_OVERFLOW_READS: usize = 32;
const MAX_OVERFLOW_BYTES: usize = 1 << 20;
const OVERFLOW_READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Free response memory below which no request starts, because its response might be lost.
const MIN_FREE_RESPONSE_KIB: usize = 1 << 10;

/// Marks a response over MCP with the request that it belongs to, in case it cannot be sent.
#[derive(Clone)]
pub(super) struct ResponseTo {
    pub(super) id: Id,
    /// Whether the request may be repeated without a further effect.
    pub(super) is_read_only: bool,
}

/// The limit because of which a request is refused.
#[derive(Clone, Copy)]
enum Limit {
    ShuttingDown,
    Connections,
    Requests,
    Responses,
    /// The principal has used its share of the connections, requests or pending response data.
    ConnectionShare(u32),
    RequestShare(u32),
    ResponseShare,
}

impl Limit {
    fn message(self) -> Cow<'static, str> {
        match self {
            Self::ShuttingDown => "the server is shutting down".into(),
            Self::Connections => "too many connections".into(),
            Self::Requests => "too many concurrent requests".into(),
            Self::Responses => "too much response data waits to be read by clients".into(),
            Self::ConnectionShare(share) => {
                format!("your token has {share} connections, its maximum: three quarters of server.max_connections")
                    .into()
            }
            Self::RequestShare(share) => format!(
                "your token has {share} requests in progress, its maximum: three quarters of \
                 server.max_concurrent_requests"
            )
            .into(),
            Self::ResponseShare => {
                "your token has used its share of the response data that may wait to be sent: three quarters".into()
            }
        }
    }

    /// The outcome in the audit.
    fn outcome(self) -> Option<&'static str> {
        match self {
            Self::ShuttingDown => None,
            Self::Connections | Self::ConnectionShare(_) => Some("too_many_connections"),
            Self::Requests | Self::RequestShare(_) => Some("too_many_requests"),
            Self::Responses | Self::ResponseShare => Some("too_much_to_send"),
        }
    }
}

pub(super) struct Gate<S, A> {
    host_check: HostCheck,
    authenticator: Arc<A>,
    requests: Pool,
    draining: CancellationToken,
    /// Messages that are read although they are over a limit.
    overflow: Pool,
    /// Pending response data in KiB.
    responses: Pool,
    min_free_response_kib: usize,
    service: S,
    refusals: AuditThrottle,
}

impl<S: Service, A: Authenticator> Gate<S, A> {
    pub(super) fn new(host_check: HostCheck, options: &HttpOptions, service: S, authenticator: Arc<A>) -> Self {
        Self {
            host_check,
            authenticator,
            requests: Pool::new(options.max_requests, options.principals),
            draining: options.drain.clone(),
            overflow: Pool::new(MAX_OVERFLOW_READS, options.principals),
            responses: Pool::new(options.max_response_bytes >> 10, options.principals),
            min_free_response_kib: MIN_FREE_RESPONSE_KIB.min(options.max_response_bytes >> 11),
            service,
            refusals: AuditThrottle::default(),
        }
    }

    pub(super) fn host_check(&self) -> &HostCheck {
        &self.host_check
    }

    /// Waits until no request is in progress.
    pub(super) async fn wait_until_idle(&self) {
        self.requests.wait_until_unused().await;
    }

    /// Admits a request, with a slot unless it needs none.
    fn admit(&self, request: &Request, peer: &Peer, principal: &Principal) -> Result<Option<RequestSlot>, Limit> {
        if self.draining.is_cancelled() && !resumes_stream(request) {
            return Err(Limit::ShuttingDown);
        }
        if peer.is_over_limit() {
            return Err(Limit::Connections);
        }
        peer.authenticate(principal).map_err(|full| match full {
            Full::Pool => Limit::Connections,
            Full::Share(share) => Limit::ConnectionShare(share),
        })?;
        if only_listens(request) {
            return Ok(None);
        }
        if self.responses.available(principal) < self.min_free_response_kib {
            return Err(Limit::Responses);
        }
        match self.requests.try_acquire(principal) {
            Ok(permit) => Ok(Some(RequestSlot::new(permit))),
            Err(Full::Pool) => Err(Limit::Requests),
            Err(Full::Share(share)) => Err(Limit::RequestShare(share)),
        }
    }

    /// Reads a message that is over a limit. Returns it if it contains no request, and the id of the request otherwise.
    async fn read_overflow(&self, request: Request, principal: &Principal) -> Result<(Request, Permit), Option<Id>> {
        let (parts, body) = request.into_parts();
        if body.size_hint().lower() > MAX_OVERFLOW_BYTES as u64 {
            return Err(None);
        }
        let permit = timeout(OVERFLOW_READ_TIMEOUT, self.overflow.acquire(principal)).await;
        let permit = permit.ok().flatten().ok_or(None)?;
        let body = timeout(OVERFLOW_READ_TIMEOUT, to_bytes(body, MAX_OVERFLOW_BYTES)).await;
        let body = body.ok().and_then(Result::ok).ok_or(None)?;
        let is_request = |message: &Result<Message, _>| {
            !matches!(message, Ok(Message::Response { .. } | Message::Notification { .. }))
        };
        match rpc::parse_all(&body) {
            Ok(Payload::Single(Message::Request { id, .. })) => Err(Some(id)),
            Ok(Payload::Batch(batch)) if batch.iter().any(is_request) => Err(None),
            Ok(Payload::Single(_) | Payload::Batch(_)) => Ok((Request::from_parts(parts, Body::from(body)), permit)),
            Err(_) => Err(None),
        }
    }

    /// Refuses a request because of a limit, with the time of the next attempt.
    fn busy(&self, limit: Limit) -> Response {
        self.audit_limit(limit);
        failure::with_retry_after(refuse(StatusCode::SERVICE_UNAVAILABLE, &limit.message(), "try again shortly"))
    }

    /// The same as a JSON-RPC error.
    fn busy_over_mcp(&self, limit: Limit, id: Option<&Id>) -> Response {
        self.audit_limit(limit);
        let response = rpc::response(id, Err(failure::busy(&limit.message())));
        failure::with_retry_after((StatusCode::SERVICE_UNAVAILABLE, axum::Json(response)).into_response())
    }

    /// Replaces a response for which there is no memory until its client has read it.
    fn replace(&self, response: &Response, method: &Method, limit: Limit) -> Response {
        match response.extensions().get::<ResponseTo>() {
            Some(ResponseTo { id, is_read_only: true }) => self.busy_over_mcp(limit, Some(id)),
            Some(ResponseTo { id, is_read_only: false }) => {
                self.audit_limit(limit);
                let lost = Err(failure::render(response_lost()));
                axum::Json(rpc::response(Some(id), lost)).into_response()
            }
            None if *method == Method::GET => self.busy(limit),
            None => {
                self.audit_limit(limit);
                let (_, body) = failure::render_http(response_lost());
                (StatusCode::INSUFFICIENT_STORAGE, axum::Json(body)).into_response()
            }
        }
    }

    fn audit_limit(&self, limit: Limit) {
        if let Some(outcome) = limit.outcome() {
            self.audit(AuditKind::Refused, outcome);
        }
    }

    /// Records a refusal, at most one per second.
    fn audit(&self, kind: AuditKind, outcome: &'static str) {
        if let Some(event) = self.refusals.admit(AuditEvent::new(kind, outcome)) {
            self.service.record(event);
        }
    }

    /// Forwards a request if it passes all checks. Probes of `/health` have no principal.
    pub(super) async fn pass<F: Future<Output = Response>>(
        &self,
        request: Request,
        next: impl FnOnce(Request, Option<Admitted>) -> F,
    ) -> Response {
        if !self.host_check.allow_host(request.uri(), request.headers()) {
            self.audit(AuditKind::Refused, "host");
            let hint = "use a loopback name, or add the name to `server.allowed_hosts` of the configuration";
            return refuse(StatusCode::FORBIDDEN, "the Host header is not a name of this server", hint);
        }
        if request.headers().get_all(header::ORIGIN).iter().any(|origin| !self.host_check.allow_origin(origin)) {
            self.audit(AuditKind::Refused, "origin");
            let hint = "add the page's host to `server.allowed_hosts` of the configuration";
            return refuse(StatusCode::FORBIDDEN, "pages of this Origin may not call this server", hint);
        }
        // Probes carry no token, and must get a response when the server is at its busiest.
        if request.uri().path() == "/health" {
            return next(request, None).await;
        }
        let Some(peer) = request.extensions().get::<Peer>().cloned() else {
            return refuse(StatusCode::FORBIDDEN, "the connection of this request is unknown", "connect again");
        };
        let principal = match self.authenticator.authenticate(request.headers(), &peer) {
            Ok(principal) => principal,
            Err(denial) => {
                self.audit(denial.kind, denial.outcome);
                return denial.response;
            }
        };
        let (request, slot, _overflow) = match self.admit(&request, &peer, &principal) {
            Ok(slot) => (request, slot, None),
            Err(limit) if !request.uri().path().starts_with("/mcp") => return self.busy(limit),
            Err(limit) => match self.read_overflow(request, &principal).await {
                Ok((request, permit)) => (request, None, Some(permit)),
                Err(id) => return self.busy_over_mcp(limit, id.as_ref()),
            },
        };
        let method = request.method().clone();
        let admitted = Admitted { principal: self.service.principal(principal.clone()), slot: slot.clone() };
        let response = next(request, Some(admitted)).await;
        let kib = u32::try_from(response.body().size_hint().lower() >> 10).unwrap_or(u32::MAX);
        match self.responses.try_acquire_many(&principal, kib) {
            Ok(memory) => response.map(|body| Body::new(CountedBody { body, permits: Arc::new((slot, memory)) })),
            Err(Full::Pool) => self.replace(&response, &method, Limit::Responses),
            Err(Full::Share(_)) => self.replace(&response, &method, Limit::ResponseShare),
        }
    }
}

/// The gate as a layer of the router.
pub(super) async fn pass<S: Service, A: Authenticator>(
    State(gate): State<Arc<Gate<S, A>>>,
    request: Request,
    next: Next,
) -> Response {
    let forward = |mut request: Request, admitted: Option<Admitted>| {
        if let Some(Admitted { principal, slot }) = admitted {
            request.extensions_mut().insert(principal);
            slot.map(|slot| request.extensions_mut().insert(slot));
        }
        next.run(request)
    };
    gate.pass(request, forward).await
}

/// Whether a request opens a stream on which its client only listens. The limit for connections bounds those, so they
/// take no slot.
fn only_listens(request: &Request) -> bool {
    request.method() == Method::GET && request.uri().path().starts_with("/mcp")
}

/// Whether a request resumes the event stream of a call whose connection broke.
fn resumes_stream(request: &Request) -> bool {
    only_listens(request) && request.headers().contains_key("last-event-id")
}

/// The failure for a request that ran although its response is lost. A client that repeats the request without knowing
/// this would run it twice.
fn response_lost() -> Failure {
    let message = "the request ran, but its response is lost: too much response data waits to be read by clients";
    Failure::new(Kind::ResourceLimit, message)
        .with("may_have_run", "true")
        .hint("check whether the request had an effect before you repeat it")
        .hint("request less data at a time")
}

/// A body that keeps the slot of its request and its memory until it is sent or dropped.
struct CountedBody {
    body: Body,
    permits: Permits,
}

type Permits = Arc<(Option<RequestSlot>, Permit)>;

/// Bytes that wait to be written, with their permits: hyper drops the body before its last bytes are written.
struct CountedBytes {
    bytes: Bytes,
    _permits: Permits,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let permits = &self.permits;
        let count = |bytes| Bytes::from_owner(CountedBytes { bytes, _permits: Arc::clone(permits) });
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(count))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
