//! One request and its response.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use http::header::{ACCEPT_ENCODING, CONNECTION, EXPECT, HOST, HeaderValue};
use http::request::Parts;
use http::uri::{PathAndQuery, Scheme, Uri};
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use ringfence_core::sync::Mutex;

use super::Terminator;
use super::body::{BoxError, ProxyBody, SearchedBody, text_body, unchanged_body};
use super::head::{closes_connection, named_hosts, remove_connection_fields, replace_in_fields, requests_websocket};
use crate::decision::Decision;
use crate::http::HeadError;
use crate::refusal::Refusal;
use crate::rules::{RequestDenial, RequestScope, overrides_request};
use crate::secrets::{Destination, insert_secrets};

const TLS_PORT: u16 = 443;
const HTTP_PORT: u16 = 80;

/// The connection to the server.
pub(super) enum Upstream {
    Http1(tokio::sync::Mutex<http1::SendRequest<ProxyBody>>),
    Http2(http2::SendRequest<ProxyBody>),
    /// There is none, and every request is refused for this reason.
    Failed(Refusal),
}

/// The state that the requests of one connection share.
pub(super) struct Exchange {
    terminator: Terminator,
    destination: Option<Destination>,
    is_tls: bool,
    upstream: Upstream,
    has_upgraded: AtomicBool,
    has_sent: AtomicBool,
    /// The secrets whose use is already in the log.
    logged: Mutex<BTreeSet<String>>,
}

impl Exchange {
    pub(super) fn new(
        terminator: Terminator,
        destination: Option<Destination>,
        is_tls: bool,
        upstream: Upstream,
    ) -> Self {
        let (has_upgraded, has_sent) = Default::default();
        Self { terminator, destination, is_tls, upstream, has_upgraded, has_sent, logged: Mutex::default() }
    }

    /// Returns whether the connection has become a WebSocket.
    pub(super) fn has_upgraded(&self) -> bool {
        self.has_upgraded.load(Ordering::Relaxed)
    }

    /// Serves a request. An error closes the connection without a response.
    pub(super) async fn serve(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<ProxyBody>, BoxError> {
        let (mut parts, body) = request.into_parts();
        let (method, version) = (parts.method.clone(), parts.version);
        let used = match self.check(&mut parts) {
            Ok(used) => used,
            Err(refusal) => return Ok(self.refuse(&method, version, &refusal)),
        };
        self.log_use(&method, used);
        let is_upgrade = requests_websocket(&parts);
        self.rewrite(&mut parts, is_upgrade)?;

        let found = Arc::new(OnceLock::new());
        let refused = self.destination.as_ref().map(|destination| &destination.refused_in_bodies);
        let body = match refused.filter(|texts| !texts.is_empty()) {
            Some(texts) => SearchedBody::failing(body, texts, Arc::clone(&found)),
            None => unchanged_body(body),
        };
        let is_first = !self.has_sent.swap(true, Ordering::Relaxed);
        let error = match self.send(Request::from_parts(parts, body)).await {
            Ok(response) => return Ok(self.respond(response, is_upgrade, &method, version)),
            Err(error) => error,
        };
        match self.refusal_of_body(&found) {
            Some(refusal) => Ok(self.refuse(&method, version, &refusal)),
            // The server has closed a persistent connection: the client retries, as it would without the proxy.
            None if !is_first => Err(error),
            None => {
                let refusal = Refusal::Response(HeadError::Malformed("the server closed the connection"));
                Ok(self.refuse(&method, version, &refusal))
            }
        }
    }

    /// Checks a request and inserts secrets; returns the names of those that were used.
    fn check(&self, parts: &mut Parts) -> Result<Vec<String>, Refusal> {
        if let Upstream::Failed(refusal) = &self.upstream {
            return Err(refusal.clone());
        }
        if parts.method == Method::CONNECT {
            return Err(Refusal::Head(HeadError::Malformed("CONNECT inside a tunnel")));
        }
        let named = named_hosts(parts, self.default_port()).ok_or(Refusal::Head(HeadError::HostMismatch))?;
        if !named.iter().all(|named| self.terminator.is_allowed_name(named, self.is_tls)) {
            return Err(Refusal::Head(HeadError::HostMismatch));
        }
        let scopes = &self.terminator.scopes;
        if !scopes.is_empty() {
            RequestScope::check_any(scopes, parts.method.as_str(), parts.uri.path())?;
            if parts.headers.keys().any(|name| overrides_request(name.as_str())) {
                return Err(RequestDenial::Override.into());
            }
        }
        // A field that is not passed on needs no value.
        let is_upgrade = requests_websocket(parts);
        remove_connection_fields(&mut parts.headers, is_upgrade);
        let inserted = self.destination.as_ref().map(|destination| insert_secrets(destination, parts));
        Ok(inserted.transpose()?.unwrap_or_default())
    }

    fn default_port(&self) -> u16 {
        if self.is_tls { TLS_PORT } else { HTTP_PORT }
    }

    /// Writes the host, URL and version for the server.
    fn rewrite(&self, parts: &mut Parts, is_upgrade: bool) -> Result<(), BoxError> {
        let authority = match named_hosts(parts, self.default_port()).unwrap_or_default().first() {
            Some(named) => named.authority(self.default_port()),
            None => self.terminator.target.authority(self.default_port()),
        };
        let path = parts.uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
        parts.headers.remove(HOST);
        parts.headers.remove(EXPECT);
        if let Upstream::Http2(_) = self.upstream {
            parts.version = Version::HTTP_2;
            let scheme = if self.is_tls { Scheme::HTTPS } else { Scheme::HTTP };
            parts.uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(path).build()?;
        } else {
            parts.version = Version::HTTP_11;
            parts.uri = Uri::from(path);
            parts.headers.insert(HOST, HeaderValue::try_from(authority)?);
        }
        // A value cannot be found in a compressed response.
        if !is_upgrade && self.destination.as_ref().is_some_and(Destination::receives_values) {
            parts.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        Ok(())
    }

    async fn send(&self, request: Request<ProxyBody>) -> Result<Response<Incoming>, BoxError> {
        match &self.upstream {
            Upstream::Http1(sender) => {
                let mut sender = sender.lock().await;
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
            Upstream::Http2(sender) => {
                let mut sender = sender.clone();
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
            Upstream::Failed(_) => Err("no connection to the server".into()),
        }
    }

    /// Returns the reason why the body of a request was not sent completely, if the proxy has interrupted it.
    fn refusal_of_body(&self, found: &OnceLock<usize>) -> Option<Refusal> {
        let denial = self.destination.as_ref()?.denial_of_body(*found.get()?);
        denial.map(Refusal::Secret)
    }

    fn respond(
        &self,
        response: Response<Incoming>,
        is_upgrade_requested: bool,
        method: &Method,
        version: Version,
    ) -> Response<ProxyBody> {
        let (mut parts, body) = response.into_parts();
        let is_http2 = matches!(self.upstream, Upstream::Http2(_));
        let closes = !is_http2 && closes_connection(&parts.headers, parts.version);
        let is_upgrade = parts.status == StatusCode::SWITCHING_PROTOCOLS;
        if is_upgrade && !is_upgrade_requested {
            let refusal = Refusal::Response(HeadError::Malformed("the server switched protocols without a request"));
            return self.refuse(method, version, &refusal);
        }
        remove_connection_fields(&mut parts.headers, is_upgrade);
        if is_upgrade {
            self.has_upgraded.store(true, Ordering::Relaxed);
        } else if closes {
            parts.headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        parts.version = version;
        let destination = self.destination.as_ref().filter(|destination| destination.receives_values());
        let body = match destination {
            Some(destination) => {
                // It is not searched, and no program needs it.
                parts.extensions.remove::<hyper::ext::ReasonPhrase>();
                replace_in_fields(destination.values(), &mut parts.headers);
                if is_upgrade || method == Method::HEAD {
                    unchanged_body(body)
                } else {
                    SearchedBody::replacing(body, destination.values())
                }
            }
            None => unchanged_body(body),
        };
        Response::from_parts(parts, body)
    }

    fn refuse(&self, method: &Method, version: Version, refusal: &Refusal) -> Response<ProxyBody> {
        self.record(method, false, refusal.code(), refusal.secret());
        let mut response =
            Response::new(text_body(refusal.text(Some(&self.terminator.target), &self.terminator.remedy)));
        *response.status_mut() = StatusCode::from_u16(refusal.status_code()).unwrap_or(StatusCode::FORBIDDEN);
        *response.version_mut() = version;
        let headers = response.headers_mut();
        headers.insert("content-type", HeaderValue::from_static("text/plain"));
        headers.insert("x-ringfence-reason", HeaderValue::from_static(refusal.code()));
        response
    }

    fn log_use(&self, method: &Method, used: Vec<String>) {
        for name in used {
            if self.logged.lock().insert(name.clone()) {
                self.record(method, true, "secret-used", Some(&name));
            }
        }
    }

    fn record(&self, method: &Method, is_allowed: bool, reason: &'static str, secret: Option<&str>) {
        let (method, secret) = (Some(method.as_str().to_owned()), secret.map(str::to_owned));
        let decision = Decision { is_allowed, method, reason, secret, ..self.terminator.decision.clone() };
        self.terminator.log.record(decision);
    }
}
