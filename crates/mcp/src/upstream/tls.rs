//! The cryptography of TLS connections to upstream servers.
//!
//! `ring` rather than the default of rustls, `aws-lc-rs`: it builds in a tenth of the time and runs no code when the
//! program starts.

/// Selects `ring` for all TLS connections of this process. Must be called before the first one; later calls do nothing.
pub(super) fn select_provider() {
    // Fails if a provider is already selected: by an earlier call, or by a program that embeds this crate.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
