//! The parts of TLS that the proxy reads: the server name of a `ClientHello`. Nothing is decrypted.

mod client_hello;

#[cfg(test)]
pub(crate) use client_hello::tests::{client_hello, client_hello_in_one_byte_records, client_hello_without_name};
pub(crate) use client_hello::{MAX_DETECTION_BYTES, TlsDetection, detect_tls};
