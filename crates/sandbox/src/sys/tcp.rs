//! The kernel's byte counters of a TCP connection.

use std::ffi::c_int;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd as _};

use rustix::io::{Errno, Result, ioctl_fionread};

use super::check;

/// The bytes that processes have read from and written to a connection since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpProgress {
    pub read: u64,
    pub written: u64,
}

/// Returns the byte counters of a connected TCP socket.
pub fn tcp_progress(socket: impl AsFd) -> Result<TcpProgress> {
    let socket = socket.as_fd();
    // SAFETY: `tcp_info` is plain data, for which all zeroes is a valid value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).map_err(|_| Errno::INVAL)?;
    let (level, name): (c_int, c_int) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: both pointers are to local variables of the type and length that are passed.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut info).cast(), &raw mut length) };
    check(result.into())?;
    // An older kernel returns a shorter structure.
    if (length as usize) < offset_of!(libc::tcp_info, tcpi_dsack_dups) {
        return Err(Errno::OPNOTSUPP);
    }
    let sent = info.tcpi_bytes_sent.saturating_sub(info.tcpi_bytes_retrans);
    Ok(TcpProgress {
        read: info.tcpi_bytes_received.saturating_sub(ioctl_fionread(socket)?),
        written: sent + u64::from(info.tcpi_notsent_bytes),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn counters_match_the_bytes_read_and_written() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let progress = |read, written| TcpProgress { read, written };
        assert_eq!(tcp_progress(&server).unwrap(), progress(0, 0));
        client.write_all(&[b'x'; 100]).unwrap();
        server.read_exact(&mut [0; 40]).unwrap();
        assert_eq!(tcp_progress(&server).unwrap(), progress(40, 0));
        // The peer does not read, so a part stays in the buffer of this side.
        server.set_nonblocking(true).unwrap();
        let mut written = 0;
        while let Ok(count) = server.write(&[b'y'; 1 << 12]) {
            written += count as u64;
        }
        assert_eq!(tcp_progress(&server).unwrap(), progress(40, written));
        let copy = server.try_clone().unwrap();
        drop(client);
        assert_eq!(tcp_progress(&copy).unwrap().read, 40);
    }

    #[test]
    fn unix_sockets_have_no_counters() {
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(tcp_progress(&socket).is_err());
    }
}
