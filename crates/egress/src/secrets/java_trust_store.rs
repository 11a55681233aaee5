//! Java's trust store in the JKS format, which every version of Java reads.
//!
//! The format has no specification other than `sun.security.provider.JavaKeyStore`. Its checksum protects nothing: the
//! password is public, and the guest cannot write the file.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use rustls::pki_types::CertificateDer;

/// The customary password of trust stores.
pub(super) const PASSWORD: &str = "changeit";

const MAGIC: u32 = 0xfeed_feed;
const VERSION: u32 = 2;
const TRUSTED_CERTIFICATE: u32 = 2;

/// Returns a trust store with these certificates.
pub(super) fn java_trust_store<'a>(certificates: impl Iterator<Item = &'a CertificateDer<'static>>) -> Vec<u8> {
    let certificates: Vec<_> = certificates.collect();
    let mut store = Vec::new();
    let put_number = |store: &mut Vec<u8>, number: u32| store.extend_from_slice(&number.to_be_bytes());
    put_number(&mut store, MAGIC);
    put_number(&mut store, VERSION);
    put_number(&mut store, length(certificates.len()));
    for (index, certificate) in certificates.iter().enumerate() {
        put_number(&mut store, TRUSTED_CERTIFICATE);
        put_text(&mut store, &format!("ca-{index}"));
        // The time of the entry, which is never read.
        store.extend_from_slice(&0u64.to_be_bytes());
        put_text(&mut store, "X.509");
        put_number(&mut store, length(certificate.len()));
        store.extend_from_slice(certificate);
    }
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    PASSWORD.encode_utf16().for_each(|unit| digest.update(&unit.to_be_bytes()));
    digest.update(b"Mighty Aphrodite");
    digest.update(&store);
    store.extend_from_slice(digest.finish().as_ref());
    store
}

/// Writes a short ASCII text with its length, as `DataOutputStream.writeUTF` does.
fn put_text(store: &mut Vec<u8>, text: &str) {
    store.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    store.extend_from_slice(text.as_bytes());
}

fn length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_has_the_layout_that_java_reads() {
        let certificate = CertificateDer::from(vec![1, 2, 3]);
        let store = java_trust_store([&certificate].into_iter());
        let expected = b"\xfe\xed\xfe\xed\0\0\0\x02\0\0\0\x01\0\0\0\x02\0\x04ca-0\0\0\0\0\0\0\0\0\0\x05X.509\0\0\0\x03\x01\x02\x03";
        assert_eq!(&store[..expected.len()], expected);
        assert_eq!(store.len(), expected.len() + 20);
    }
}
