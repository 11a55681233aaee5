//! Identifies the senders of HTTP requests: by a bearer token or, without tokens, by the user who owns the connection.
//!
//! With any token configured, every request needs one. Without tokens only the user who runs the server and root may
//! connect. Failed attempts are limited per address.

mod failed_attempts;
mod local_user;
mod token;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use ringfence_core::{AuditKind, Principal};
use ringfence_mcp::failure::with_retry_after;
use ringfence_mcp::fair_pool::Principals;
use ringfence_mcp::http::{Authenticator, Denial, Origin, Peer, Refused, refuse};
use subtle::ConstantTimeEq;
use tokio::net::TcpStream;

#[cfg(test)]
pub(crate) use failed_attempts::MAX_FAILURES;
pub use token::{ListenError, MIN_TOKEN_BYTES, Token, check_listen_address, short_token};

use failed_attempts::FailedAttempts;
use local_user::LocalUserCheck;

/// The way in which the senders of requests are identified.
#[derive(Debug, Clone, Default)]
pub struct AuthenticationOptions {
    pub tokens: Vec<Token>,
    /// Without tokens, accept every connection.
    pub insecure_no_auth: bool,
    /// Without tokens, accept every user of this host, not only root and the user who runs the server.
    pub allow_local_users: bool,
}

impl AuthenticationOptions {
    pub(crate) fn principals(&self) -> Principals {
        if self.tokens.len() > 1 { Principals::Several } else { Principals::One }
    }
}

pub(crate) struct Authentication {
    tokens: Vec<Token>,
    local_users: LocalUserCheck,
    failures: FailedAttempts,
}

impl Authentication {
    pub(crate) fn new(options: AuthenticationOptions) -> Self {
        let local_users = LocalUserCheck::new(&options);
        Self { tokens: options.tokens, local_users, failures: FailedAttempts::default() }
    }

    /// Compares with every token in full, so that the time reveals no more than the length of a token.
    fn token_holder(&self, headers: &HeaderMap) -> Option<Principal> {
        let (scheme, secret) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let secret = secret.trim().as_bytes();
        let mut holder = None;
        for token in &self.tokens {
            if token.secret.as_bytes().ct_eq(secret).into() {
                holder = Some(Principal::named(token.principal.as_str()));
            }
        }
        holder
    }
}

impl Authenticator for Authentication {
    fn classify(&self, stream: &TcpStream) -> Origin {
        self.local_users.classify(stream)
    }

    /// After too many failures tokens are no longer compared, except on loopback, where many users share one address.
    fn authenticate(&self, headers: &HeaderMap, peer: &Peer) -> Result<Principal, Box<Denial>> {
        if self.tokens.is_empty() {
            return match peer.origin() {
                Origin::Owner | Origin::Unknown => Ok(Principal::local()),
                Origin::Refused(refused) => Err(connection_refused(refused)),
            };
        }
        let address = peer.address();
        let is_limited = !address.is_loopback() && !peer.is_authenticated();
        if is_limited && self.failures.is_blocked(address) {
            return Err(too_many_failures());
        }
        self.token_holder(headers)
            .ok_or_else(|| if self.failures.record(address) { invalid_token(headers) } else { too_many_failures() })
    }
}

const TOKEN_HINT: &str = "send `Authorization: Bearer <token>` with a token of the configuration";

fn invalid_token(headers: &HeaderMap) -> Box<Denial> {
    let outcome = if headers.contains_key(header::AUTHORIZATION) { "wrong_token" } else { "no_token" };
    let mut response = refuse(StatusCode::UNAUTHORIZED, "a valid token is required", TOKEN_HINT);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    Box::new(Denial { kind: AuditKind::AuthenticationFailed, outcome, response })
}

fn too_many_failures() -> Box<Denial> {
    let message = "authentication failed too often from this address";
    let response = with_retry_after(refuse(StatusCode::TOO_MANY_REQUESTS, message, TOKEN_HINT));
    Box::new(Denial { kind: AuditKind::AuthenticationFailed, outcome: "too_many_failures", response })
}

fn connection_refused(refused: Refused) -> Box<Denial> {
    let token_hint = "configure a token ([server.tokens.NAME] or RINGFENCE_AUTH_TOKEN) and send it";
    let open_hint = format!("{token_hint}, or start the server with --allow-local-users");
    let rule = "without a token only root and the user who runs the server may use it";
    let (outcome, cause, hint) = match refused {
        Refused::OtherUser(uid) => {
            ("other_local_user", format!("this connection belongs to uid {uid}"), &open_hint[..])
        }
        Refused::Guest => {
            ("guest_without_token", "this connection comes from a sandbox, through the egress proxy".into(), token_hint)
        }
        Refused::UnknownUser => {
            ("unknown_local_user", "the owner of this connection cannot be determined".into(), &open_hint[..])
        }
    };
    let error = format!("{cause}: {rule} (server.allow_local_users)");
    Box::new(Denial { kind: AuditKind::Refused, outcome, response: refuse(StatusCode::FORBIDDEN, &error, hint) })
}
