//! What is common to all servers elsewhere: the address, the headers of the entry, the HTTP client.
//!
//! Headers may hold secrets: they are marked so, never logged, and never sent to another origin. Proxies
//! of the environment are not used. TLS trusts the roots of the system, or those of `SSL_CERT_FILE`.

use std::error::Error;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url};
use ringfence_entries::RemoteSettings;

use super::error::UpstreamError;

const MAX_REDIRECTS: usize = 5;
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// An entry, checked.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) client: Client,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) timeout: Duration,
    pub(super) read_timeout: Duration,
}

impl Place {
    pub(super) fn new(settings: &RemoteSettings) -> Result<Self, UpstreamError> {
        let url = address(&settings.url, &["http", "https"])?;
        super::tls::select_provider();
        let mut builder = Client::builder()
            .no_proxy()
            .referer(false)
            .redirect(Policy::custom(|attempt| {
                let is_home = attempt.previous().first().is_some_and(|first| first.origin() == attempt.url().origin());
                // Others would turn a POST into a GET.
                let keeps_method =
                    matches!(attempt.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
                if is_home && keeps_method && attempt.previous().len() <= MAX_REDIRECTS {
                    attempt.follow()
                } else {
                    attempt.stop()
                }
            }))
            .connect_timeout(settings.timeout)
            .tcp_keepalive(KEEP_ALIVE);
        if url.scheme() == "http" {
            // No need to read the roots of the system.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(|error| UpstreamError::Refused(describe(error)))?;
        let headers = headers(settings)?;
        Ok(Self { client, url, headers, timeout: settings.timeout, read_timeout: settings.sse_read_timeout })
    }
}

/// The address of an entry. What is wrong with it is said without repeating it: it may hold a secret.
pub(super) fn address(text: &str, schemes: &[&str]) -> Result<Url, UpstreamError> {
    let url = Url::parse(text).map_err(|error| UpstreamError::Refused(format!("the url is not valid: {error}")))?;
    if !schemes.contains(&url.scheme()) || url.host_str().is_none() {
        let wanted = schemes.join(" or ");
        return Err(UpstreamError::Refused(format!("the url is not one of {wanted}")));
    }
    Ok(url)
}

/// The headers of the entry, marked as secret.
pub(super) fn headers(settings: &RemoteSettings) -> Result<HeaderMap, UpstreamError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &settings.headers {
        let bad = || UpstreamError::Refused(format!("the header {name:?} cannot be sent"));
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| bad())?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}

/// An error with its causes, without the address.
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

/// The exchange broke. Without a connection nothing can have run.
pub(super) fn broken(error: reqwest::Error) -> UpstreamError {
    let may_have_run = !error.is_connect() && !error.is_builder();
    UpstreamError::lost(may_have_run, describe(error))
}

/// What a status other than success means for a call.
pub(super) fn denied(status: StatusCode) -> UpstreamError {
    if status.is_server_error() {
        return UpstreamError::lost(true, format!("the server answered with HTTP {status}"));
    }
    let why = if status.is_redirection() {
        format!("the server answered with HTTP {status}, and redirects to elsewhere are not followed")
    } else {
        format!("the server answered with HTTP {status}")
    };
    UpstreamError::Denied { status: status.as_u16(), why }
}

/// The whole body, or None if it is over the bound.
pub(super) async fn body(mut response: Response, max_bytes: usize) -> Result<Option<Vec<u8>>, reqwest::Error> {
    if response.content_length().is_some_and(|length| length > max_bytes as u64) {
        return Ok(None);
    }
    let mut whole = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if whole.len() + chunk.len() > max_bytes {
            return Ok(None);
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(Some(whole))
}

pub(super) fn is_type(response: &Response, wanted: &str) -> bool {
    let given = response.headers().get(reqwest::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    given.is_some_and(|given| {
        let essence = given.split(';').next().unwrap_or_default().trim();
        essence.eq_ignore_ascii_case(wanted)
    })
}
