//! Event streams that a client can resume after its connection broke.
//!
//! The call continues in a separate task, and its events are buffered within limits for a client that comes back with
//! the id of the last event that it has seen. A call ends if its client does not come back in time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use futures_util::{Stream, stream};
use ringfence_core::sync::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::pending_response::PendingResponse;

/// Time after which a client must be back.
const RESUME_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of resumable streams of one client.
const MAX_STREAMS: usize = 8;

/// Maximum size of the buffered events of one stream; the oldest are dropped first.
const MAX_STREAM_BYTES: usize = 256 << 10;

/// Maximum size of the buffered events of all clients. Beyond it, no further stream is resumable.
const MAX_TOTAL_BYTES: usize = 64 << 20;

/// The size of the buffered events of all clients.
static TOTAL_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Time after which a client should reconnect, sent as `retry`.
const RETRY_MS: u64 = 1000;

/// Time between comments on a silent stream: proxies and clients close connections that are silent for long.
pub(crate) const KEEP_ALIVE_PERIOD: Duration = Duration::from_secs(15);

/// The comment that keeps a silent stream open.
pub(crate) const KEEP_ALIVE: &[u8] = b": still running\n\n";

/// The resumable streams of one client.
#[derive(Default)]
pub(crate) struct Replays(Arc<Mutex<Streams>>);

#[derive(Default)]
struct Streams {
    last_number: u64,
    streams: VecDeque<Arc<Recording>>,
}

/// The events of one stream so far.
struct Recording {
    number: u64,
    events: Mutex<Events>,
    /// The number of events so far, and whether the stream is complete.
    progress: watch::Sender<(usize, bool)>,
    readers: watch::Sender<usize>,
    task: Mutex<Option<AbortOnDropHandle<()>>>,
}

#[derive(Default)]
struct Events {
    /// The number of the first event that is still buffered.
    first: usize,
    buffered: VecDeque<Bytes>,
    bytes: usize,
}

impl Events {
    fn push(&mut self, event: Bytes) {
        self.bytes += event.len();
        TOTAL_BYTES.fetch_add(event.len(), Ordering::Relaxed);
        self.buffered.push_back(event);
    }

    fn drop_first(&mut self) {
        let dropped = self.buffered.pop_front().map_or(0, |event| event.len());
        TOTAL_BYTES.fetch_sub(dropped, Ordering::Relaxed);
        self.bytes -= dropped;
        self.first += 1;
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        TOTAL_BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Replays {
    /// Lets a call continue in a task, and returns the stream of its events. Returns the call if a limit is reached.
    pub(crate) fn record(
        &self,
        mut pending: Box<PendingResponse>,
    ) -> Result<impl Stream<Item = Bytes> + Send + use<>, Box<PendingResponse>> {
        let mut streams = self.0.lock();
        if streams.streams.len() >= MAX_STREAMS || TOTAL_BYTES.load(Ordering::Relaxed) >= MAX_TOTAL_BYTES {
            return Err(pending);
        }
        streams.last_number += 1;
        let recording = Arc::new(Recording::new(streams.last_number));
        streams.streams.push_back(Arc::clone(&recording));
        drop(streams);
        let reader = Arc::clone(&recording).read_from(0);
        let recorder = Arc::clone(&recording);
        let mut readers = recording.readers.subscribe();
        let all_streams = Arc::downgrade(&self.0);
        let task = tokio::spawn(async move {
            recorder.push(&format!("retry: {RETRY_MS}\ndata: \n\n"));
            loop {
                tokio::select! {
                    message = pending.next() => match message {
                        Some(message) => recorder.push(&format!("event: message\ndata: {message}\n\n")),
                        None => break,
                    },
                    () = abandoned(&mut readers) => break,
                }
            }
            // Frees the slot of the request and everything else that the call has.
            drop(pending);
            recorder.progress.send_modify(|progress| progress.1 = true);
            // The client may still come back for the events that it missed.
            sleep(RESUME_TIMEOUT).await;
            let _ = readers.wait_for(|readers| *readers == 0).await;
            if let Some(all_streams) = all_streams.upgrade() {
                all_streams.lock().streams.retain(|stream| stream.number != recorder.number);
            }
        });
        *recording.task.lock() = Some(AbortOnDropHandle::new(task));
        Ok(reader)
    }

    /// Returns the events of a stream after the one with this id.
    pub(crate) fn resume(&self, last_event_id: &str) -> Option<impl Stream<Item = Bytes> + Send + use<>> {
        let (number, event) = last_event_id.split_once('-')?;
        let (number, event): (u64, usize) = (number.parse().ok()?, event.parse().ok()?);
        let recording = self.0.lock().streams.iter().find(|stream| stream.number == number).cloned()?;
        Some(recording.read_from(event.checked_add(1)?))
    }
}

impl Recording {
    fn new(number: u64) -> Self {
        Self {
            number,
            events: Mutex::default(),
            progress: watch::Sender::default(),
            readers: watch::Sender::default(),
            task: Mutex::default(),
        }
    }

    fn push(&self, event: &str) {
        let number = {
            let mut events = self.events.lock();
            let number = events.first + events.buffered.len();
            let event = Bytes::from(format!("id: {}-{number}\n{event}", self.number));
            events.push(event);
            while events.bytes > MAX_STREAM_BYTES && events.buffered.len() > 1 {
                events.drop_first();
            }
            number
        };
        self.progress.send_modify(|progress| progress.0 = number + 1);
    }

    fn event(&self, number: usize) -> Option<Bytes> {
        let events = self.events.lock();
        number.checked_sub(events.first).and_then(|index| events.buffered.get(index)).cloned()
    }

    fn read_from(self: Arc<Self>, number: usize) -> impl Stream<Item = Bytes> + Send + use<> {
        let progress = self.progress.subscribe();
        let reader = Reader::new(self);
        stream::unfold((reader, progress, number), |(reader, mut progress, number)| async move {
            loop {
                let (count, is_complete) = *progress.borrow_and_update();
                if number < count {
                    // A stream whose next event was dropped ends: the events after a gap would make no sense.
                    let event = reader.0.event(number)?;
                    return Some((event, (reader, progress, number + 1)));
                }
                if is_complete {
                    return None;
                }
                match tokio::time::timeout(KEEP_ALIVE_PERIOD, progress.changed()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return None,
                    Err(_) => return Some((Bytes::from_static(KEEP_ALIVE), (reader, progress, number))),
                }
            }
        })
    }
}

/// A client that reads a recording, counted until it stops.
struct Reader(Arc<Recording>);

impl Reader {
    fn new(recording: Arc<Recording>) -> Self {
        recording.readers.send_modify(|readers| *readers += 1);
        Self(recording)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.readers.send_modify(|readers| *readers -= 1);
    }
}

/// Ends once a stream has had no reader for too long.
async fn abandoned(readers: &mut watch::Receiver<usize>) {
    loop {
        let _ = readers.wait_for(|readers| *readers == 0).await;
        if tokio::time::timeout(RESUME_TIMEOUT, readers.wait_for(|readers| *readers > 0)).await.is_err() {
            return;
        }
    }
}

/// Encodes a message as an event of a stream that cannot be resumed.
pub(crate) fn event(message: &Value) -> Bytes {
    // serde writes JSON without line breaks, so it fits one `data` line.
    format!("event: message\ndata: {message}\n\n").into()
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use futures_util::StreamExt;
    use serde_json::json;

    use super::*;
    use crate::client::MessageSink;
    use crate::in_flight::InFlight;

    fn call(replays: &Replays, seconds: u64) -> (impl Stream<Item = Bytes> + use<>, MessageSink) {
        let (sink, messages) = MessageSink::new();
        let response = Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            (StatusCode::OK, json!({"id": 1}))
        });
        let pending = PendingResponse::new(response, Some(messages), InFlight::default().enter(None));
        (replays.record(Box::new(pending)).ok().unwrap(), sink)
    }

    async fn text(stream: impl Stream<Item = Bytes>) -> String {
        let chunks: Vec<Bytes> = stream.collect().await;
        String::from_utf8(chunks.concat()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn resumed_stream_continues_after_the_last_seen_event() {
        let replays = Replays::default();
        let (stream, sink) = call(&replays, 20);
        let mut stream = Box::pin(stream);
        assert!(stream.next().await.unwrap().starts_with(b"id: 1-0\nretry: "));
        sink.notify("a", None);
        assert!(stream.next().await.unwrap().starts_with(b"id: 1-1\n"));
        drop(stream);
        sink.notify("b", None);
        drop(sink);
        tokio::time::sleep(Duration::from_secs(25)).await;
        let rest = text(replays.resume("1-1").unwrap()).await;
        assert!(rest.contains("id: 1-2") && rest.contains("\"b\"") && rest.contains("{\"id\":1}"), "{rest}");
        assert!(!rest.contains("\"a\""), "{rest}");
    }

    #[tokio::test(start_paused = true)]
    async fn call_ends_if_its_client_does_not_come_back() {
        let replays = Replays::default();
        let (stream, sink) = call(&replays, 10_000);
        drop(stream);
        tokio::time::sleep(RESUME_TIMEOUT + Duration::from_secs(1)).await;
        assert!(!sink.is_open());
        tokio::time::sleep(RESUME_TIMEOUT + Duration::from_secs(1)).await;
        assert!(replays.0.lock().streams.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn complete_stream_is_dropped_after_the_resume_timeout() {
        let replays = Replays::default();
        let (stream, sink) = call(&replays, 1);
        drop(sink);
        text(stream).await;
        assert_eq!(replays.0.lock().streams.len(), 1);
        assert!(replays.resume("1-0").is_some(), "the last events may have been lost on the way");
        tokio::time::sleep(RESUME_TIMEOUT + Duration::from_secs(1)).await;
        assert!(replays.0.lock().streams.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn streams_are_bounded_in_number_and_size() {
        let replays = Replays::default();
        let streams: Vec<_> = (0..MAX_STREAMS).map(|_| call(&replays, 100)).collect();
        let (_sink, messages) = MessageSink::new();
        let response = Box::pin(async { (StatusCode::OK, json!(1)) });
        let pending = PendingResponse::new(response, Some(messages), InFlight::default().enter(None));
        assert!(replays.record(Box::new(pending)).is_err());
        drop(streams);
        let recording = Recording::new(9);
        for _ in 0..10 {
            recording.push(&"x".repeat(MAX_STREAM_BYTES / 4));
        }
        let events = recording.events.lock();
        assert!(events.bytes <= MAX_STREAM_BYTES && events.first > 5 && events.buffered.len() < 5);
    }

    #[tokio::test]
    async fn unknown_event_ids_resume_nothing() {
        let replays = Replays::default();
        for id in ["", "1", "1-1", "x-y", "1-18446744073709551615"] {
            assert!(replays.resume(id).is_none(), "{id}");
        }
    }
}
