//! The certificate authority of one sandbox. Its key exists only in the memory of the host: in this process, and in the
//! record from which the next one restores it. Certificates for names are issued when they are needed.

use std::collections::HashMap;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use ring::rand::{SecureRandom, SystemRandom};
use ringfence_core::sync::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::{Duration, OffsetDateTime};
use zeroize::Zeroizing;

use crate::rules::Host;

/// Maximum number of cached certificates. A guest can connect only to hosts that rules name, but a rule may have a
/// wildcard.
const MAX_CACHED_CERTIFICATES: usize = 256;
/// Validity before now, because the clocks of a guest's programs may be wrong.
const BACKDATED: Duration = Duration::days(2);
const AUTHORITY_VALIDITY: Duration = Duration::days(3650);
/// Some clients accept no certificate of a server that is valid for longer than 398 days.
const CERTIFICATE_VALIDITY: Duration = Duration::days(90);
/// A cached certificate is replaced long before it expires.
const CERTIFICATE_USE: Duration = Duration::days(45);

/// Reason why a certificate cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a certificate")]
pub struct AuthorityError(#[from] rcgen::Error);

/// A certificate authority that only one sandbox trusts.
pub(crate) struct SandboxAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    common_name: String,
    /// The key of all certificates for servers.
    server_key: KeyPair,
    issued: Mutex<HashMap<Host, (OffsetDateTime, Arc<ServerConfig>)>>,
}

impl std::fmt::Debug for SandboxAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxAuthority").field("common_name", &self.common_name).finish_non_exhaustive()
    }
}

impl SandboxAuthority {
    /// Makes a new authority.
    pub(crate) fn generate() -> Result<Self, AuthorityError> {
        // Programs look an issuer up by its name, so each authority has another one.
        let mut id = [0; 8];
        SystemRandom::new().fill(&mut id).map_err(|_| rcgen::Error::RingUnspecified)?;
        let id = u64::from_be_bytes(id);
        let (common_name, key) = (format!("ringfence sandbox {id:016x}"), KeyPair::generate()?);
        let params = authority_params(&common_name);
        let certificate = params.self_signed(&key)?.der().clone();
        Self::new(common_name, params, key, certificate)
    }

    /// Makes the authority of a record again.
    pub(crate) fn restore(common_name: &str, key_pem: &str, certificate: &[u8]) -> Result<Self, AuthorityError> {
        let (params, key) = (authority_params(common_name), KeyPair::from_pem(key_pem)?);
        Self::new(common_name.to_owned(), params, key, CertificateDer::from(certificate.to_vec()))
    }

    fn new(
        common_name: String,
        params: CertificateParams,
        key: KeyPair,
        certificate: CertificateDer<'static>,
    ) -> Result<Self, AuthorityError> {
        let (issuer, server_key) = (Issuer::new(params, key), KeyPair::generate()?);
        Ok(Self { issuer, certificate, common_name, server_key, issued: Mutex::new(HashMap::new()) })
    }

    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub(crate) fn common_name(&self) -> &str {
        &self.common_name
    }

    pub(crate) fn key_pem(&self) -> Zeroizing<String> {
        Zeroizing::new(self.issuer.key().serialize_pem())
    }

    /// Returns the configuration of a TLS server with a certificate for `host`.
    pub(crate) fn server_config(&self, host: &Host) -> Result<Arc<ServerConfig>, AuthorityError> {
        let now = OffsetDateTime::now_utc();
        if let Some((issued, config)) = self.issued.lock().get(host)
            && now - *issued < CERTIFICATE_USE
        {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(self.issue(host, now)?);
        let mut issued = self.issued.lock();
        if issued.len() >= MAX_CACHED_CERTIFICATES {
            let oldest = issued.iter().min_by_key(|(_, (at, _))| *at).map(|(host, _)| host.clone());
            oldest.and_then(|host| issued.remove(&host));
        }
        issued.insert(host.clone(), (now, Arc::clone(&config)));
        Ok(config)
    }

    fn issue(&self, host: &Host, now: OffsetDateTime) -> Result<ServerConfig, AuthorityError> {
        let subject = match host {
            Host::Name(name) => name.as_str().to_owned(),
            Host::Address(address) => address.to_string(),
        };
        let mut params = CertificateParams::new([subject])?;
        params.distinguished_name = DistinguishedName::new();
        // Clients verify only the alternative names, and a common name has at most 64 characters.
        params.distinguished_name.push(DnType::CommonName, "ringfence");
        params.not_before = now - BACKDATED;
        params.not_after = now + CERTIFICATE_VALIDITY;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        // Python 3.13 and later require it.
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&self.server_key, &self.issuer)?.der().clone();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.server_key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring supports the default versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("the key belongs to the certificate");
        Ok(config)
    }
}

fn authority_params(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_before = OffsetDateTime::now_utc() - BACKDATED;
    params.not_after = OffsetDateTime::now_utc() + AUTHORITY_VALIDITY;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::UpstreamTls;

    async fn handshake(authority: &SandboxAuthority, trusted: &SandboxAuthority, host: &str) -> std::io::Result<()> {
        let host: Host = host.parse().unwrap();
        let (client, server) = tokio::io::duplex(64 * 1024);
        let acceptor = tokio_rustls::TlsAcceptor::from(authority.server_config(&host).unwrap());
        let client_side = UpstreamTls::new(&[trusted.certificate().clone()]);
        let (connected, _) = tokio::join!(client_side.connect(client, &host, Vec::new()), acceptor.accept(server));
        connected.map(drop)
    }

    #[tokio::test]
    async fn certificates_are_valid_for_their_host_and_authority_only() {
        let (ours, other) = (SandboxAuthority::generate().unwrap(), SandboxAuthority::generate().unwrap());
        for host in ["a.com", "10.0.0.1", "[2001:db8::1]", &format!("{}.com", "a".repeat(63))] {
            handshake(&ours, &ours, host).await.unwrap();
            assert!(handshake(&ours, &other, host).await.is_err(), "{host}");
        }
        let restored =
            SandboxAuthority::restore(ours.common_name(), &ours.key_pem(), ours.certificate().as_ref()).unwrap();
        handshake(&restored, &ours, "a.com").await.unwrap();
    }

    #[test]
    fn certificates_are_cached_up_to_a_limit() {
        let authority = SandboxAuthority::generate().unwrap();
        let config = |index: usize| authority.server_config(&format!("h{index}.a.com").parse().unwrap()).unwrap();
        let first = config(0);
        assert!(Arc::ptr_eq(&first, &config(0)));
        for index in 1..=MAX_CACHED_CERTIFICATES {
            config(index);
        }
        assert_eq!(authority.issued.lock().len(), MAX_CACHED_CERTIFICATES);
        assert!(!Arc::ptr_eq(&first, &config(0)), "the oldest certificate is replaced");
    }
}
