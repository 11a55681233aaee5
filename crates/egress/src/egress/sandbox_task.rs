//! The task that accepts all connections of one sandbox, responds to its queries, and owns the tasks of its connections.
//!
//! A sandbox without connections has this one task and no buffer.

use std::io;
use std::net::{TcpListener as StdListener, UdpSocket as StdUdpSocket};
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use ringfence_core::sync::Mutex;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::MAX_LISTENERS;
use crate::context::Context;
use crate::decision::{Decision, Source};
use crate::proxy;
use crate::refusal::Refusal;
use crate::resolver::{self, Resolver};
use crate::transparent;

/// Maximum number of connections over the limit that receive a response; further ones are closed without one.
const MAX_REJECTIONS: usize = 32;
/// Number of consecutive failures after which a socket counts as lost.
const MAX_FAILURES: u32 = 50;
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The purpose of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Resolver,
    Proxy,
    Mirror,
    Transparent,
}

#[derive(Debug)]
struct Listener {
    socket: TcpListener,
    purpose: Purpose,
    failures: u32,
}

/// Listeners for transparent connections that the task has to add.
#[derive(Debug, Default)]
pub(super) struct AddedListeners {
    state: Mutex<AddedState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct AddedState {
    waiting: Vec<TcpListener>,
    /// The ports of all listeners for transparent connections, including those that wait.
    ports: Vec<u16>,
}

impl AddedListeners {
    /// Adds a listener for transparent connections. Must be called in a tokio runtime.
    pub(super) fn add(&self, listener: StdListener) -> io::Result<()> {
        let port = listener.local_addr()?.port();
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let mut state = self.state.lock();
        if state.ports.len() >= MAX_LISTENERS {
            return Err(io::Error::other("the sandbox has too many listeners"));
        }
        state.ports.push(port);
        state.waiting.push(listener);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    pub(super) fn ports(&self) -> Vec<u16> {
        self.state.lock().ports.clone()
    }
}

/// The sockets of one sandbox, and the tasks of its connections.
#[derive(Debug)]
pub(super) struct SandboxTask {
    context: Arc<Context>,
    resolver: Arc<Resolver>,
    datagrams: UdpSocket,
    datagram_failures: u32,
    listeners: Vec<Listener>,
    /// The index of the listener that is checked first. It changes, so that no listener starves the others.
    next_listener: usize,
    added: Arc<AddedListeners>,
    connections: JoinSet<()>,
    rejected: JoinSet<()>,
    resolver_connections: JoinSet<()>,
}

impl SandboxTask {
    pub(super) fn new(context: Arc<Context>, datagrams: StdUdpSocket, added: Arc<AddedListeners>) -> io::Result<Self> {
        datagrams.set_nonblocking(true)?;
        Ok(Self {
            resolver: Arc::new(Resolver::new(Arc::clone(&context))),
            context,
            datagrams: UdpSocket::from_std(datagrams)?,
            datagram_failures: 0,
            listeners: Vec::new(),
            next_listener: 0,
            added,
            connections: JoinSet::new(),
            rejected: JoinSet::new(),
            resolver_connections: JoinSet::new(),
        })
    }

    pub(super) fn add(&mut self, listener: StdListener, purpose: Purpose) -> io::Result<()> {
        if purpose == Purpose::Transparent {
            return self.added.add(listener);
        }
        listener.set_nonblocking(true)?;
        self.listeners.push(Listener { socket: TcpListener::from_std(listener)?, purpose, failures: 0 });
        Ok(())
    }

    /// Serves the sandbox. When this future is dropped, all connections are closed.
    pub(super) async fn run(mut self) {
        let added = Arc::clone(&self.added);
        loop {
            let is_datagram_socket_lost = self.datagram_failures > MAX_FAILURES;
            tokio::select! {
                Some(_) = self.connections.join_next() => {}
                Some(_) = self.rejected.join_next() => {}
                Some(_) = self.resolver_connections.join_next() => {}
                () = added.changed.notified() => self.take_added(),
                (index, accepted) = std::future::poll_fn(|context| poll_accept(&self.listeners, self.next_listener, context)) => {
                    self.next_listener = index + 1;
                    match accepted {
                        Ok(stream) => {
                            self.listeners[index].failures = 0;
                            self.serve(self.listeners[index].purpose, stream);
                        }
                        Err(_) => self.retry_listener(index).await,
                    }
                }
                ready = self.datagrams.readable(), if !is_datagram_socket_lost => {
                    if ready.and_then(|()| self.resolver.serve_datagrams(&self.datagrams)).is_ok() {
                        self.datagram_failures = 0;
                    } else {
                        self.datagram_failures += 1;
                        sleep(RETRY_DELAY).await;
                    }
                }
            }
        }
    }

    fn take_added(&mut self) {
        let waiting = std::mem::take(&mut self.added.state.lock().waiting);
        let new = waiting.into_iter().map(|socket| Listener { socket, purpose: Purpose::Transparent, failures: 0 });
        self.listeners.extend(new);
    }

    /// Waits after a failure: the host is out of descriptors, or the guest closed the connection before it was accepted.
    /// Removes a listener that fails repeatedly.
    async fn retry_listener(&mut self, index: usize) {
        self.listeners[index].failures += 1;
        if self.listeners[index].failures > MAX_FAILURES {
            self.listeners.remove(index);
        }
        sleep(RETRY_DELAY).await;
    }

    fn serve(&mut self, purpose: Purpose, stream: TcpStream) {
        if stream.set_nodelay(true).is_err() {
            return;
        }
        let context = Arc::clone(&self.context);
        let is_full = self.connections.len() >= context.limits.max_connections;
        match purpose {
            Purpose::Resolver => {
                if self.resolver_connections.len() < context.limits.max_resolver_connections {
                    let resolver = Arc::clone(&self.resolver);
                    let serve = async move { resolver::serve_connection(&resolver, stream).await };
                    self.resolver_connections.spawn(serve);
                }
            }
            Purpose::Proxy if !is_full => {
                let (from_client, to_client) = stream.into_split();
                self.connections.spawn(async move { proxy::serve_connection(&context, from_client, to_client).await });
            }
            Purpose::Proxy => {
                if self.rejected.len() < MAX_REJECTIONS {
                    let (from_client, to_client) = stream.into_split();
                    let reject = async move { proxy::reject_connection(&context, from_client, to_client).await };
                    self.rejected.spawn(reject);
                }
            }
            Purpose::Transparent => {
                let Ok(dialled) = stream.local_addr() else { return };
                if is_full {
                    let decision =
                        Decision { source: Source::Transparent, port: Some(dialled.port()), ..Decision::default() };
                    return context.record_refusal(decision, &Refusal::TooManyConnections);
                }
                let (from_client, to_client) = stream.into_split();
                let serve = async move {
                    transparent::serve_connection(&context, dialled, from_client, to_client).await;
                };
                self.connections.spawn(serve);
            }
            // There is no mirror: the connection is closed.
            Purpose::Mirror => {}
        }
    }
}

/// Accepts from the first listener that is ready, starting with `first`; returns its index.
fn poll_accept(
    listeners: &[Listener],
    first: usize,
    context: &mut TaskContext<'_>,
) -> Poll<(usize, io::Result<TcpStream>)> {
    for step in 0..listeners.len() {
        let index = (first + step) % listeners.len();
        if let Poll::Ready(accepted) = listeners[index].socket.poll_accept(context) {
            return Poll::Ready((index, accepted.map(|(stream, _)| stream)));
        }
    }
    Poll::Pending
}
