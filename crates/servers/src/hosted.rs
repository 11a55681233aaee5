//! A running server: its streams, how it ends, and its end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio_util::task::AbortOnDropHandle;

use super::bare::{Bare, BareStreams};
use super::shared::Lodger;
use super::tail::Tail;
use crate::server_sandbox::{Cell, Ended, Inmate, InmateHandle};

/// For a clean end, before everything is killed.
const GRACE: Duration = Duration::from_secs(5);

/// A running server. Dropped, everything in its sandbox is killed, and all it had is freed.
pub struct Hosted {
    place: Place,
    memory_limit: Option<u64>,
    tail: Arc<Tail>,
    streams: Option<(ServerInput, ServerOutput)>,
    _stderr: AbortOnDropHandle<()>,
}

enum Place {
    Alone(Cell, InmateHandle),
    /// In a sandbox with others.
    Lodging(Lodger),
    /// On the host, because its entry says so.
    Bare(Bare),
}

/// What the server reads.
#[derive(Debug)]
pub struct ServerInput(Sender);

/// What the server writes.
#[derive(Debug)]
pub struct ServerOutput(Receiver);

/// What a server holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of all in its sandbox, where that is counted.
    pub memory_bytes: Option<u64>,
    pub memory_limit_bytes: Option<u64>,
    /// Where that is counted.
    pub processes: Option<u64>,
}

impl Hosted {
    pub(crate) fn alone(cell: Cell, inmate: Inmate, memory_limit: u64, tail: Arc<Tail>) -> Self {
        let handle = inmate.handle();
        cell.live_for(&handle);
        let Inmate { stdin, stdout, stderr, .. } = inmate;
        Self::new(Place::Alone(cell, handle), Some(memory_limit), tail, (stdin, stdout, stderr))
    }

    pub(crate) fn lodging(lodger: Lodger, inmate: Inmate, memory_limit: u64, tail: Arc<Tail>) -> Self {
        let Inmate { stdin, stdout, stderr, .. } = inmate;
        Self::new(Place::Lodging(lodger), Some(memory_limit), tail, (stdin, stdout, stderr))
    }

    pub(crate) fn bare(bare: Bare, streams: BareStreams) -> Self {
        let BareStreams { stdin, stdout, stderr } = streams;
        Self::new(Place::Bare(bare), None, Arc::default(), (stdin, stdout, stderr))
    }

    fn new(place: Place, memory_limit: Option<u64>, tail: Arc<Tail>, streams: (Sender, Receiver, Receiver)) -> Self {
        let (stdin, stdout, stderr) = streams;
        let reader = Arc::clone(&tail);
        let stderr = AbortOnDropHandle::new(tokio::spawn(async move { reader.read(stderr).await }));
        let streams = Some((ServerInput(stdin), ServerOutput(stdout)));
        Self { place, memory_limit, tail, streams, _stderr: stderr }
    }

    /// Its input and output, once.
    pub fn take_streams(&mut self) -> Option<(ServerInput, ServerOutput)> {
        self.streams.take()
    }

    /// Waits until its process has ended.
    pub async fn ended(&self) -> Ended {
        match &self.place {
            Place::Alone(_, process) => process.ended().await,
            Place::Lodging(lodger) => lodger.ended().await,
            Place::Bare(bare) => bare.ended().await,
        }
    }

    /// The last lines that it wrote to standard error, 500 at most.
    pub fn stderr_tail(&self) -> Vec<String> {
        self.tail.lines_so_far()
    }

    pub fn usage(&self) -> Usage {
        let memory_bytes = match &self.place {
            Place::Alone(cell, _) => cell.memory_bytes(),
            Place::Lodging(lodger) => lodger.cell().and_then(Cell::memory_bytes),
            Place::Bare(_) => None,
        };
        Usage { memory_bytes, memory_limit_bytes: self.memory_limit, processes: None }
    }

    /// By which a person finds its sandbox: the number of its first process on the host.
    pub fn sandbox_id(&self) -> String {
        match &self.place {
            Place::Alone(cell, _) => cell.id(),
            Place::Lodging(lodger) => lodger.cell().map(Cell::id).unwrap_or_default(),
            Place::Bare(bare) => bare.id(),
        }
    }

    /// Ends it: politely for five seconds, then by force. Afterwards nothing of it is left.
    ///
    /// Whoever has taken its input should have closed it before.
    pub async fn stop(self) {
        let Self { place, streams, .. } = self;
        drop(streams);
        match place {
            Place::Alone(cell, process) => {
                cell.signal(&process, Signal::TERM);
                let _ = tokio::time::timeout(GRACE, process.ended()).await;
                cell.end().await;
            }
            Place::Lodging(lodger) => lodger.leave(GRACE).await,
            Place::Bare(bare) => {
                bare.signal(Signal::TERM);
                if tokio::time::timeout(GRACE, bare.ended()).await.is_err() {
                    bare.signal(Signal::KILL);
                    bare.ended().await;
                }
            }
        }
    }
}

impl AsyncWrite for ServerInput {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl AsyncRead for ServerOutput {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}
