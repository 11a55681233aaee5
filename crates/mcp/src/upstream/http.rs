//! Streamable HTTP: a POST for every message, the response as JSON or as an event stream.
//!
//! Each call reads its own response. In the legacy era a server may use a session, and may lose it. The session is then
//! reopened once, and the rejected call, which cannot have run, is sent again. Messages that belong to no call arrive on a
//! separate stream (`notification_stream`).

pub(super) mod headers;
mod notification_stream;

use ringfence_core::sync::{Mutex, RwLock};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use axum::body::Bytes;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use self::headers::HeaderParameters;
pub(super) use self::notification_stream::read_notifications;
use super::connection::Connection;
use super::era::Era;
use super::error::{EndReason, UpstreamError};
use super::event_parser::EventParser;
use super::event_stream;
use super::handshake;
use super::large_message_slots::{MAX_RAW_BYTES, SizeLimit};
use super::received::ReceivedMessage;
use super::remote::{self, RemoteServer};
use super::transport::OutgoingMessage;

const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_HEADER: HeaderName = HeaderName::from_static("last-event-id");
const BOTH_TYPES: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const EVENTS_TYPE: HeaderValue = HeaderValue::from_static("text/event-stream");
const JSON_TYPE: HeaderValue = HeaderValue::from_static("application/json");

/// Maximum size of the body of an error status, in which a JSON-RPC error is searched.
const MAX_ERROR_BODY_BYTES: usize = 64 * 1024;
/// Maximum number of times that the broken stream of a call is resumed.
const MAX_RESUMES: usize = 8;
const RETRY_DELAY: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(30);
/// Limits for reading the rest of a stream after the response, so that its connection can be reused.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_DRAIN_BYTES: usize = 64 * 1024;
const SESSION_DELETE_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) struct Http {
    server: RemoteServer,
    session: Mutex<Session>,
    /// One call reopens the session, the others wait.
    reopening: tokio::sync::Mutex<()>,
    /// The number of sessions opened so far.
    opened_sessions: watch::Sender<u64>,
    header_parameters: RwLock<HeaderParameters>,
    /// The last status that was not a success, or 0.
    last_error_status: AtomicU16,
}

#[derive(Default, Clone)]
struct Session {
    id: Option<HeaderValue>,
    /// The negotiated legacy version.
    version: Option<HeaderValue>,
}

/// The outcome of a POST.
enum PostOutcome {
    Done,
    /// The server does not know the session; nothing ran.
    SessionLost,
}

impl Http {
    pub(super) fn new(server: RemoteServer) -> Self {
        Self {
            server,
            session: Mutex::default(),
            reopening: tokio::sync::Mutex::default(),
            opened_sessions: watch::Sender::new(0),
            header_parameters: RwLock::default(),
            last_error_status: AtomicU16::new(0),
        }
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock()
    }

    pub(super) fn read_timeout(&self) -> Duration {
        self.server.read_timeout
    }

    /// The last status that was not a success, if any.
    pub(super) fn last_error_status(&self) -> Option<u16> {
        Some(self.last_error_status.load(Ordering::Relaxed)).filter(|status| *status != 0)
    }

    pub(super) fn set_era(&self, era: &Era) {
        if !era.is_modern() {
            self.session().version = headers::version(era);
        }
    }

    /// Stores which arguments of these tools must be sent as headers.
    pub(super) fn set_header_parameters(&self, tools: &[Value]) {
        *self.header_parameters.write() = headers::header_parameters(tools);
    }

    pub(super) fn headers(&self, method: &str, params: Option<&Value>, era: Option<&Era>) -> HeaderMap {
        match era {
            Some(era) if era.is_modern() => {
                let header_parameters = self.header_parameters.read();
                headers::for_request(method, params, era, &header_parameters)
            }
            _ => HeaderMap::new(),
        }
    }

    fn request(&self, method: Method, session: &Session) -> RequestBuilder {
        let mut headers = self.server.headers.clone();
        if let Some(id) = &session.id {
            headers.insert(SESSION_HEADER, id.clone());
        }
        if let Some(version) = &session.version {
            headers.insert(VERSION_HEADER, version.clone());
        }
        self.server.client.request(method, self.server.url.clone()).headers(headers)
    }

    /// Posts a message. For a request this takes until the response is received, or cannot be received any more.
    pub(super) async fn send(
        &self,
        connection: &Arc<Connection>,
        message: OutgoingMessage,
    ) -> Result<(), UpstreamError> {
        let body = Bytes::from(message.body);
        for _ in 0..2 {
            let opened_sessions = *self.opened_sessions.borrow();
            let session = if message.opens_session { Session::default() } else { self.session().clone() };
            let had_session = session.id.is_some();
            let request = self.request(Method::POST, &session).headers(message.headers.clone());
            let request = request.header(ACCEPT, BOTH_TYPES).header(CONTENT_TYPE, JSON_TYPE).body(body.clone());
            let response = match message.id {
                Some(_) => request.send().await,
                None => request.timeout(self.server.timeout).send().await,
            };
            let response = response.map_err(remote::exchange_error)?;
            connection.record_activity();
            if message.opens_session && response.status().is_success() {
                self.session().id = response.headers().get(SESSION_HEADER).cloned();
            }
            match self.handle_response(connection, message.id, had_session, response).await? {
                PostOutcome::Done => return Ok(()),
                PostOutcome::SessionLost => self.reopen_session(connection, opened_sessions).await?,
            }
        }
        Err(UpstreamError::closed(false, "the server lost its session again right after it was reopened"))
    }

    async fn handle_response(
        &self,
        connection: &Arc<Connection>,
        id: Option<u64>,
        had_session: bool,
        response: Response,
    ) -> Result<PostOutcome, UpstreamError> {
        let status = response.status();
        if !status.is_success() {
            self.last_error_status.store(status.as_u16(), Ordering::Relaxed);
            return handle_error_status(connection, id, had_session, response).await;
        }
        // The body is ignored if no response is expected, or if it will arrive on another stream.
        let Some(id) = id.filter(|_| status != StatusCode::ACCEPTED) else { return Ok(PostOutcome::Done) };
        if remote::has_content_type(&response, "text/event-stream") {
            self.read_event_stream(connection, id, response).await?;
            return Ok(PostOutcome::Done);
        }
        match read_response(connection, id, response).await.map_err(remote::exchange_error)? {
            Err(reason) => connection.receive_oversized(&[], &[], Some(id), reason),
            Ok(response) => {
                if !connection.receive(&response, Some(id)) || connection.is_pending(id) {
                    return Err(UpstreamError::closed(true, "the response of the server does not belong to the call"));
                }
            }
        }
        Ok(PostOutcome::Done)
    }

    /// Reads the stream of a call until its response, and resumes it if it breaks.
    async fn read_event_stream(
        &self,
        connection: &Arc<Connection>,
        id: u64,
        response: Response,
    ) -> Result<(), UpstreamError> {
        let mut parser = EventParser::default();
        let mut response = response;
        for _ in 0..=MAX_RESUMES {
            // A broken stream is handled like one that ended.
            while let Ok(true) = event_stream::read_chunk(connection, &mut response, &mut parser, Some(id)).await {
                if !connection.is_pending(id) {
                    connection.spawn(drain(response));
                    return Ok(());
                }
            }
            let Some(last) = parser.last_id().and_then(|last| HeaderValue::from_str(last).ok()) else { break };
            parser.reset();
            tokio::time::sleep(
                parser.retry().unwrap_or(Duration::from_secs(1)).clamp(*RETRY_DELAY.start(), *RETRY_DELAY.end()),
            )
            .await;
            match self.open_event_stream(Some(last)).await {
                Ok(resumed) if resumed.status().is_success() => response = resumed,
                _ => break,
            }
        }
        Err(UpstreamError::closed(true, "the stream ended before the response"))
    }

    /// Opens an event stream that is not the response to a POST.
    async fn open_event_stream(&self, last: Option<HeaderValue>) -> Result<Response, reqwest::Error> {
        let mut request = self.request(Method::GET, &self.session().clone()).header(ACCEPT, EVENTS_TYPE);
        if let Some(last) = last {
            request = request.header(LAST_EVENT_HEADER, last);
        }
        request.send().await
    }

    /// Reopens the session, unless another call has done so since the given number of sessions was opened.
    async fn reopen_session(&self, connection: &Arc<Connection>, opened_sessions: u64) -> Result<(), UpstreamError> {
        let _guard = self.reopening.lock().await;
        if *self.opened_sessions.borrow() != opened_sessions {
            return Ok(());
        }
        *self.session() = Session::default();
        let initialize = Box::pin(handshake::initialize(connection));
        let opened = tokio::time::timeout(self.server.timeout, initialize).await;
        let reason = match opened {
            Ok(Ok((era, _))) if connection.era.get().is_none_or(|negotiated| *negotiated == era) => {
                self.opened_sessions.send_modify(|count| *count += 1);
                return Ok(());
            }
            Ok(Ok(_)) => "the server uses another protocol version now".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the server did not respond in time".to_owned(),
        };
        let reason = format!("the server lost the session, and a new one cannot be opened: {reason}");
        connection.close(EndReason::Lost(reason.clone()));
        Err(UpstreamError::closed(false, reason))
    }

    /// Deletes the session at the server, in the background.
    pub(super) fn close(&self, tasks: &TaskTracker) {
        let session = std::mem::take(&mut *self.session());
        if session.id.is_none() {
            return;
        }
        let delete = self.request(Method::DELETE, &session).timeout(SESSION_DELETE_TIMEOUT);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            tasks.spawn_on(
                async move {
                    let _ = delete.send().await;
                },
                &runtime,
            );
        }
    }
}

/// Handles a status that is not a success: a lost session, a JSON-RPC error in the body, or a failure.
async fn handle_error_status(
    connection: &Arc<Connection>,
    id: Option<u64>,
    had_session: bool,
    response: Response,
) -> Result<PostOutcome, UpstreamError> {
    let status = response.status();
    if status == StatusCode::NOT_FOUND && had_session {
        return Ok(PostOutcome::SessionLost);
    }
    let is_about_caller = matches!(status.as_u16(), 401 | 403 | 407 | 429);
    if !is_about_caller && remote::has_content_type(&response, "application/json") {
        let body = remote::read_body(response, MAX_ERROR_BODY_BYTES).await.ok().flatten().unwrap_or_default();
        let error = serde_json::from_slice::<Value>(&body).ok();
        let message = error.as_ref().and_then(|error| error.get("error")?.get("message")?.as_str());
        // Some servers respond to an unknown session with 400, although the specification requires 404.
        if had_session && status == StatusCode::BAD_REQUEST && message.is_some_and(mentions_session) {
            return Ok(PostOutcome::SessionLost);
        }
        if let Some(id) = id
            && message.is_some()
            && connection.receive(&body.as_slice().into(), Some(id))
            && !connection.is_pending(id)
        {
            return Ok(PostOutcome::Done);
        }
    }
    Err(remote::status_error(status))
}

/// Reads a response that is not a stream. The inner error says why it is rejected.
async fn read_response(
    connection: &Connection,
    id: u64,
    mut response: Response,
) -> Result<Result<ReceivedMessage<'static>, UpstreamError>, reqwest::Error> {
    let mut limit = SizeLimit::default();
    let length = response.content_length().and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
    if length > MAX_RAW_BYTES {
        return Ok(Err(UpstreamError::TooLarge));
    }
    connection.update_limit(&mut limit, length, Some(id)).await;
    if length > limit.max_bytes() {
        return Ok(Err(limit.error()));
    }
    let mut body = Vec::new();
    if limit.is_large() {
        body.reserve_exact(length);
    }
    while let Some(chunk) = response.chunk().await? {
        connection.update_limit(&mut limit, body.len() + chunk.len(), Some(id)).await;
        if body.len() + chunk.len() > limit.max_bytes() || matches!(limit, SizeLimit::Denied) {
            return Ok(Err(limit.error()));
        }
        if body.len() + chunk.len() > length {
            limit.reserve(&mut body);
        }
        body.extend_from_slice(&chunk);
    }
    let slot = limit.take_slot();
    if slot.is_some() {
        body.shrink_to_fit();
    }
    Ok(Ok(ReceivedMessage::owned(body, slot)))
}

fn mentions_session(message: &str) -> bool {
    message.to_ascii_lowercase().contains("session")
}

async fn drain(mut response: Response) {
    let rest = async {
        let mut bytes = 0;
        while let Ok(Some(chunk)) = response.chunk().await {
            bytes += chunk.len();
            if bytes > MAX_DRAIN_BYTES {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, rest).await;
}
