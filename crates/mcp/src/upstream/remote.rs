//! The parts that all remote transports share: URL, configured headers, HTTP client.
//!
//! Headers may contain secrets: they are marked as sensitive, never logged, and never sent to another origin. Proxies from
//! the environment are not used. TLS trusts the roots of the system, or those of `SSL_CERT_FILE`.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url};

use super::error::UpstreamError;

const MAX_REDIRECTS: usize = 5;
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);

/// A server that is reached over the network. Not printable, since its values may contain secrets.
#[derive(Clone)]
pub struct RemoteTarget {
    pub url: String,
    /// Added to every request.
    pub headers: BTreeMap<String, String>,
    /// Limits connecting, and requests that are not calls.
    pub timeout: Duration,
    /// Idle timeout of calls that have none.
    pub read_timeout: Duration,
}

/// A checked [`RemoteTarget`] with its HTTP client.
#[derive(Clone)]
pub(super) struct RemoteServer {
    pub(super) client: Client,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) timeout: Duration,
    pub(super) read_timeout: Duration,
}

impl RemoteServer {
    pub(super) fn new(target: &RemoteTarget) -> Result<Self, UpstreamError> {
        let url = parse_url(&target.url, &["http", "https"])?;
        super::tls::select_provider();
        let mut builder = Client::builder()
            .no_proxy()
            .referer(false)
            .redirect(Policy::custom(|attempt| {
                let is_same_origin =
                    attempt.previous().first().is_some_and(|first| first.origin() == attempt.url().origin());
                // Other redirects turn a POST into a GET.
                let keeps_method =
                    matches!(attempt.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
                if is_same_origin && keeps_method && attempt.previous().len() <= MAX_REDIRECTS {
                    attempt.follow()
                } else {
                    attempt.stop()
                }
            }))
            .connect_timeout(target.timeout)
            .tcp_keepalive(TCP_KEEPALIVE);
        if url.scheme() == "http" {
            // Without TLS there is no need to load the roots of the system.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(|error| UpstreamError::Refused(describe(error)))?;
        let headers = parse_headers(target)?;
        Ok(Self { client, url, headers, timeout: target.timeout, read_timeout: target.read_timeout })
    }
}

/// Parses a URL. Errors do not contain it, since it may contain a secret.
pub(super) fn parse_url(text: &str, schemes: &[&str]) -> Result<Url, UpstreamError> {
    let url = Url::parse(text).map_err(|error| UpstreamError::Refused(format!("the URL is invalid: {error}")))?;
    if !schemes.contains(&url.scheme()) || url.host_str().is_none() {
        let expected = schemes.join(" or ");
        return Err(UpstreamError::Refused(format!("the scheme of the URL is not {expected}, or it has no host")));
    }
    Ok(url)
}

/// Parses the configured headers and marks them as sensitive.
pub(super) fn parse_headers(target: &RemoteTarget) -> Result<HeaderMap, UpstreamError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &target.headers {
        let invalid = || UpstreamError::Refused(format!("the header {name:?} has an invalid name or value"));
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| invalid())?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}

/// Describes an error with its causes, without the URL.
pub(super) fn describe(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// The error of an exchange that failed. Without a connection nothing can have run.
pub(super) fn exchange_error(error: reqwest::Error) -> UpstreamError {
    let may_have_run = !error.is_connect() && !error.is_builder();
    UpstreamError::closed(may_have_run, describe(error))
}

/// The error of a call for an HTTP status that is not a success.
pub(super) fn status_error(status: StatusCode) -> UpstreamError {
    if status.is_server_error() {
        return UpstreamError::closed(true, format!("the server responded with HTTP {status}"));
    }
    let reason = if status.is_redirection() {
        format!("the server responded with HTTP {status}; redirects to another origin are not followed")
    } else {
        format!("the server responded with HTTP {status}")
    };
    UpstreamError::HttpStatus { status: status.as_u16(), reason }
}

/// Reads the body. Returns None if it is over the limit.
pub(super) async fn read_body(mut response: Response, max_bytes: usize) -> Result<Option<Vec<u8>>, reqwest::Error> {
    if response.content_length().is_some_and(|length| length > max_bytes as u64) {
        return Ok(None);
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > max_bytes {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body))
}

/// Whether the media type of the response is the expected one, without regard to parameters.
pub(super) fn has_content_type(response: &Response, expected: &str) -> bool {
    let given = response.headers().get(reqwest::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    given.is_some_and(|given| {
        let essence = given.split(';').next().unwrap_or_default().trim();
        essence.eq_ignore_ascii_case(expected)
    })
}
