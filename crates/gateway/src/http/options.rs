//! How HTTP is served, and whether that is safe.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::rpc;
use crate::share::Principals;

/// A bearer token and the name under which its holder's sessions are kept.
#[derive(Clone)]
pub struct Token {
    pub principal: String,
    pub secret: String,
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Token").field("principal", &self.principal).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// With any token, every request needs one; with none, all callers are `local`.
    pub tokens: Vec<Token>,
    /// Names besides the loopback ones by which this server may be called and embedded.
    pub allowed_hosts: Vec<String>,
    pub enable_cors: bool,
    pub insecure_no_auth: bool,
    /// Without tokens, accept every user of this host, not only root and the user who runs the server.
    pub allow_local_users: bool,
    /// Requests at a time; one more is answered with 503. Streams on which a client only listens do not count.
    pub max_requests: usize,
    /// Connections at a time; one more is answered with 503.
    pub max_connections: usize,
    pub max_body_bytes: usize,
    /// What may be on its way to clients at a time: a client that reads slowly costs memory until it has read.
    pub max_response_bytes: usize,
    /// Cancelled when the server is to end: what is under way may end by itself, and nothing else begins.
    pub drain: CancellationToken,
    /// How long that may take.
    pub drain_timeout: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            tokens: Vec::new(),
            allowed_hosts: Vec::new(),
            enable_cors: false,
            insecure_no_auth: false,
            allow_local_users: false,
            max_requests: 512,
            max_connections: 1024,
            max_body_bytes: rpc::LONGEST,
            max_response_bytes: 512 << 20,
            drain: CancellationToken::new(),
            drain_timeout: Duration::from_secs(180),
        }
    }
}

impl HttpOptions {
    pub(crate) fn principals(&self) -> Principals {
        if self.tokens.len() > 1 { Principals::Several } else { Principals::One }
    }
}

/// Minimum length of a token on addresses other than loopback, where remote clients could guess it.
pub const MIN_TOKEN_BYTES: usize = 16;

/// Why the server does not listen.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ListenError {
    #[error("refusing to listen on {0} without a token: anyone who reaches it could run code")]
    NoToken(SocketAddr),
    #[error("the token of {0:?} is empty")]
    EmptyToken(String),
    #[error("refusing to listen on {address}: the token of {principal:?} has fewer than {MIN_TOKEN_BYTES} bytes")]
    ShortToken { address: SocketAddr, principal: String },
}

impl ListenError {
    /// What a person can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoToken(_) => "set a token, listen on 127.0.0.1, or pass --insecure-no-auth",
            Self::EmptyToken(_) => "give it a long random secret, or remove it",
            Self::ShortToken { .. } => "give it a long random secret, for example from `openssl rand -hex 32`",
        }
    }
}

/// Says whether it is safe to listen on an address.
pub fn check(address: SocketAddr, options: &HttpOptions) -> Result<(), ListenError> {
    if let Some(token) = options.tokens.iter().find(|token| token.secret.trim().is_empty()) {
        return Err(ListenError::EmptyToken(token.principal.clone()));
    }
    if address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    if let Some(token) = short_token(&options.tokens) {
        return Err(ListenError::ShortToken { address, principal: token.principal.clone() });
    }
    if options.tokens.is_empty() && !options.insecure_no_auth {
        return Err(ListenError::NoToken(address));
    }
    Ok(())
}

/// A token that is easy to guess, if there is one.
pub fn short_token(tokens: &[Token]) -> Option<&Token> {
    tokens.iter().find(|token| token.secret.trim().len() < MIN_TOKEN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_need_a_token() {
        let open = HttpOptions::default();
        let token = Token { principal: "ci".into(), secret: "s3cret-of-16-byt".into() };
        let guarded = HttpOptions { tokens: vec![token.clone()], ..open.clone() };
        let insecure = HttpOptions { insecure_no_auth: true, ..open.clone() };
        let outside = "0.0.0.0:8000".parse().unwrap();
        assert_eq!(check("127.0.0.1:8000".parse().unwrap(), &open), Ok(()));
        assert_eq!(check("[::1]:8000".parse().unwrap(), &open), Ok(()));
        assert_eq!(check(outside, &open), Err(ListenError::NoToken(outside)));
        assert_eq!(
            check("[::]:8000".parse().unwrap(), &open).unwrap_err().hint(),
            ListenError::NoToken(outside).hint()
        );
        assert_eq!(check(outside, &guarded), Ok(()));
        assert_eq!(check(outside, &insecure), Ok(()));
        assert!(!format!("{token:?}").contains("s3cret"));
    }

    #[test]
    fn short_tokens_are_refused_where_strangers_reach_the_server() {
        let token = Token { principal: "ci".into(), secret: "fifteen-bytes--".into() };
        let options = HttpOptions { tokens: vec![token], insecure_no_auth: true, ..HttpOptions::default() };
        let outside = "10.0.0.5:8000".parse().unwrap();
        let refusal = check(outside, &options).unwrap_err();
        assert_eq!(refusal, ListenError::ShortToken { address: outside, principal: "ci".into() });
        assert!(!refusal.to_string().contains("fifteen") && refusal.hint().contains("openssl"));
        assert_eq!(check("127.0.0.1:8000".parse().unwrap(), &options), Ok(()));
    }

    #[test]
    fn an_empty_token_guards_nothing() {
        let options = HttpOptions {
            tokens: vec![Token { principal: "ci".into(), secret: " ".into() }],
            ..HttpOptions::default()
        };
        let refusal = check("127.0.0.1:8000".parse().unwrap(), &options);
        assert_eq!(refusal, Err(ListenError::EmptyToken("ci".into())));
    }
}
