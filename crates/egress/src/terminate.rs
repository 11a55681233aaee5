//! Connections whose requests the proxy reads: it decrypts TLS with the sandbox's certificate authority, checks every
//! request, inserts secrets, and sends the request over its own connection to the server.
//!
//! This applies to TLS connections to hosts with a secret, or whose rules have methods or paths, and to plain HTTP in a
//! sandbox with secrets. The client is offered only the protocol that the server has chosen, so HTTP/1.1 stays HTTP/1.1
//! and HTTP/2 stays HTTP/2. One connection of the client uses one connection to the server.
//!
//! Not checked: bytes after an accepted WebSocket upgrade, and encrypted or compressed contents of bodies.

mod body;
mod exchange;
mod head;
mod http1;
mod http2;
mod tasks;
mod tls;
mod touch;

#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::context::{Context, Limits};
use crate::decision::{Decision, DecisionLog};
use crate::refusal::Refusal;
use crate::relay::IdleTimer;
use crate::remedy::Remedy;
use crate::rules::{Host, HostPort, Policy, RequestScope, Rule};
use crate::secrets::{Destination, SandboxCredentials};
use exchange::{Exchange, Upstream};
use touch::Touch;

/// The protocol of a client, according to its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientProtocol<'a> {
    Tls { server_name: Option<&'a str> },
    Http,
    Other,
}

/// Reason why a connection ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TerminationError {
    #[error("the connection was refused")]
    Refused(#[source] Refusal),
    #[error("the connection failed")]
    Io(#[from] io::Error),
    #[error("the idle timeout expired")]
    IdleTimeout,
}

/// The checks for the requests of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Terminator {
    target: HostPort,
    /// The address that the proxy has connected to.
    address: Option<IpAddr>,
    rules: Vec<Rule>,
    /// One of these must allow a request; empty if all requests are allowed.
    scopes: Vec<RequestScope>,
    credentials: Option<Arc<SandboxCredentials>>,
    limits: Limits,
    log: DecisionLog,
    /// The decision about the connection.
    decision: Decision,
    /// Whether the target had a secret that was lost, and has no other.
    has_lost_secret: bool,
    /// The recommendation in the texts of refusals.
    remedy: Remedy,
}

impl Context {
    /// Returns the checks for the requests of a connection, to which `decision` belongs.
    pub(crate) fn terminator(&self, policy: &Policy, target: &HostPort, decision: &Decision) -> Terminator {
        let (rules, credentials) = (&policy.rules, self.credentials.as_ref());
        let remedy = self.remedy.lock().clone();
        let has_secret = credentials.is_some_and(|credentials| credentials.has_secret_for(target));
        let has_lost_secret = !has_secret && self.lost_secret_hosts.iter().any(|rule| rule.matches(target));
        Terminator {
            has_lost_secret,
            remedy,
            ..Terminator::new(rules, credentials, &self.limits, &self.log, target, decision)
        }
    }
}

impl Terminator {
    /// `decision` is that about the connection to `target`, with its address.
    pub(crate) fn new(
        rules: &[Rule],
        credentials: Option<&Arc<SandboxCredentials>>,
        limits: &Limits,
        log: &DecisionLog,
        target: &HostPort,
        decision: &Decision,
    ) -> Self {
        Self {
            target: target.clone(),
            address: decision.address,
            rules: rules.to_vec(),
            scopes: Policy::request_scopes(rules, target, decision.address),
            credentials: credentials.cloned(),
            limits: limits.clone(),
            log: log.clone(),
            decision: decision.clone(),
            has_lost_secret: false,
            remedy: Remedy::default(),
        }
    }

    /// Returns whether the connection must be run by [`Self::run`] instead of being relayed.
    pub(crate) fn is_needed(&self, protocol: ClientProtocol<'_>) -> Result<bool, Refusal> {
        let is_limited = !self.scopes.is_empty();
        match protocol {
            ClientProtocol::Tls { server_name } => {
                // A tunnel to an address may name a host, which must not have checks that the address lacks.
                let named = server_name.and_then(|name| name.parse::<Host>().ok());
                if named.is_some_and(|named| named != self.target.host && self.has_checks(&named)) {
                    return Err(Refusal::SniMismatch);
                }
                let is_needed = self.has_checks(&self.target.host);
                if is_needed && (self.credentials.is_none() || self.has_lost_secret) {
                    return Err(Refusal::NoAuthority);
                }
                Ok(is_needed)
            }
            ClientProtocol::Http => {
                // A tunnel to an address may name a host, which must not have checks that the address lacks.
                let is_address = matches!(self.target.host, Host::Address(_));
                let may_name_limited = is_address && self.rules.iter().any(|rule| rule.requests().is_limited());
                let has_secrets = self.credentials.as_ref().is_some_and(|credentials| !credentials.bindings.is_empty());
                Ok(is_limited || may_name_limited || has_secrets)
            }
            ClientProtocol::Other if is_limited => Err(Refusal::NotHttp),
            ClientProtocol::Other => Ok(false),
        }
    }

    /// Returns whether only some requests may reach the server, so that no other protocol may.
    pub(crate) fn allows_only_http(&self) -> bool {
        !self.scopes.is_empty()
    }

    /// Returns whether plain requests must be run by [`Self::run`] instead of being forwarded.
    pub(crate) fn checks_plain_http(&self) -> bool {
        self.is_needed(ClientProtocol::Http).unwrap_or(true)
    }

    /// Returns whether requests to a host on the port of this connection are checked.
    fn has_checks(&self, host: &Host) -> bool {
        let target = HostPort { host: host.clone(), port: self.target.port };
        let has_secret = self.credentials.as_ref().is_some_and(|credentials| credentials.has_secret_for(&target));
        let address = self.address.filter(|_| *host == self.target.host);
        let has_lost_secret = self.has_lost_secret && *host == self.target.host;
        has_secret || has_lost_secret || !Policy::request_scopes(&self.rules, &target, address).is_empty()
    }

    /// Returns whether a plain request may name this host and port.
    fn is_allowed_name(&self, named: &HostPort, is_tls: bool) -> bool {
        let is_address = matches!(self.target.host, Host::Address(_));
        let policy = Policy { rules: self.rules.clone() };
        let is_allowed = || policy.find_rule(named).is_ok() && !self.has_checks(&named.host);
        *named == self.target || is_address && !is_tls && named.port == self.target.port && is_allowed()
    }

    /// Serves a connection until both sides have ended, one side fails, or the idle timeout expires. `first_bytes` are
    /// those that were already read from the client.
    pub(crate) async fn run<C, W, S>(
        &self,
        is_tls: bool,
        first_bytes: &[u8],
        client: &mut C,
        to_client: &mut W,
        server: S,
    ) -> Result<(), TerminationError>
    where
        C: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let idle = Arc::new(IdleTimer::new(self.limits.idle_timeout));
        let client = Touch::new(tokio::io::join(first_bytes.chain(client), to_client), Arc::clone(&idle));
        let server = Touch::new(server, Arc::clone(&idle));
        let destination = self
            .credentials
            .as_ref()
            .map(|credentials| Destination::new(Arc::clone(credentials), &self.target, self.address, is_tls));
        // The buffers of the handshakes would make the futures of all connections large.
        let work = Box::pin(async {
            match (&self.credentials, is_tls) {
                (Some(credentials), true) => self.run_tls(credentials, destination, client, server).await,
                (None, true) => Err(TerminationError::Refused(Refusal::NoAuthority)),
                (_, false) => self.run_http1(destination, false, client, Ok(server)).await,
            }
        });
        idle.run(work).await.unwrap_or(Err(TerminationError::IdleTimeout))
    }

    async fn run_tls<C, S>(
        &self,
        credentials: &SandboxCredentials,
        destination: Option<Destination>,
        client: C,
        server: S,
    ) -> Result<(), TerminationError>
    where
        C: AsyncRead + AsyncWrite + Unpin,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let accepted = tls::accept(credentials, &self.target.host, &self.limits, client, server).await?;
        if let Err(refusal) = &accepted.server {
            self.log.record(Decision { is_allowed: false, reason: refusal.code(), ..self.decision.clone() });
        }
        if accepted.is_http2 {
            self.run_http2(destination, accepted.client, accepted.server).await
        } else {
            self.run_http1(destination, true, accepted.client, accepted.server).await
        }
    }

    fn exchange(&self, destination: Option<Destination>, is_tls: bool, upstream: Upstream) -> Arc<Exchange> {
        Arc::new(Exchange::new(self.clone(), destination, is_tls, upstream))
    }
}

/// Ends the sending side of the client, so that it sees the end of the connection and no truncation.
async fn end(mut client: impl AsyncWrite + Unpin) {
    // A client that reads nothing any more is disconnected.
    let _ = timeout(std::time::Duration::from_secs(2), client.shutdown()).await;
}
