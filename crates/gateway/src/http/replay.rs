//! Event streams that a client can take up again where its connection broke.
//!
//! The call goes on in a task of its own and what it has to say is kept, within bounds, for whoever comes back with the
//! id of the last event that it has seen. A call for which nobody comes back ends.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use futures_util::{Stream, stream};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::patience::{SIGN_OF_LIFE, Wait};

/// How long a client may be away.
const ABSENCE: Duration = Duration::from_secs(30);

/// Of one client. Beyond these, streams cannot be taken up again.
const MOST_STREAMS: usize = 8;

/// What is kept of one stream; the oldest goes first.
const MOST_BYTES: usize = 256 << 10;

/// What is kept of all streams of all clients. Beyond it no other can be taken up again.
const MOST_BYTES_OF_ALL: usize = 64 << 20;

/// That much of it there is.
static BYTES_OF_ALL: AtomicUsize = AtomicUsize::new(0);

/// The streams of one client.
#[derive(Default)]
pub(crate) struct Replays(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    last: u64,
    streams: VecDeque<Arc<Recording>>,
}

/// What one stream has said so far.
struct Recording {
    number: u64,
    events: Mutex<Events>,
    /// How many events there have been, and whether more will come.
    progress: watch::Sender<(usize, bool)>,
    readers: watch::Sender<usize>,
    task: Mutex<Option<AbortOnDropHandle<()>>>,
}

#[derive(Default)]
struct Events {
    /// The number of the first that is still kept.
    first: usize,
    kept: VecDeque<Bytes>,
    bytes: usize,
}

impl Events {
    fn keep(&mut self, event: Bytes) {
        self.bytes += event.len();
        BYTES_OF_ALL.fetch_add(event.len(), Ordering::Relaxed);
        self.kept.push_back(event);
    }

    fn drop_first(&mut self) {
        let dropped = self.kept.pop_front().map_or(0, |event| event.len());
        BYTES_OF_ALL.fetch_sub(dropped, Ordering::Relaxed);
        self.bytes -= dropped;
        self.first += 1;
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        BYTES_OF_ALL.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Replays {
    /// Lets a call go on by itself, and gives the stream of what it says; or gives it back, if there are too many.
    pub(super) fn record(&self, mut wait: Box<Wait>) -> Result<impl Stream<Item = Bytes> + Send + use<>, Box<Wait>> {
        let mut kept = lock(&self.0);
        if kept.streams.len() >= MOST_STREAMS || BYTES_OF_ALL.load(Ordering::Relaxed) >= MOST_BYTES_OF_ALL {
            return Err(wait);
        }
        kept.last += 1;
        let recording = Arc::new(Recording::new(kept.last));
        kept.streams.push_back(Arc::clone(&recording));
        drop(kept);
        let reader = Arc::clone(&recording).read_from(0);
        let speaker = Arc::clone(&recording);
        let mut readers = recording.readers.subscribe();
        let all = Arc::downgrade(&self.0);
        let task = tokio::spawn(async move {
            speaker.say(&format!("retry: {RETRY_MS}\ndata: \n\n"));
            loop {
                tokio::select! {
                    message = wait.message() => match message {
                        Some(message) => speaker.say(&format!("event: message\ndata: {message}\n\n")),
                        None => break,
                    },
                    () = abandoned(&mut readers) => break,
                }
            }
            // The call is over, and so is its hold on whatever it had.
            drop(wait);
            speaker.progress.send_modify(|progress| progress.1 = true);
            // Whoever might come back for the rest has so long.
            sleep(ABSENCE).await;
            let _ = readers.wait_for(|readers| *readers == 0).await;
            if let Some(all) = all.upgrade() {
                lock(&all).streams.retain(|stream| stream.number != speaker.number);
            }
        });
        *lock(&recording.task) = Some(AbortOnDropHandle::new(task));
        Ok(reader)
    }

    /// The rest of a stream, from after the event of this id.
    pub(super) fn resume(&self, last_event: &str) -> Option<impl Stream<Item = Bytes> + Send + use<>> {
        let (number, event) = last_event.split_once('-')?;
        let (number, event): (u64, usize) = (number.parse().ok()?, event.parse().ok()?);
        let recording = lock(&self.0).streams.iter().find(|stream| stream.number == number).cloned()?;
        Some(recording.read_from(event.checked_add(1)?))
    }
}

/// After which a client may come back.
const RETRY_MS: u64 = 1000;

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

    fn say(&self, event: &str) {
        let number = {
            let mut events = lock(&self.events);
            let number = events.first + events.kept.len();
            let event = Bytes::from(format!("id: {}-{number}\n{event}", self.number));
            events.keep(event);
            while events.bytes > MOST_BYTES && events.kept.len() > 1 {
                events.drop_first();
            }
            number
        };
        self.progress.send_modify(|progress| progress.0 = number + 1);
    }

    fn event(&self, number: usize) -> Option<Bytes> {
        let events = lock(&self.events);
        number.checked_sub(events.first).and_then(|index| events.kept.get(index)).cloned()
    }

    fn read_from(self: Arc<Self>, number: usize) -> impl Stream<Item = Bytes> + Send + use<> {
        let progress = self.progress.subscribe();
        let reader = Reader::new(self);
        stream::unfold((reader, progress, number), |(reader, mut progress, number)| async move {
            loop {
                let (said, is_done) = *progress.borrow_and_update();
                if number < said {
                    // One that is not kept any more ends the stream: what follows would make no sense.
                    let event = reader.0.event(number)?;
                    return Some((event, (reader, progress, number + 1)));
                }
                if is_done {
                    return None;
                }
                let changed = tokio::time::timeout(SIGN_OF_LIFE, progress.changed());
                match changed.await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return None,
                    Err(_) => {
                        let sign = Bytes::from_static(b": still running\n\n");
                        return Some((sign, (reader, progress, number)));
                    }
                }
            }
        })
    }
}

/// Somebody who reads, for as long as they do.
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

async fn abandoned(readers: &mut watch::Receiver<usize>) {
    loop {
        let _ = readers.wait_for(|readers| *readers == 0).await;
        if tokio::time::timeout(ABSENCE, readers.wait_for(|readers| *readers > 0)).await.is_err() {
            return;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a message looks like on a stream that cannot be taken up again.
pub(super) fn event(message: &Value) -> Bytes {
    // JSON as serde writes it holds no line break, so it is one line of an event.
    format!("event: message\ndata: {message}\n\n").into()
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use futures_util::StreamExt;
    use serde_json::json;

    use super::*;
    use crate::client::Outlet;
    use crate::in_flight::InFlight;

    fn call(replays: &Replays, seconds: u64) -> (impl Stream<Item = Bytes> + use<>, Outlet) {
        let (outlet, messages) = Outlet::new();
        let answer = Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            (StatusCode::OK, json!({"id": 1}))
        });
        let wait = Wait::new(answer, Some(messages), InFlight::default().enter(None));
        (replays.record(Box::new(wait)).ok().unwrap(), outlet)
    }

    async fn text(stream: impl Stream<Item = Bytes>) -> String {
        let chunks: Vec<Bytes> = stream.collect().await;
        String::from_utf8(chunks.concat()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_comes_back_hears_the_rest() {
        let replays = Replays::default();
        let (stream, outlet) = call(&replays, 20);
        let mut stream = Box::pin(stream);
        assert!(stream.next().await.unwrap().starts_with(b"id: 1-0\nretry: "));
        outlet.notify("a", None);
        assert!(stream.next().await.unwrap().starts_with(b"id: 1-1\n"));
        drop(stream);
        outlet.notify("b", None);
        drop(outlet);
        tokio::time::sleep(Duration::from_secs(25)).await;
        let rest = text(replays.resume("1-1").unwrap()).await;
        assert!(rest.contains("id: 1-2") && rest.contains("\"b\"") && rest.contains("{\"id\":1}"), "{rest}");
        assert!(!rest.contains("\"a\""), "{rest}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_for_which_nobody_comes_back_ends() {
        let replays = Replays::default();
        let (stream, outlet) = call(&replays, 10_000);
        drop(stream);
        tokio::time::sleep(ABSENCE + Duration::from_secs(1)).await;
        assert!(!outlet.is_open());
        tokio::time::sleep(ABSENCE + Duration::from_secs(1)).await;
        assert!(lock(&replays.0).streams.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_kept_of_a_call_that_was_heard_to_its_end() {
        let replays = Replays::default();
        let (stream, outlet) = call(&replays, 1);
        drop(outlet);
        text(stream).await;
        assert_eq!(lock(&replays.0).streams.len(), 1);
        assert!(replays.resume("1-0").is_some(), "the end may have been lost on the way");
        tokio::time::sleep(ABSENCE + Duration::from_secs(1)).await;
        assert!(lock(&replays.0).streams.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn streams_are_bounded_in_number_and_size() {
        let replays = Replays::default();
        let streams: Vec<_> = (0..MOST_STREAMS).map(|_| call(&replays, 100)).collect();
        let (_outlet, messages) = Outlet::new();
        let answer = Box::pin(async { (StatusCode::OK, json!(1)) });
        let wait = Wait::new(answer, Some(messages), InFlight::default().enter(None));
        assert!(replays.record(Box::new(wait)).is_err());
        drop(streams);
        let recording = Recording::new(9);
        for _ in 0..10 {
            recording.say(&"x".repeat(MOST_BYTES / 4));
        }
        let events = lock(&recording.events);
        assert!(events.bytes <= MOST_BYTES && events.first > 5 && events.kept.len() < 5);
    }

    #[tokio::test]
    async fn an_unknown_place_is_nobodys() {
        let replays = Replays::default();
        for id in ["", "1", "1-1", "x-y", "1-18446744073709551615"] {
            assert!(replays.resume(id).is_none(), "{id}");
        }
    }
}
