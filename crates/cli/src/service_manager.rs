//! Reports the state of this process to the service manager, with datagrams to `$NOTIFY_SOCKET` (`sd_notify(3)`).
//!
//! Without a service manager nothing is sent. A message that cannot be sent is not an error.

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub(crate) struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// Interval in which the manager expects a message.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    pub(crate) fn find() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|address| open(&address));
        let text = |name| std::env::var(name).ok();
        let watchdog = watchdog_interval(text("WATCHDOG_USEC"), text("WATCHDOG_PID")).filter(|_| socket.is_some());
        Self { socket, watchdog }
    }

    pub(crate) fn notify_ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    pub(crate) fn notify_stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Sends watchdog messages until `end`.
    pub(crate) async fn feed_watchdog(&self, end: &CancellationToken) {
        self.feed_watchdog_while(end, || true).await;
    }

    /// Sends watchdog messages until `end`, but only while this process is responsive.
    pub(crate) async fn feed_watchdog_while(&self, end: &CancellationToken, is_responsive: impl Fn() -> bool) {
        let Some(period) = self.watchdog else { return };
        while tokio::time::timeout(period / 2, end.cancelled()).await.is_err() {
            if is_responsive() {
                self.send("WATCHDOG=1");
            }
        }
    }

    fn send(&self, message: &str) {
        if let Some((socket, address)) = &self.socket {
            let _ = socket.send_to_addr(message.as_bytes(), address);
        }
    }
}

/// Opens a socket for an address: a path, or `@` and a name of the abstract namespace.
fn open(address: &OsString) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] if !name.is_empty() => SocketAddr::from_abstract_name(name).ok()?,
        [b'/', ..] => SocketAddr::from_pathname(address).ok()?,
        _ => return None,
    };
    let socket = UnixDatagram::unbound().ok()?;
    // Do not wait for a manager that does not read.
    socket.set_nonblocking(true).ok()?;
    Some((socket, address))
}

/// Returns the interval in which the manager expects a message of this process, if any.
fn watchdog_interval(period_us: Option<String>, pid: Option<String>) -> Option<Duration> {
    let is_ours = pid.is_none_or(|pid| pid == std::process::id().to_string());
    let period_us = period_us?.parse().ok().filter(|period| *period > 0)?;
    is_ours.then(|| Duration::from_micros(period_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 200];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[test]
    fn messages_reach_paths_and_abstract_names() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("ringfence-notify-{}", std::process::id());
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (socket, address) in
            [(UnixDatagram::bind(&path).unwrap(), path.into_os_string()), (by_name, format!("@{name}").into())]
        {
            let manager = ServiceManager { socket: open(&address), watchdog: None };
            manager.notify_ready("serving");
            assert_eq!(received(&socket), "READY=1\nSTATUS=serving");
            manager.notify_stopping();
            assert_eq!(received(&socket), "STOPPING=1");
        }
        assert!(open(&"relative".into()).is_none() && open(&"@".into()).is_none());
    }

    #[test]
    fn watchdog_of_another_process_is_ignored() {
        let own = std::process::id().to_string();
        let period = Some(Duration::from_secs(2));
        assert_eq!(watchdog_interval(Some("2000000".into()), None), period);
        assert_eq!(watchdog_interval(Some("2000000".into()), Some(own)), period);
        assert_eq!(watchdog_interval(Some("2000000".into()), Some("1".into())), None);
        assert_eq!(watchdog_interval(Some("0".into()), None), None);
        assert_eq!(watchdog_interval(None, None), None);
    }

    #[test]
    fn watchdog_messages_are_sent_until_the_end() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let name = format!("ringfence-watchdog-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let manager_socket = open(&format!("@{name}").into());
        let manager = ServiceManager { socket: manager_socket, watchdog: Some(Duration::from_millis(4)) };
        let end = CancellationToken::new();
        let cancel = end.clone();
        let messages = std::thread::spawn(move || {
            let messages = [received(&socket), received(&socket)];
            cancel.cancel();
            messages
        });
        runtime.block_on(manager.feed_watchdog(&end));
        assert_eq!(messages.join().unwrap(), ["WATCHDOG=1", "WATCHDOG=1"]);
    }

    #[test]
    fn hanging_process_sends_no_watchdog_messages() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let name = format!("ringfence-hanging-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let manager =
            ServiceManager { socket: open(&format!("@{name}").into()), watchdog: Some(Duration::from_millis(2)) };
        let (end, checks) = (CancellationToken::new(), std::cell::Cell::new(0));
        let is_responsive = || {
            checks.set(checks.get() + 1);
            if checks.get() == 3 {
                end.cancel();
            }
            false
        };
        runtime.block_on(manager.feed_watchdog_while(&end, is_responsive));
        assert_eq!(checks.get(), 3);
        assert_eq!(socket.recv(&mut [0; 10]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
}
