//! The launcher's side: serves the requests of one client at a time.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use super::protocol::{LauncherConfig, PROTOCOL, Reply, Request};
use super::sandboxes::Sandboxes;
use super::takeover_socket::TakeoverSocket;
use super::zygotes::{Launch, Zygotes};
use crate::error::Error;
use crate::protocol::Channel;
use crate::sys;
use crate::sys::SignalSet;
use ringfence_core::EgressSockets;

/// Maximum number of inits that isolate themselves at the same time.
const MAX_CONCURRENT_LAUNCHES: usize = 3;

/// Minimum time between removals of stale cgroups. Other launchers are seldom killed, and their cgroups cost little.
const STALE_CGROUP_INTERVAL: Duration = Duration::from_secs(60);

/// Serves requests until the client sends `End`, or the lease expires.
///
/// `library` is this crate as a shared library, for zygotes.
pub fn serve(socket: OwnedFd, library: &'static [u8]) -> Result<(), Error> {
    let children =
        SignalSet::new(&[Signal::CHILD]).block_to_signalfd().map_err(Error::setup("watch for child processes"))?;
    // In its own session, so that Ctrl-C in the client's terminal does not end it.
    let _ = rustix::process::setsid();
    sys::reset_ignored_signals();
    let mut server = Server {
        client: Some(Channel::from(socket)),
        takeover_socket: None,
        lease: Duration::ZERO,
        without_client_since: Instant::now(),
        sandboxes: Sandboxes::default(),
        launches: VecDeque::new(),
        stale_cgroups_removed_at: None,
        zygotes: Zygotes::new(library),
    };
    while server.handle_events(&children)? == Next::Continue {}
    Ok(())
}

/// Whether the server continues.
#[derive(PartialEq, Eq)]
enum Next {
    Continue,
    End,
}

struct Server {
    client: Option<Channel>,
    takeover_socket: Option<TakeoverSocket>,
    lease: Duration,
    without_client_since: Instant,
    sandboxes: Sandboxes,
    /// Launches that have begun, in the order of their requests.
    launches: VecDeque<Launch>,
    stale_cgroups_removed_at: Option<Instant>,
    zygotes: Zygotes,
}

/// A reply could not be sent. The client has ended, which the next poll shows.
struct ClientGone;

impl Server {
    /// Waits for events and handles them once.
    fn handle_events(&mut self, children: &OwnedFd) -> Result<Next, Error> {
        let mut timeout = self.sandboxes.check_limits();
        if self.client.is_none() {
            let remaining = self.lease.saturating_sub(self.without_client_since.elapsed());
            if remaining.is_zero() || self.takeover_socket.is_none() || self.sandboxes.is_empty() {
                return Ok(Next::End);
            }
            timeout = Some(timeout.map_or(remaining, |timeout| timeout.min(remaining)));
        }
        let mut watched = vec![PollFd::new(children, PollFlags::IN)];
        watched.extend(self.client.as_ref().map(|client| PollFd::new(client, PollFlags::IN)));
        watched.extend(self.takeover_socket.as_ref().map(|socket| PollFd::new(socket, PollFlags::IN)));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut watched, timeout.as_ref()) {
            Err(Errno::INTR) => return Ok(Next::Continue),
            result => result.map_err(Error::setup("wait for requests"))?,
        };
        let mut ready = watched.iter().map(PollFd::revents).collect::<Vec<_>>().into_iter();
        if ready.next().is_some_and(|events| !events.is_empty()) {
            let mut signals = [0; 1024];
            let _ = rustix::io::read(children, &mut signals);
            self.sandboxes.reap();
        }
        let events = self.client.as_ref().and_then(|_| ready.next()).unwrap_or(PollFlags::empty());
        // The client's last request is handled before a new client is accepted: it may be `End`.
        let next = if events.is_empty() { Next::Continue } else { self.handle_request() };
        // A dead client is dropped even if it has sent more requests, so that a waiting client can replace it.
        if events.contains(PollFlags::HUP) && self.client.is_some() {
            self.drop_client();
        }
        let is_connection_waiting = ready.next().is_some_and(|events| !events.is_empty());
        if next == Next::Continue && is_connection_waiting {
            self.accept_client();
        }
        Ok(next)
    }

    /// Accepts a new client if there is none. Otherwise closes the connection, so that the other side sees that the
    /// launcher is in use.
    fn accept_client(&mut self) {
        let accepted = self.takeover_socket.as_ref().and_then(TakeoverSocket::accept);
        if self.client.is_none() {
            self.client = accepted.map(Channel::from);
        }
    }

    fn drop_client(&mut self) {
        self.client = None;
        // No client waits for these sandboxes any more.
        self.launches.clear();
        self.without_client_since = Instant::now();
    }

    fn handle_request(&mut self) -> Next {
        let Some(client) = &self.client else { return Next::Continue };
        let Ok(Some((request, passed))) = client.receive::<Request>() else {
            self.drop_client();
            return Next::Continue;
        };
        let result = match request {
            Request::Launch { spec, warm, initial } => {
                let launch = self.zygotes.begin_launch(spec, warm, initial, passed);
                self.launches.push_back(launch);
                self.finish_launches().map(|()| Next::Continue)
            }
            // Replies must have the order of the requests.
            request => self.finish_all_launches().and_then(|()| self.respond(request, passed)),
        };
        // If the client has ended, the next poll shows that.
        result.unwrap_or(Next::Continue)
    }

    /// Finishes launches, oldest first, until another request has arrived and there is a free slot for it.
    fn finish_launches(&mut self) -> Result<(), ClientGone> {
        while !self.launches.is_empty() {
            let Some(client) = &self.client else { return Ok(()) };
            let mut watched = [PollFd::new(client, PollFlags::IN)];
            let has_request = poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0);
            if has_request && self.launches.len() < MAX_CONCURRENT_LAUNCHES {
                break;
            }
            self.finish_oldest_launch()?;
        }
        Ok(())
    }

    fn finish_all_launches(&mut self) -> Result<(), ClientGone> {
        while !self.launches.is_empty() {
            self.finish_oldest_launch()?;
        }
        Ok(())
    }

    fn finish_oldest_launch(&mut self) -> Result<(), ClientGone> {
        let Some(Launch { spec, sandbox, is_warm, initial }) = self.launches.pop_front() else { return Ok(()) };
        let Some(client) = &self.client else { return Ok(()) };
        let (sandbox, streams) = match sandbox.and_then(|sandbox| sandbox.finish(&spec)) {
            Ok(started) => started,
            Err(error) => return refuse(client, &error),
        };
        let pid = sandbox.pid().as_raw_nonzero().get();
        // Fails for example if this process has too many open files. The other sandboxes are not affected.
        let egress = streams.egress.map(EgressSockets::into_descriptors).unwrap_or_default();
        let (handover, passed) = match self.sandboxes.insert(sandbox, is_warm, egress) {
            Ok(inserted) => inserted,
            Err(error) => return refuse(client, &error),
        };
        if self.takeover_socket.is_none() {
            self.sandboxes.close_egress(pid);
        }
        if let Some((process, streams)) = initial {
            self.sandboxes.store_streams(pid, process, streams);
        }
        let borrowed: Vec<BorrowedFd<'_>> = passed.iter().map(AsFd::as_fd).collect();
        let sent = send(client, &Reply::Handover(handover), &borrowed);
        // Closed before the slow removal of cgroups: the guest can connect as long as any process has the sockets.
        drop(passed);
        sent?;
        if self.stale_cgroups_removed_at.is_none_or(|at| at.elapsed() > STALE_CGROUP_INTERVAL) {
            self.sandboxes.remove_stale_cgroups(pid);
            self.stale_cgroups_removed_at = Some(Instant::now());
        }
        Ok(())
    }

    fn respond(&mut self, request: Request, passed: Vec<OwnedFd>) -> Result<Next, ClientGone> {
        let Some(client) = &self.client else { return Ok(Next::Continue) };
        let sent = match request {
            Request::End => return Ok(Next::End),
            Request::Configure(config) => self.configure(config),
            Request::Adopt { protocol, .. } if protocol != PROTOCOL => {
                refuse(client, &Error::Protocol("the launcher has another protocol version"))
            }
            Request::Adopt { lease, .. } => {
                let sent = send(client, &Reply::Adopted { sandboxes: self.sandboxes.pids() }, &[]);
                if sent.is_ok() {
                    self.lease = lease;
                }
                sent
            }
            Request::WarmUp => send(client, &Reply::Zygote(self.zygotes.warm_up()), &[]),
            Request::StoreStreams { pid, process } => {
                self.sandboxes.store_streams(pid, process, passed);
                send(client, &Reply::Done, &[])
            }
            Request::StoreBackgroundStreams { pid } => {
                self.sandboxes.store_background_streams(pid, passed);
                send(client, &Reply::Done, &[])
            }
            Request::StoreEgressListener { pid } => {
                if self.takeover_socket.is_some() {
                    self.sandboxes.store_egress_listener(pid, passed);
                }
                send(client, &Reply::Done, &[])
            }
            Request::StoreCredentials { pid } => {
                if self.takeover_socket.is_some() {
                    self.sandboxes.store_credentials(pid, passed);
                }
                send(client, &Reply::Done, &[])
            }
            Request::Credentials { pid } => {
                let record: Vec<BorrowedFd<'_>> = self.sandboxes.credentials(pid).into_iter().collect();
                send(client, &Reply::Done, &record)
            }
            Request::TakeOver { pid } => match self.sandboxes.replace_owner(pid) {
                Ok((handover, passed)) => {
                    let passed: Vec<BorrowedFd<'_>> = passed.iter().map(AsFd::as_fd).collect();
                    send(client, &Reply::Handover(handover), &passed)
                }
                Err(error) => refuse(client, &error),
            },
            Request::Discard { pid } => {
                self.sandboxes.discard(pid);
                Ok(())
            }
            Request::HasExceededMemory { pid } => {
                let has_exceeded = self.sandboxes.has_exceeded_memory(pid);
                send(client, &Reply::HasExceededMemory { has_exceeded }, &[])
            }
            // `handle_request` handles it.
            Request::Launch { .. } => Ok(()),
        };
        sent.map(|()| Next::Continue)
    }

    fn configure(&mut self, config: LauncherConfig) -> Result<(), ClientGone> {
        let Some(client) = &self.client else { return Ok(()) };
        self.lease = config.lease;
        self.zygotes.configure(config.zygote);
        match config.listen.map(TakeoverSocket::bind).transpose() {
            Ok(socket) => {
                self.takeover_socket = socket;
                send(client, &Reply::Done, &[])
            }
            Err(error) => refuse(client, &error),
        }
    }
}

fn refuse(client: &Channel, error: &Error) -> Result<(), ClientGone> {
    let mut message = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    send(client, &Reply::Refused { message, hints: error.hints() }, &[])
}

fn send(client: &Channel, reply: &Reply, passed: &[BorrowedFd<'_>]) -> Result<(), ClientGone> {
    client.send(reply, passed).map_err(|_| ClientGone)
}
