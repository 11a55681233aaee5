//! The connections of an endpoint: accepted here, served by the worker, and kept when it dies.
//!
//! Nothing is read of what a client says. A worker that dies has left word what is to become of each (`handover`).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{ErrorKind, Result};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use ringfence_sandbox::{TcpProgress, tcp_progress};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use ringfence_mcp::handover::{Channel, Fate, Hello, Report, Will, Wills};

/// How long to rest when no connection can be accepted, for want of descriptors.
const REST: Duration = Duration::from_millis(100);

/// What is read of a connection before it is closed: what a client has sent and nobody will read would take the last
/// words from it.
const UNREAD: usize = 1 << 20;

/// Of a connection that no worker has seen yet.
const UNTOUCHED: Will<'static> =
    Will { goes_on_at: Some(TcpProgress { read: 0, written: 0 }), words: &[], said_at: [0, 0] };

pub(crate) struct Custody {
    /// Until nobody is let in any more.
    listener: Option<tokio::net::TcpListener>,
    address: SocketAddr,
    wills: Wills,
    /// By their numbers.
    held: Vec<Option<TcpStream>>,
    /// Numbers of those that no worker has.
    waiting: VecDeque<u32>,
}

impl Custody {
    /// Within a runtime.
    pub(crate) fn new(listener: TcpListener) -> Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (address, wills) = (listener.local_addr()?, Wills::new()?);
        Ok(Self { listener: Some(listener), address, wills, held: Vec::new(), waiting: VecDeque::new() })
    }

    /// The two ends of the channel to a worker that is to be started; the second is its own.
    pub(crate) fn open_channel(&self) -> Result<(Channel, OwnedFd)> {
        let (ours, theirs) = ringfence_mcp::handover::pair()?;
        Hello::say(&ours, &self.wills, self.address)?;
        Ok((Channel::new(ours)?, theirs))
    }

    /// Lets nobody in any more.
    pub(crate) fn close(&mut self) {
        self.listener = None;
    }

    /// Gives a worker what waits and what comes, for as long as it lives. Cancelled, it has lost nothing.
    pub(crate) async fn serve(&mut self, channel: &Channel) -> Infallible {
        loop {
            if let Err(error) = self.serve_next(channel).await {
                tracing::debug!("connections wait: {error}");
                tokio::time::sleep(REST).await;
            }
        }
    }

    async fn serve_next(&mut self, channel: &Channel) -> Result<()> {
        let next = self.waiting.front().copied();
        let given = async {
            let number = next.unwrap_or_default();
            match self.held.get(number as usize) {
                Some(Some(stream)) => channel.give(number, stream.as_fd()).await,
                _ => Ok(()),
            }
        };
        let accepted = async {
            match &self.listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        // Whatever waits, the worker is heard: it may be waiting for that before it takes more.
        tokio::select! {
            report = channel.hear() => match report?.ok_or(ErrorKind::BrokenPipe)? {
                Report::Closed(number) => self.release(number),
                Report::NotTaken(number) => self.waiting.push_back(number),
            },
            given = given, if next.is_some() => {
                given?;
                self.waiting.pop_front();
            }
            accepted = accepted, if next.is_none() => self.take(accepted?.0.into_std()?)?,
        }
        Ok(())
    }

    fn take(&mut self, stream: TcpStream) -> Result<()> {
        let free = self.held.iter().position(Option::is_none);
        let place = free.unwrap_or(self.held.len());
        let number = u32::try_from(place).map_err(|_| ErrorKind::OutOfMemory)?;
        self.wills.write(number, UNTOUCHED)?;
        match self.held.get_mut(place) {
            Some(free) => *free = Some(stream),
            None => self.held.push(Some(stream)),
        }
        self.waiting.push_back(number);
        Ok(())
    }

    fn release(&mut self, number: u32) {
        if let Some(held) = self.held.get_mut(number as usize) {
            *held = None;
        }
    }

    /// Does as a worker that is dead has left word: what can go on waits for the next.
    pub(crate) fn settle(&mut self, channel: &Channel) {
        while let Some(report) = channel.try_hear() {
            if let Report::Closed(number) = report {
                self.release(number);
            }
        }
        self.waiting.clear();
        for (place, held) in self.held.iter_mut().enumerate() {
            let Ok(number) = u32::try_from(place) else { continue };
            let Some(stream) = held else { continue };
            match tcp_progress(&*stream).map(|progress| self.wills.read(number, progress)) {
                Ok(Fate::GoesOn) => self.waiting.push_back(number),
                Ok(Fate::Ends { words }) => {
                    end(stream, &words);
                    *held = None;
                }
                Err(_) => *held = None,
            }
        }
    }
}

/// Waits for nothing: what finds no room in the socket is not said.
fn end(stream: &TcpStream, words: &[u8]) {
    let _ = send(stream, words, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    let _ = stream.shutdown(Shutdown::Write);
    let (mut unread, mut buffer) = (UNREAD, [0; 16 << 10]);
    while let Ok((read @ 1.., _)) = recv(stream, &mut buffer[..], RecvFlags::DONTWAIT) {
        unread = unread.saturating_sub(read);
        if unread == 0 {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rustix::net::sockopt::set_socket_send_buffer_size;

    use super::*;
    use ringfence_mcp::handover::pair;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn custody() -> Custody {
        Custody::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).unwrap()
    }

    #[tokio::test]
    async fn a_worker_is_heard_also_while_it_takes_nothing() {
        let mut custody = custody();
        let (ours, theirs) = pair().unwrap();
        // Room for a few messages.
        set_socket_send_buffer_size(&ours, 1).unwrap();
        set_socket_send_buffer_size(&theirs, 1).unwrap();
        let (ours, theirs) = (Channel::new(ours).unwrap(), Channel::new(theirs).unwrap());
        let clients: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(custody.address).unwrap()).collect();
        let worker = async {
            for _ in 0..1000 {
                theirs.report(Report::Closed(9999)).await.unwrap();
            }
            let mut taken = Vec::new();
            while taken.len() < clients.len() {
                taken.push(theirs.take().await.unwrap().unwrap().0);
            }
            taken
        };
        let taken = tokio::select! {
            taken = tokio::time::timeout(PATIENCE, worker) => taken.expect("they wait for each other"),
            never = custody.serve(&ours) => match never {},
        };
        assert_eq!(taken, (0..100).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_connection_is_given_until_it_was_taken_and_makes_room_for_another_when_it_is_closed() {
        let mut custody = custody();
        let (ours, theirs) = pair().unwrap();
        let (ours, theirs) = (Channel::new(ours).unwrap(), Channel::new(theirs).unwrap());
        let address = custody.address;
        let worker = async {
            for _ in 0..3 {
                let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
                for report in [Report::NotTaken(0), Report::Closed(0)] {
                    let (number, stream) = theirs.take().await.unwrap().unwrap();
                    assert_eq!((number, stream.is_some()), (0, true));
                    drop(stream);
                    theirs.report(report).await.unwrap();
                }
                // Closed for the client as well.
                let mut nothing = [0];
                let end = tokio::io::AsyncReadExt::read(&mut client, &mut nothing);
                assert_eq!(tokio::time::timeout(PATIENCE, end).await.unwrap().unwrap(), 0);
            }
        };
        tokio::select! {
            () = worker => {}
            never = custody.serve(&ours) => match never {},
        }
        assert_eq!(custody.held.iter().flatten().count(), 0);
    }
}
