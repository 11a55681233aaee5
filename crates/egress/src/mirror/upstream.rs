//! Sends GET requests to package registries, and to the hosts that their indexes name for files.
//!
//! This module writes all header fields. A request contains nothing from the guest's request except the package name in
//! the URL. Redirects are followed only to the same host, to a registry, or to the host of the file. A host that only
//! an index names must have a public address, unless the registry has a private one. The proxies of the environment are
//! used.

mod addresses;

use std::collections::BTreeSet;
use std::error::Error as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, ETAG, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, LOCATION,
};
use reqwest::{Certificate, Client, Response, StatusCode, Url};
use ringfence_core::sync::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::error::MirrorError;
use crate::rules::AddressClass;
use addresses::CheckedResolver;

const MAX_REDIRECTS: usize = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time without a new byte of a response.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// After a failed connection, further requests to the registries fail at once for this time, so that an offline host
/// serves its cache without delays.
const UNREACHABLE_DELAY: Duration = Duration::from_secs(10);
const MAX_VALIDATOR: usize = 256;

/// The validators of a document (RFC 9110, section 8.8), with which a registry reports that it has not changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Validators {
    etag: Option<String>,
    last_modified: Option<String>,
}

impl Validators {
    pub(super) fn of(response: &Response) -> Self {
        let text = |name| {
            let value = response.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
            value.filter(|value| value.len() <= MAX_VALIDATOR).map(str::to_owned)
        };
        Self { etag: text(ETAG), last_modified: text(LAST_MODIFIED) }
    }
}

/// The client for the registries of one ecosystem.
#[derive(Debug)]
pub(super) struct Upstream {
    client: Client,
    /// Hosts of the registries.
    hosts: BTreeSet<String>,
    /// Whether every registry has TLS.
    is_secure: bool,
    unreachable_since: Mutex<Option<Instant>>,
}

impl Upstream {
    pub(super) fn new<'a>(urls: impl Iterator<Item = &'a str>, certificates: &[Vec<u8>]) -> Result<Self, String> {
        let mut hosts = BTreeSet::new();
        let mut is_secure = true;
        for url in urls {
            let parsed = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
            is_secure &= parsed.as_ref().is_some_and(|url| url.scheme() == "https");
            let host = parsed.as_ref().and_then(Url::host_str);
            hosts.insert(host.ok_or("the URL of a registry is invalid")?.to_owned());
        }
        if hosts.is_empty() {
            return Err("none is configured".into());
        }
        let mut roots = Vec::new();
        for pem in certificates {
            let bundle = Certificate::from_pem_bundle(pem);
            roots.extend(bundle.map_err(|error| format!("a file of certificate authorities is invalid: {error}"))?);
        }
        // An error means that the process has a provider already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .user_agent(concat!("ringfence/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .dns_resolver(Arc::new(CheckedResolver::new(&hosts)))
            .tls_certs_merge(roots)
            .build()
            .map_err(|error| format!("the client for the registries cannot be created: {}", describe(error)))?;
        Ok(Self { client, hosts, is_secure, unreachable_since: Mutex::new(None) })
    }

    /// Whether every registry has TLS, so that files need it too.
    pub(super) fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// Requests a document or file. The URL is that of a registry, or an index has named it.
    pub(super) async fn get(
        &self,
        url: &Url,
        accept: &'static str,
        encoding: &'static str,
        validators: Option<&Validators>,
    ) -> Result<Response, MirrorError> {
        let mut url = url.clone();
        let named = url.host_str().unwrap_or_default().to_owned();
        for _ in 0..=MAX_REDIRECTS {
            self.check_destination(&url)?;
            self.check_reachable(&url)?;
            let mut request = self.client.get(url.clone()).header(ACCEPT, accept).header(ACCEPT_ENCODING, encoding);
            let fields = validators
                .map(|validators| [(IF_NONE_MATCH, &validators.etag), (IF_MODIFIED_SINCE, &validators.last_modified)]);
            for (name, value) in fields.into_iter().flatten() {
                if let Some(value) = value.as_deref().and_then(|value| HeaderValue::from_str(value).ok()) {
                    request = request.header(name, value);
                }
            }
            let response = request.send().await.map_err(|error| self.failure(&url, error))?;
            *self.unreachable_since.lock() = None;
            let status = response.status();
            if !status.is_redirection() || status == StatusCode::NOT_MODIFIED {
                return checked_status(response);
            }
            let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
            let target = location.and_then(|location| url.join(location).ok());
            let target = target.ok_or_else(|| MirrorError::Status(status.as_u16()))?;
            let host = target.host_str().unwrap_or_default();
            let is_named = host == named || Some(host) == url.host_str() || self.hosts.contains(host);
            let is_downgrade = url.scheme() == "https" && target.scheme() != "https";
            if !is_named || is_downgrade || !matches!(target.scheme(), "http" | "https") {
                return Err(MirrorError::Redirect(host.to_owned()));
            }
            url = target;
        }
        Err(MirrorError::TooManyRedirects(MAX_REDIRECTS))
    }

    /// Reads the next part of a response.
    pub(super) async fn chunk(response: &mut Response) -> Result<Option<impl AsRef<[u8]> + use<>>, MirrorError> {
        response.chunk().await.map_err(
            |error| {
                if error.is_timeout() { MirrorError::Timeout } else { MirrorError::Interrupted }
            },
        )
    }

    /// Refuses an IP address that is not public, unless it is that of a registry. Host names are checked when they are
    /// resolved.
    fn check_destination(&self, url: &Url) -> Result<(), MirrorError> {
        let host = url.host_str().unwrap_or_default();
        let literal: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        let is_refused = literal.is_some_and(|address| AddressClass::of(address) != AddressClass::Public);
        if is_refused && !self.hosts.contains(host) {
            return Err(MirrorError::Destination(host.to_owned()));
        }
        Ok(())
    }

    fn check_reachable(&self, url: &Url) -> Result<(), MirrorError> {
        let since = *self.unreachable_since.lock();
        if since.is_some_and(|since| since.elapsed() < UNREACHABLE_DELAY) {
            let host = url.host_str().unwrap_or_default().to_owned();
            return Err(MirrorError::Unreachable { host, cause: "the last connection failed".into() });
        }
        Ok(())
    }

    fn failure(&self, url: &Url, error: reqwest::Error) -> MirrorError {
        let host = url.host_str().unwrap_or_default().to_owned();
        // Only a failed connection to a registry is remembered: a host of files may fail while the registry works.
        if error.is_connect() && self.hosts.contains(&host) {
            *self.unreachable_since.lock() = Some(Instant::now());
        }
        if error.is_timeout() && !error.is_connect() {
            return MirrorError::Timeout;
        }
        MirrorError::Unreachable { host, cause: describe(error) }
    }
}

fn checked_status(response: Response) -> Result<Response, MirrorError> {
    match response.status() {
        StatusCode::OK | StatusCode::NOT_MODIFIED => Ok(response),
        StatusCode::NOT_FOUND | StatusCode::GONE => Err(MirrorError::Missing),
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS) => {
            Err(MirrorError::Forbidden(status.as_u16()))
        }
        status => Err(MirrorError::Status(status.as_u16())),
    }
}

/// Returns the text of the innermost cause of an error, without the URL.
fn describe(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = cause.to_string();
        source = cause.source();
    }
    text
}
