//! Tells the service manager how this process stands: a datagram to `$NOTIFY_SOCKET`, see `sd_notify(3)`.
//!
//! Where there is none, nothing is told. That a message does not arrive is no reason to fail.

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub(crate) struct ServiceManager {
    link: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    pub(crate) fn find() -> Self {
        let link = std::env::var_os("NOTIFY_SOCKET").and_then(|address| open(&address));
        let text = |name| std::env::var(name).ok();
        let watchdog = watchdog(text("WATCHDOG_USEC"), text("WATCHDOG_PID")).filter(|_| link.is_some());
        Self { link, watchdog }
    }

    pub(crate) fn is_ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}"));
    }

    pub(crate) fn is_stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// Says again and again that this process is alive, until `end`.
    pub(crate) async fn keep_awake(&self, end: &CancellationToken) {
        self.keep_awake_while(end, || true).await;
    }

    /// The same, but says nothing while it is not so.
    pub(crate) async fn keep_awake_while(&self, end: &CancellationToken, is_awake: impl Fn() -> bool) {
        let Some(period) = self.watchdog else { return };
        while tokio::time::timeout(period / 2, end.cancelled()).await.is_err() {
            if is_awake() {
                self.tell("WATCHDOG=1");
            }
        }
    }

    fn tell(&self, message: &str) {
        if let Some((socket, address)) = &self.link {
            let _ = socket.send_to_addr(message.as_bytes(), address);
        }
    }
}

/// A path, or with `@` a name of the abstract namespace.
fn open(address: &OsString) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] if !name.is_empty() => SocketAddr::from_abstract_name(name).ok()?,
        [b'/', ..] => SocketAddr::from_pathname(address).ok()?,
        _ => return None,
    };
    let socket = UnixDatagram::unbound().ok()?;
    // A manager that does not read is not waited for.
    socket.set_nonblocking(true).ok()?;
    Some((socket, address))
}

/// How often this process has to say that it is alive, if it has.
fn watchdog(period_us: Option<String>, pid: Option<String>) -> Option<Duration> {
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
    fn a_path_and_an_abstract_name_are_both_heard() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("ringfence-notify-{}", std::process::id());
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (socket, address) in
            [(UnixDatagram::bind(&path).unwrap(), path.into_os_string()), (by_name, format!("@{name}").into())]
        {
            let manager = ServiceManager { link: open(&address), watchdog: None };
            manager.is_ready("at work");
            assert_eq!(received(&socket), "READY=1\nSTATUS=at work");
            manager.is_stopping();
            assert_eq!(received(&socket), "STOPPING=1");
        }
        assert!(open(&"relative".into()).is_none() && open(&"@".into()).is_none());
    }

    #[test]
    fn a_watchdog_of_another_process_is_not_ours() {
        let own = std::process::id().to_string();
        let period = Some(Duration::from_secs(2));
        assert_eq!(watchdog(Some("2000000".into()), None), period);
        assert_eq!(watchdog(Some("2000000".into()), Some(own)), period);
        assert_eq!(watchdog(Some("2000000".into()), Some("1".into())), None);
        assert_eq!(watchdog(Some("0".into()), None), None);
        assert_eq!(watchdog(None, None), None);
    }

    #[test]
    fn it_says_that_it_is_alive_until_it_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let name = format!("ringfence-watchdog-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let link = open(&format!("@{name}").into());
        let manager = ServiceManager { link, watchdog: Some(Duration::from_millis(4)) };
        let end = CancellationToken::new();
        let ends = end.clone();
        let heard = std::thread::spawn(move || {
            let heard = [received(&socket), received(&socket)];
            ends.cancel();
            heard
        });
        runtime.block_on(manager.keep_awake(&end));
        assert_eq!(heard.join().unwrap(), ["WATCHDOG=1", "WATCHDOG=1"]);
    }

    #[test]
    fn one_that_hangs_does_not_say_that_it_is_alive() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let name = format!("ringfence-hangs-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let manager =
            ServiceManager { link: open(&format!("@{name}").into()), watchdog: Some(Duration::from_millis(2)) };
        let (end, asked) = (CancellationToken::new(), std::cell::Cell::new(0));
        let hangs = || {
            asked.set(asked.get() + 1);
            if asked.get() == 3 {
                end.cancel();
            }
            false
        };
        runtime.block_on(manager.keep_awake_while(&end, hangs));
        assert_eq!(asked.get(), 3);
        assert_eq!(socket.recv(&mut [0; 10]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
}
