//! A web server on the host that the egress benchmark downloads from: `GET /N` returns N bytes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use anyhow::{Context as _, Result};

/// Longer than the head of any request of the benchmark.
const MAX_LINES: usize = 32;

/// Starts the server on a free port, and returns its address. It ends with the process.
pub(crate) fn start(address: IpAddr) -> Result<SocketAddr> {
    let listener = TcpListener::bind((address, 0)).context("cannot listen on a free port")?;
    let bound = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that closes its connection is no failure.
            std::thread::spawn(move || serve(&stream));
        }
    });
    Ok(bound)
}

fn serve(stream: &TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut lines = BufReader::new(stream).lines();
    let body = vec![b'x'; 256 << 10];
    while let Some(request) = lines.next().transpose()? {
        for line in lines.by_ref().take(MAX_LINES) {
            if line?.is_empty() {
                break;
            }
        }
        let path = request.split(' ').nth(1).context("not a request")?;
        let mut remaining: usize = path.trim_start_matches('/').parse()?;
        let mut message = format!("HTTP/1.1 200 OK\r\nContent-Length: {remaining}\r\n\r\n").into_bytes();
        // A small response is one write.
        let first = remaining.min(1024);
        message.extend_from_slice(&body[..first]);
        remaining -= first;
        let mut writer = stream;
        writer.write_all(&message)?;
        while remaining > 0 {
            let part = remaining.min(body.len());
            writer.write_all(&body[..part])?;
            remaining -= part;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Connection;

    #[test]
    fn path_is_the_length_of_the_body() {
        let address = start(std::net::Ipv4Addr::LOCALHOST.into()).unwrap();
        let mut connection = Connection::open(&address.to_string()).unwrap();
        for length in [0, 3, 1024, 1025, 1 << 20] {
            assert_eq!(connection.get(&format!("/{length}")).unwrap().body.len(), length);
        }
    }
}
