//! Bearer tokens, and the addresses on which a server may listen with them.

use std::fmt;
use std::net::SocketAddr;

use super::AuthenticationOptions;

/// A bearer token, and the name of the principal that owns the sessions of its holder.
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

/// Minimum length of a token on addresses other than loopback, where remote clients could guess it.
pub const MIN_TOKEN_BYTES: usize = 16;

/// The reason why the server does not listen on an address.
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
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoToken(_) => "set a token, listen on 127.0.0.1, or pass --insecure-no-auth",
            Self::EmptyToken(_) => "give it a long random secret, or remove it",
            Self::ShortToken { .. } => "give it a long random secret, for example from `openssl rand -hex 32`",
        }
    }
}

/// Checks whether the server may listen on an address.
pub fn check_listen_address(address: SocketAddr, options: &AuthenticationOptions) -> Result<(), ListenError> {
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

/// Returns a token that is easy to guess, if there is one.
pub fn short_token(tokens: &[Token]) -> Option<&Token> {
    tokens.iter().find(|token| token.secret.trim().len() < MIN_TOKEN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(secret: &str) -> Token {
        Token { principal: "ci".into(), secret: secret.into() }
    }

    #[test]
    fn remote_clients_need_a_token() {
        let open = AuthenticationOptions::default();
        let token = token("s3cret-of-16-byt");
        let guarded = AuthenticationOptions { tokens: vec![token.clone()], ..open.clone() };
        let insecure = AuthenticationOptions { insecure_no_auth: true, ..open.clone() };
        let outside = "0.0.0.0:8000".parse().unwrap();
        assert_eq!(check_listen_address("127.0.0.1:8000".parse().unwrap(), &open), Ok(()));
        assert_eq!(check_listen_address("[::1]:8000".parse().unwrap(), &open), Ok(()));
        assert_eq!(check_listen_address(outside, &open), Err(ListenError::NoToken(outside)));
        assert_eq!(
            check_listen_address("[::]:8000".parse().unwrap(), &open).unwrap_err().hint(),
            ListenError::NoToken(outside).hint()
        );
        assert_eq!(check_listen_address(outside, &guarded), Ok(()));
        assert_eq!(check_listen_address(outside, &insecure), Ok(()));
        assert!(!format!("{token:?}").contains("s3cret"));
    }

    #[test]
    fn short_tokens_are_refused_where_remote_clients_reach_the_server() {
        let options = AuthenticationOptions {
            tokens: vec![token("fifteen-bytes--")],
            insecure_no_auth: true,
            ..AuthenticationOptions::default()
        };
        let outside = "10.0.0.5:8000".parse().unwrap();
        let refusal = check_listen_address(outside, &options).unwrap_err();
        assert_eq!(refusal, ListenError::ShortToken { address: outside, principal: "ci".into() });
        assert!(!refusal.to_string().contains("fifteen") && refusal.hint().contains("openssl"));
        assert_eq!(check_listen_address("127.0.0.1:8000".parse().unwrap(), &options), Ok(()));
    }

    #[test]
    fn empty_token_is_refused() {
        let options = AuthenticationOptions { tokens: vec![token(" ")], ..AuthenticationOptions::default() };
        let refusal = check_listen_address("127.0.0.1:8000".parse().unwrap(), &options);
        assert_eq!(refusal, Err(ListenError::EmptyToken("ci".into())));
    }
}
