//! Streamable HTTP: a POST for every message, the answer as JSON or as a stream of events.
//!
//! A call reads its own answer. In the legacy era there may be a session, which a server can lose: it is
//! opened again once, and the call that found out, which surely has not run, is sent again. What the server
//! says outside of any call comes on a stream of its own (`unasked`).

pub(super) mod headers;
mod unasked;

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

use self::headers::Promoted;
pub(super) use self::unasked::hear;
use super::era::Era;
use super::error::{EndReason, UpstreamError};
use super::events::Parser;
use super::handshake;
use super::large_message_slots::{MAX_RAW_BYTES, Room};
use super::link::Parcel;
use super::raw::Received;
use super::remote::{self, Place};
use super::rpc::Connection;
use super::stream;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
const BOTH_TYPES: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const EVENTS_TYPE: HeaderValue = HeaderValue::from_static("text/event-stream");
const JSON_TYPE: HeaderValue = HeaderValue::from_static("application/json");

/// Enough of a refusal to find a JSON-RPC error in it.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;
/// How often a broken stream is taken up again for one call.
const MAX_RESUMES: usize = 8;
const RETRY: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(30);
/// A stream that has given its answer is read on for so long, so that its connection can be used again.
const DRAIN: Duration = Duration::from_secs(1);
const DRAIN_BYTES: usize = 64 * 1024;
const FAREWELL: Duration = Duration::from_secs(3);

pub(super) struct Http {
    place: Place,
    session: Mutex<Session>,
    /// One opens the session again, the others wait.
    reopening: tokio::sync::Mutex<()>,
    /// Counts the sessions.
    generation: watch::Sender<u64>,
    promoted: RwLock<Promoted>,
    /// The last status that was no success.
    refusal: AtomicU16,
}

#[derive(Default, Clone)]
struct Session {
    id: Option<HeaderValue>,
    /// The legacy version that was agreed on.
    version: Option<HeaderValue>,
}

/// What became of a message that was posted.
enum Posted {
    Done,
    /// The server does not know the session: nothing ran.
    SessionLost,
}

impl Http {
    pub(super) fn new(place: Place) -> Self {
        Self {
            place,
            session: Mutex::default(),
            reopening: tokio::sync::Mutex::default(),
            generation: watch::Sender::new(0),
            promoted: RwLock::default(),
            refusal: AtomicU16::new(0),
        }
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock()
    }

    pub(super) fn read_timeout(&self) -> Duration {
        self.place.read_timeout
    }

    /// The last status that was no success, if any.
    pub(super) fn refusal(&self) -> Option<u16> {
        Some(self.refusal.load(Ordering::Relaxed)).filter(|status| *status != 0)
    }

    pub(super) fn agreed(&self, era: &Era) {
        if !era.is_modern() {
            self.session().version = headers::version(era);
        }
    }

    /// Remembers which arguments the tools want as headers.
    pub(super) fn learn(&self, tools: &[Value]) {
        *self.promoted.write() = headers::promoted(tools);
    }

    pub(super) fn headers(&self, method: &str, params: Option<&Value>, era: Option<&Era>) -> HeaderMap {
        match era {
            Some(era) if era.is_modern() => {
                let promoted = self.promoted.read();
                headers::of_request(method, params, era, &promoted)
            }
            _ => HeaderMap::new(),
        }
    }

    fn request(&self, method: Method, session: &Session) -> RequestBuilder {
        let mut headers = self.place.headers.clone();
        if let Some(id) = &session.id {
            headers.insert(SESSION, id.clone());
        }
        if let Some(version) = &session.version {
            headers.insert(VERSION, version.clone());
        }
        self.place.client.request(method, self.place.url.clone()).headers(headers)
    }

    /// Posts a message. For a request this lasts until its answer has come, or cannot come any more.
    pub(super) async fn deliver(&self, connection: &Arc<Connection>, parcel: Parcel) -> Result<(), UpstreamError> {
        let body = Bytes::from(parcel.body);
        for _ in 0..2 {
            let generation = *self.generation.borrow();
            let session = if parcel.opens_session { Session::default() } else { self.session().clone() };
            let had_session = session.id.is_some();
            let request = self.request(Method::POST, &session).headers(parcel.headers.clone());
            let request = request.header(ACCEPT, BOTH_TYPES).header(CONTENT_TYPE, JSON_TYPE).body(body.clone());
            let response = match parcel.id {
                Some(_) => request.send().await,
                None => request.timeout(self.place.timeout).send().await,
            };
            let response = response.map_err(remote::broken)?;
            connection.heard();
            if parcel.opens_session && response.status().is_success() {
                self.session().id = response.headers().get(SESSION).cloned();
            }
            match self.take(connection, parcel.id, had_session, response).await? {
                Posted::Done => return Ok(()),
                Posted::SessionLost => self.reopen(connection, generation).await?,
            }
        }
        Err(UpstreamError::lost(false, "the server keeps losing its session"))
    }

    async fn take(
        &self,
        connection: &Arc<Connection>,
        id: Option<u64>,
        had_session: bool,
        response: Response,
    ) -> Result<Posted, UpstreamError> {
        let status = response.status();
        if !status.is_success() {
            self.refusal.store(status.as_u16(), Ordering::Relaxed);
            return refused(connection, id, had_session, response).await;
        }
        // Whatever is said to a message that wants no answer, or with the promise to answer elsewhere.
        let Some(id) = id.filter(|_| status != StatusCode::ACCEPTED) else { return Ok(Posted::Done) };
        if remote::is_type(&response, "text/event-stream") {
            self.follow(connection, id, response).await?;
            return Ok(Posted::Done);
        }
        match answer(connection, id, response).await.map_err(remote::broken)? {
            Err(why) => connection.receive_oversized(&[], &[], Some(id), why),
            Ok(answer) => {
                if !connection.receive(&answer, Some(id)) || connection.awaits(id) {
                    return Err(UpstreamError::lost(true, "the server answered, but not to the call"));
                }
            }
        }
        Ok(Posted::Done)
    }

    /// Reads the stream of a call up to its answer.
    async fn follow(&self, connection: &Arc<Connection>, id: u64, response: Response) -> Result<(), UpstreamError> {
        let mut parser = Parser::default();
        let mut response = response;
        for _ in 0..=MAX_RESUMES {
            // A stream that breaks is as one that ends.
            while let Ok(true) = stream::pump(connection, &mut response, &mut parser, Some(id)).await {
                if !connection.awaits(id) {
                    connection.spawn(drain(response));
                    return Ok(());
                }
            }
            let Some(last) = parser.last_id().and_then(|last| HeaderValue::from_str(last).ok()) else { break };
            parser.restart();
            tokio::time::sleep(parser.retry().unwrap_or(Duration::from_secs(1)).clamp(*RETRY.start(), *RETRY.end()))
                .await;
            match self.events(Some(last)).await {
                Ok(resumed) if resumed.status().is_success() => response = resumed,
                _ => break,
            }
        }
        Err(UpstreamError::lost(true, "the stream ended before the answer came"))
    }

    /// A stream of events that is not the answer to a message.
    async fn events(&self, last: Option<HeaderValue>) -> Result<Response, reqwest::Error> {
        let mut request = self.request(Method::GET, &self.session().clone()).header(ACCEPT, EVENTS_TYPE);
        if let Some(last) = last {
            request = request.header(LAST_EVENT, last);
        }
        request.send().await
    }

    /// Opens the session anew, unless somebody else has done so since.
    async fn reopen(&self, connection: &Arc<Connection>, generation: u64) -> Result<(), UpstreamError> {
        let _one_at_a_time = self.reopening.lock().await;
        if *self.generation.borrow() != generation {
            return Ok(());
        }
        *self.session() = Session::default();
        let initialize = Box::pin(handshake::initialize(connection));
        let opened = tokio::time::timeout(self.place.timeout, initialize).await;
        let why = match opened {
            Ok(Ok((era, _))) if connection.era.get().is_none_or(|agreed| *agreed == era) => {
                self.generation.send_modify(|generation| *generation += 1);
                return Ok(());
            }
            Ok(Ok(_)) => "it speaks another version now".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it did not answer in time".to_owned(),
        };
        let why = format!("the server lost the session, and a new one could not be had: {why}");
        connection.close(EndReason::Lost(why.clone()));
        Err(UpstreamError::lost(false, why))
    }

    /// Tells the server that its session is not needed any more.
    pub(super) fn close(&self, tasks: &TaskTracker) {
        let session = std::mem::take(&mut *self.session());
        if session.id.is_none() {
            return;
        }
        let farewell = self.request(Method::DELETE, &session).timeout(FAREWELL);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            tasks.spawn_on(
                async move {
                    let _ = farewell.send().await;
                },
                &runtime,
            );
        }
    }
}

/// Finds out what a status other than success says.
async fn refused(
    connection: &Arc<Connection>,
    id: Option<u64>,
    had_session: bool,
    response: Response,
) -> Result<Posted, UpstreamError> {
    let status = response.status();
    if status == StatusCode::NOT_FOUND && had_session {
        return Ok(Posted::SessionLost);
    }
    let is_about_the_caller = matches!(status.as_u16(), 401 | 403 | 407 | 429);
    if !is_about_the_caller && remote::is_type(&response, "application/json") {
        let body = remote::body(response, MAX_REFUSAL_BYTES).await.ok().flatten().unwrap_or_default();
        let error = serde_json::from_slice::<Value>(&body).ok();
        let message = error.as_ref().and_then(|error| error.get("error")?.get("message")?.as_str());
        // Servers that do not follow the specification here answer 400 to a session they do not know.
        if had_session && status == StatusCode::BAD_REQUEST && message.is_some_and(names_session) {
            return Ok(Posted::SessionLost);
        }
        if let Some(id) = id
            && message.is_some()
            && connection.receive(&body.as_slice().into(), Some(id))
            && !connection.awaits(id)
        {
            return Ok(Posted::Done);
        }
    }
    Err(remote::denied(status))
}

/// The whole of an answer that is no stream, or why it is not taken.
async fn answer(
    connection: &Connection,
    id: u64,
    mut response: Response,
) -> Result<Result<Received<'static>, UpstreamError>, reqwest::Error> {
    let mut room = Room::default();
    let length = response.content_length().and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
    if length > MAX_RAW_BYTES {
        return Ok(Err(UpstreamError::TooLarge));
    }
    connection.make_room(&mut room, length, Some(id)).await;
    if length > room.limit() {
        return Ok(Err(room.excess()));
    }
    let mut whole = Vec::new();
    if room.is_large() {
        whole.reserve_exact(length);
    }
    while let Some(chunk) = response.chunk().await? {
        connection.make_room(&mut room, whole.len() + chunk.len(), Some(id)).await;
        if whole.len() + chunk.len() > room.limit() || matches!(room, Room::Denied) {
            return Ok(Err(room.excess()));
        }
        if whole.len() + chunk.len() > length {
            room.prepare(&mut whole);
        }
        whole.extend_from_slice(&chunk);
    }
    let slot = room.leave();
    if slot.is_some() {
        whole.shrink_to_fit();
    }
    Ok(Ok(Received::own(whole, slot)))
}

fn names_session(message: &str) -> bool {
    message.to_ascii_lowercase().contains("session")
}

async fn drain(mut response: Response) {
    let rest = async {
        let mut bytes = 0;
        while let Ok(Some(chunk)) = response.chunk().await {
            bytes += chunk.len();
            if bytes > DRAIN_BYTES {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(DRAIN, rest).await;
}
