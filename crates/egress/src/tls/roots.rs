//! The certificates that the host trusts.

use std::sync::OnceLock;

use rustls::pki_types::CertificateDer;

/// Returns the trusted roots of the host: those of `SSL_CERT_FILE` and `SSL_CERT_DIR`, or of the system. They are read
/// once; unreadable files are left out.
pub(crate) fn host_roots() -> &'static [CertificateDer<'static>] {
    static ROOTS: OnceLock<Vec<CertificateDer<'static>>> = OnceLock::new();
    ROOTS.get_or_init(|| rustls_native_certs::load_native_certs().certs)
}
