//! Servers on addresses of the host that sandboxes must not reach: two web servers, a UDP port and an abstract socket.
//!
//! In bare runs, a web server takes the role of a proxy that allows everything: it replies 200 to any request,
//! including CONNECT, and connects to no other server.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::OnceLock;
use std::thread;

pub(super) struct HostServers {
    pub(super) port: u16,
    pub(super) other_port: u16,
    pub(super) udp_port: u16,
    pub(super) abstract_name: String,
    /// Connections to it succeed as long as it is bound.
    _socket: UnixListener,
}

/// Returns the servers of this process; the first call starts them.
pub(super) fn running() -> &'static HostServers {
    static SERVERS: OnceLock<HostServers> = OnceLock::new();
    SERVERS.get_or_init(|| {
        let other_port = serve_web(0);
        let abstract_name = format!("escape-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&abstract_name).expect("a name of an abstract socket");
        let socket = UnixListener::bind_addr(&address).expect("bind an abstract socket");
        HostServers { port: serve_web(other_port), other_port, udp_port: echo_udp(), abstract_name, _socket: socket }
    })
}

/// Starts a web server; it redirects requests for `/redirect` to `redirect_port`.
fn serve_web(redirect_port: u16) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client may close the connection at any time.
            let _ = respond(&stream, redirect_port);
        }
    });
    port
}

fn respond(mut stream: &TcpStream, redirect_port: u16) -> std::io::Result<()> {
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

fn echo_udp() -> u16 {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free UDP port");
    let port = socket.local_addr().expect("an address").port();
    thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    port
}
