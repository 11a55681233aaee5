//! The parts of TLS that the proxy needs, and the alerts that it sends.
//!
//! Most connections are relayed without decryption: only the server name of their `ClientHello` is read. For hosts whose
//! requests are checked or receive secrets, the certificate authority of the sandbox issues certificates, and the
//! connection to the real server is made with the trusted roots of the host.

mod alert;
mod authority;
mod client_hello;
mod roots;
mod upstream;

pub use authority::AuthorityError;

pub(crate) use alert::Alert;
pub(crate) use authority::SandboxAuthority;
#[cfg(test)]
pub(crate) use client_hello::tests::{client_hello, client_hello_in_one_byte_records, client_hello_without_name};
pub(crate) use client_hello::{MAX_DETECTION_BYTES, TlsDetection, detect_tls};
pub(crate) use roots::host_roots;
pub(crate) use upstream::UpstreamTls;

/// Protocols of ALPN that the proxy can speak on decrypted connections.
pub(crate) const HTTP_2: &[u8] = b"h2";
pub(crate) const HTTP_1_1: &[u8] = b"http/1.1";
