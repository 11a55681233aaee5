//! What a host offers on its own addresses, and a sandbox must not reach: web servers, a UDP port, a socket.
//!
//! A web server also stands in for a proxy that allows everything: it answers 200 to any request, CONNECT too, and
//! connects nowhere.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::OnceLock;
use std::thread;

pub(super) struct Servers {
    pub(super) port: u16,
    pub(super) other_port: u16,
    pub(super) udp_port: u16,
    pub(super) abstract_name: String,
    /// Connections to it succeed for as long as it is bound.
    _socket: UnixListener,
}

/// Started once for all tests; they end with the process.
pub(super) fn running() -> &'static Servers {
    static SERVERS: OnceLock<Servers> = OnceLock::new();
    SERVERS.get_or_init(|| {
        let other_port = serve_web(0);
        let abstract_name = format!("escape-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&abstract_name).expect("a name of an abstract socket");
        let socket = UnixListener::bind_addr(&address).expect("an abstract socket");
        Servers { port: serve_web(other_port), other_port, udp_port: echo(), abstract_name, _socket: socket }
    })
}

/// A request for `/redirect` is sent on to `redirect_port`.
fn serve_web(redirect_port: u16) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A guest may go away at any time.
            let _ = answer(&stream, redirect_port);
        }
    });
    port
}

fn answer(mut stream: &TcpStream, redirect_port: u16) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).split(b'\n');
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| line != b"\r") {}
    let redirect = request.windows(10).any(|part| part == b"/redirect ");
    let status = if redirect {
        format!("302 Found\r\nLocation: http://127.0.0.1:{redirect_port}/")
    } else {
        "200 OK".to_owned()
    };
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 12\r\nConnection: close\r\n\r\nof the host\n")
}

fn echo() -> u16 {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a UDP port");
    let port = socket.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    port
}
