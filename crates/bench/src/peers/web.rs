//! A web server on the host that the egress benchmark downloads from: `GET /N` returns N bytes. With and without TLS.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Longer than the head of any request of the benchmark.
const MAX_LINES: usize = 32;

/// A server with TLS, and the PEM of the authority that signed its certificate.
pub(crate) struct TlsServer {
    pub(crate) address: SocketAddr,
    pub(crate) authority_pem: String,
}

/// Starts the server on a free port, and returns its address. It ends with the process.
pub(crate) fn start(address: IpAddr) -> Result<SocketAddr> {
    listen(address, serve)
}

/// The same with TLS and a certificate for `name`.
pub(crate) fn start_tls(address: IpAddr, name: &str) -> Result<TlsServer> {
    let authority_key = KeyPair::generate()?;
    let mut authority = CertificateParams::default();
    // A certificate whose issuer has its own name counts as self-signed.
    authority.distinguished_name.push(DnType::CommonName, "authority of the benchmark");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_pem = authority.self_signed(&authority_key)?.pem();
    let key = KeyPair::generate()?;
    let certificate =
        CertificateParams::new([name.to_owned()])?.signed_by(&key, &Issuer::new(authority, authority_key))?;
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der())),
        )?;
    let config = Arc::new(config);
    let address =
        listen(address, move |stream| serve(StreamOwned::new(ServerConnection::new(Arc::clone(&config))?, stream)))?;
    Ok(TlsServer { address, authority_pem })
}

fn listen(address: IpAddr, serve: impl Fn(TcpStream) -> Result<()> + Send + Sync + 'static) -> Result<SocketAddr> {
    let listener = TcpListener::bind((address, 0)).context("cannot listen on a free port")?;
    let bound = listener.local_addr()?;
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = Arc::clone(&serve);
            // A client that closes its connection is no failure.
            std::thread::spawn(move || stream.set_nodelay(true).map(|()| serve(stream)));
        }
    });
    Ok(bound)
}

fn serve(stream: impl Read + Write) -> Result<()> {
    let mut reader = BufReader::new(stream);
    let body = vec![b'x'; 256 << 10];
    loop {
        let mut request = String::new();
        if reader.read_line(&mut request)? == 0 {
            return Ok(());
        }
        for line in reader.by_ref().lines().take(MAX_LINES) {
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
        let writer = reader.get_mut();
        writer.write_all(&message)?;
        while remaining > 0 {
            let part = remaining.min(body.len());
            writer.write_all(&body[..part])?;
            remaining -= part;
        }
    }
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
