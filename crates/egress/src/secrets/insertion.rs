//! Exchanges placeholders for values in the head of a request, or refuses the request.

use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::header::{AUTHORIZATION, HeaderValue};
use http::request::Parts;
use http::uri::{PathAndQuery, Uri};
use memchr::memmem;
use zeroize::Zeroizing;

use super::credentials::{SandboxCredentials, SecretBinding};
use super::definition::Location;
use super::replacement::Replacements;
use crate::rules::{AddressClass, HostPort, overrides_request};

/// Clients write the padding of Basic credentials, and some leave it out.
const BASIC: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Reason why a request with a placeholder is refused. It contains the name of the secret, never a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SecretDenial {
    #[error("the request contains the placeholder of secret `{0}`, which is not for this host, method and path")]
    Elsewhere(String),
    #[error("the request contains the placeholder of secret `{0}` without TLS")]
    PlainText(String),
    #[error("the request contains the placeholder of secret `{secret}` in its {location}")]
    Location { secret: String, location: &'static str },
}

impl SecretDenial {
    /// Returns the stable code of this denial.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Elsewhere(_) => "secret-elsewhere",
            Self::PlainText(_) => "secret-plain-text",
            Self::Location { .. } => "secret-location",
        }
    }

    pub(crate) fn secret(&self) -> &str {
        match self {
            Self::Elsewhere(secret) | Self::PlainText(secret) | Self::Location { secret, .. } => secret,
        }
    }

    pub(crate) fn hint(&self) -> String {
        match self {
            Self::Elsewhere(secret) => {
                format!("the definition of secret `{secret}` names its hosts, methods and paths")
            }
            Self::PlainText(_) => {
                "use https://, or mark a host with a private address as `HOST+private` in the hosts of the secret"
                    .into()
            }
            Self::Location { location: "query", .. } => "add the location `query` to the secret".into(),
            Self::Location { location: "basic credentials", .. } => "add the location `basic` to the secret".into(),
            Self::Location { .. } => "send the secret in a header field, such as Authorization".into(),
        }
    }
}

/// The secrets of a sandbox, sorted by what one connection may do with them.
pub(crate) struct Destination {
    credentials: Arc<SandboxCredentials>,
    /// Indices of the secrets that requests of this connection may contain.
    usable: Vec<usize>,
    /// The placeholders of the other secrets, with the reason why they are refused.
    refused: Vec<(usize, SecretDenial, Replacements)>,
    /// All placeholders of `refused`, for bodies.
    pub(crate) refused_in_bodies: Arc<Replacements>,
}

impl Destination {
    /// `address` is the address that the proxy has connected to.
    pub(crate) fn new(
        credentials: Arc<SandboxCredentials>,
        target: &HostPort,
        address: Option<IpAddr>,
        is_tls: bool,
    ) -> Self {
        let (mut usable, mut refused, mut in_bodies) = (Vec::new(), Vec::new(), Replacements::default());
        let is_private = address.is_some_and(|address| AddressClass::of(address) == AddressClass::Private);
        for (index, secret) in credentials.bindings.iter().enumerate() {
            let denial = match secret.rule_for(target) {
                None => SecretDenial::Elsewhere(secret.name().to_owned()),
                Some(rule) if is_tls || rule.allows_private() && is_private => {
                    usable.push(index);
                    continue;
                }
                Some(_) => SecretDenial::PlainText(secret.name().to_owned()),
            };
            let mut texts = Replacements::default();
            for texts in [&mut texts, &mut in_bodies] {
                texts.add_with_encodings(index, &secret.placeholder, &"x".repeat(secret.placeholder.len()));
            }
            refused.push((index, denial, texts));
        }
        Self { credentials, usable, refused, refused_in_bodies: Arc::new(in_bodies) }
    }

    /// Returns whether responses can contain a value.
    pub(crate) fn receives_values(&self) -> bool {
        !self.usable.is_empty()
    }

    /// Returns the values and their placeholders, for responses.
    pub(crate) fn values(&self) -> &Arc<Replacements> {
        &self.credentials.values
    }

    /// Returns the reason to refuse a body that contains the placeholder of a secret.
    pub(crate) fn denial_of_body(&self, secret: usize) -> Option<SecretDenial> {
        let mut refused = self.refused.iter();
        refused.find(|(index, _, _)| *index == secret).map(|(_, denial, _)| denial.clone())
    }
}

/// Inserts the values of secrets into a request; returns the names of the secrets that were used.
pub(crate) fn insert_secrets(destination: &Destination, parts: &mut Parts) -> Result<Vec<String>, SecretDenial> {
    for (_, denial, texts) in &destination.refused {
        if is_in_head(texts, parts) {
            return Err(denial.clone());
        }
    }
    let mut used = Vec::new();
    for index in &destination.usable {
        let secret = &destination.credentials.bindings[*index];
        if insert(secret, parts)? {
            used.push(secret.name().to_owned());
        }
    }
    Ok(used)
}

fn is_in_head(texts: &Replacements, parts: &Parts) -> bool {
    let url = parts.uri.to_string();
    let decoded = percent_decode(&url);
    let is_in_fields = parts.headers.iter().any(|(name, value)| {
        // Names are in lower case in HTTP/2.
        texts.is_in(value.as_bytes()) || texts.is_in(name.as_str().as_bytes())
    });
    is_in_fields || texts.is_in(url.as_bytes()) || texts.is_in(&decoded)
}

/// Inserts one value; returns whether its placeholder was found.
fn insert(secret: &SecretBinding, parts: &mut Parts) -> Result<bool, SecretDenial> {
    let placeholder = secret.placeholder.as_bytes();
    let is_in = |bytes: &[u8]| memmem::find(bytes, placeholder).is_some();
    let path = parts.uri.path().to_owned();
    let query = parts.uri.query().map(str::to_owned);
    let in_path = is_in(path.as_bytes()) || is_in(&percent_decode(&path));
    let in_query = query.as_ref().is_some_and(|query| is_in(query.as_bytes()) || is_in(&percent_decode(query)));
    let in_fields = parts.headers.values().any(|value| is_in(value.as_bytes()));
    let basic =
        parts.headers.get_all(AUTHORIZATION).iter().any(|value| decode_basic(value).is_some_and(|text| is_in(&text)));
    let name_in_lower_case = secret.placeholder.to_ascii_lowercase();
    let in_names = parts.headers.keys().any(|name| name.as_str().contains(&name_in_lower_case));
    if !(in_path || in_query || in_fields || basic || in_names) {
        return Ok(false);
    }
    let requests = &secret.definition.requests;
    let is_overridden = requests.is_limited() && parts.headers.keys().any(|name| overrides_request(name.as_str()));
    if is_overridden || requests.check(parts.method.as_str(), &path).is_err() {
        return Err(SecretDenial::Elsewhere(secret.name().to_owned()));
    }
    let misplaced = [
        (in_path, "path"),
        (in_names, "field names"),
        (in_query && !secret.allows(Location::Query), "query"),
        (in_fields && !secret.allows(Location::Header), "header"),
        (basic && !secret.allows(Location::Basic), "basic credentials"),
    ];
    if let Some((_, location)) = misplaced.into_iter().find(|(is_misplaced, _)| *is_misplaced) {
        return Err(SecretDenial::Location { secret: secret.name().to_owned(), location });
    }
    let unusable = |location| SecretDenial::Location { secret: secret.name().to_owned(), location };
    if let Some(query) = query.filter(|_| in_query) {
        set_query(parts, &insert_into_query(secret, &query)).ok_or_else(|| unusable("query"))?;
    }
    for (name, value) in &mut parts.headers {
        let encoded = if name == AUTHORIZATION && basic { insert_into_basic(secret, value) } else { None };
        let new = match encoded {
            Some(new) => new,
            None if is_in(value.as_bytes()) => substitute(secret, value.as_bytes()),
            None => continue,
        };
        *value = HeaderValue::from_bytes(&new).map_err(|_| unusable("header"))?;
        value.set_sensitive(true);
    }
    Ok(true)
}

/// Replaces all placeholders by the value.
fn substitute(secret: &SecretBinding, bytes: &[u8]) -> Zeroizing<Vec<u8>> {
    let (placeholder, value) = (secret.placeholder.as_bytes(), secret.definition.value.expose().as_bytes());
    let mut new = Zeroizing::new(Vec::with_capacity(bytes.len() + value.len()));
    let mut rest = bytes;
    while let Some(at) = memmem::find(rest, placeholder) {
        new.extend_from_slice(&rest[..at]);
        new.extend_from_slice(value);
        rest = &rest[at + placeholder.len()..];
    }
    new.extend_from_slice(rest);
    new
}

/// Returns the user name and password of Basic credentials.
fn decode_basic(value: &HeaderValue) -> Option<Zeroizing<Vec<u8>>> {
    let (scheme, encoded) = value.as_bytes().split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    BASIC.decode(encoded.trim_ascii()).ok().map(Zeroizing::new)
}

fn insert_into_basic(secret: &SecretBinding, value: &HeaderValue) -> Option<Zeroizing<Vec<u8>>> {
    let decoded = decode_basic(value)?;
    let encoded = Zeroizing::new(BASIC.encode(substitute(secret, &decoded)));
    Some(Zeroizing::new([b"Basic ", encoded.as_bytes()].concat()))
}

/// Inserts the value into the parameters of a query that contain the placeholder.
fn insert_into_query(secret: &SecretBinding, query: &str) -> Zeroizing<String> {
    let mut new = Zeroizing::new(String::with_capacity(query.len() + secret.definition.value.expose().len() * 3));
    for (index, part) in query.split('&').enumerate() {
        if index > 0 {
            new.push('&');
        }
        for (index, text) in part.splitn(2, '=').enumerate() {
            if index > 0 {
                new.push('=');
            }
            let decoded = percent_decode(text);
            if memmem::find(&decoded, secret.placeholder.as_bytes()).is_some() {
                percent_encode(&substitute(secret, &decoded), &mut new);
            } else {
                new.push_str(text);
            }
        }
    }
    new
}

fn set_query(parts: &mut Parts, query: &str) -> Option<()> {
    let path_and_query = Zeroizing::new(format!("{}?{query}", parts.uri.path()));
    let mut uri = std::mem::take(&mut parts.uri).into_parts();
    uri.path_and_query = Some(PathAndQuery::try_from(path_and_query.as_str()).ok()?);
    parts.uri = Uri::from_parts(uri).ok()?;
    Some(())
}

/// Decodes percent-encoded bytes; malformed ones stay as they are.
fn percent_decode(text: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let value = digits.filter(|_| *byte == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok());
        decoded.push(value.unwrap_or(*byte));
        rest = if value.is_some() { &after[2..] } else { after };
    }
    decoded
}

fn percent_encode(bytes: &[u8], out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            out.push(char::from(*byte));
        } else {
            let digits = [byte >> 4, byte & 15].map(|digit| char::from(DIGITS[usize::from(digit)]));
            out.push('%');
            out.extend(digits);
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;
    use http::Request;

    use super::*;
    use crate::secrets::credentials::tests::definition;

    const VALUE: &str = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";

    fn credentials(locations: &[Location]) -> Arc<SandboxCredentials> {
        Arc::new(
            SandboxCredentials::generate(&[definition("github", VALUE, &["a.com", "b.com+private"], locations)])
                .unwrap(),
        )
    }

    fn placeholder(credentials: &SandboxCredentials) -> String {
        credentials.bindings[0].placeholder.clone()
    }

    fn run(
        credentials: &Arc<SandboxCredentials>,
        (host, address, is_tls): (&str, &str, bool),
        uri: &str,
        field: (&str, &str),
    ) -> Result<Parts, &'static str> {
        let target = HostPort::parse(host, Some(443)).unwrap();
        let destination = Destination::new(Arc::clone(credentials), &target, address.parse().ok(), is_tls);
        let (mut parts, ()) = Request::get(uri).header(field.0, field.1).body(()).unwrap().into_parts();
        insert_secrets(&destination, &mut parts).map(|_| parts).map_err(|denial| denial.code())
    }

    const TLS: (&str, &str, bool) = ("a.com", "1.1.1.1", true);

    #[test]
    fn values_are_inserted_into_allowed_locations() {
        let all = credentials(&Location::ALL);
        let p = placeholder(&all);
        let field = |name, value: &str| {
            let parts = run(&all, TLS, "/", (name, value)).unwrap();
            parts.headers[name].to_str().unwrap().to_owned()
        };
        assert_eq!(field("authorization", &format!("Bearer {p}")), format!("Bearer {VALUE}"));
        assert_eq!(field("authorization", &format!("token {p}")), format!("token {VALUE}"));
        assert_eq!(field("x-api-key", &p), VALUE);
        assert_eq!(field("cookie", &format!("a={p}; b={p}")), format!("a={VALUE}; b={VALUE}"));
        assert_eq!(field("x", "other"), "other");
        for credentials in [format!("{p}:x-oauth-basic"), format!("me:{p}")] {
            let expected = STANDARD.encode(credentials.replace(&p, VALUE));
            assert_eq!(
                field("authorization", &format!("basic {}", STANDARD.encode(credentials))),
                format!("Basic {expected}")
            );
        }
        let query = |query: &str| run(&all, TLS, &format!("/x?{query}"), ("a", "b")).unwrap().uri.to_string();
        assert_eq!(query(&format!("a=%20&key={p}&b")), format!("/x?a=%20&key={VALUE}&b"));
        let encoded = format!("%{:02x}{}", p.as_bytes()[0], &p[1..]);
        assert_eq!(query(&format!("key={encoded}")), format!("/x?key={VALUE}"));
    }

    #[test]
    fn other_locations_are_refused() {
        let (header, none) = (credentials(&[Location::Header]), credentials(&[]));
        let p = placeholder(&header);
        let basic = format!("Basic {}", STANDARD.encode(format!("me:{p}")));
        assert_eq!(run(&header, TLS, "/", ("authorization", &basic)).unwrap_err(), "secret-location");
        assert_eq!(run(&header, TLS, &format!("/?a={p}"), ("a", "b")).unwrap_err(), "secret-location");
        assert_eq!(run(&header, TLS, &format!("/{p}/x"), ("a", "b")).unwrap_err(), "secret-location");
        assert_eq!(run(&header, TLS, "/", (&p.to_lowercase(), "b")).unwrap_err(), "secret-location");
        assert_eq!(run(&none, TLS, "/", ("a", &placeholder(&none))).unwrap_err(), "secret-location");
    }

    #[test]
    fn other_hosts_and_plain_text_are_refused() {
        let all = credentials(&Location::ALL);
        let p = placeholder(&all);
        for host in ["c.com", "a.com:8443", "x.a.com"] {
            let elsewhere = (host, "1.1.1.1", true);
            assert_eq!(run(&all, elsewhere, "/", ("a", &p)).unwrap_err(), "secret-elsewhere", "{host}");
            assert_eq!(run(&all, elsewhere, &format!("/{p}"), ("a", "b")).unwrap_err(), "secret-elsewhere");
            let encoded = format!("/?a=%{:02x}{}", p.as_bytes()[0], &p[1..]);
            assert_eq!(run(&all, elsewhere, &encoded, ("a", "b")).unwrap_err(), "secret-elsewhere");
            let basic = format!("Basic {}", STANDARD.encode(format!("me:{p}")));
            assert_eq!(run(&all, elsewhere, "/", ("authorization", &basic)).unwrap_err(), "secret-elsewhere");
            assert!(run(&all, elsewhere, "/", ("a", "b")).is_ok());
        }
        assert_eq!(run(&all, ("a.com:80", "1.1.1.1", false), "/", ("a", &p)).unwrap_err(), "secret-plain-text");
        assert_eq!(run(&all, ("b.com:80", "1.1.1.1", false), "/", ("a", &p)).unwrap_err(), "secret-plain-text");
        assert!(run(&all, ("b.com:80", "10.0.0.1", false), "/", ("a", &p)).is_ok());
    }

    #[test]
    fn other_methods_and_paths_are_refused() {
        let mut github = definition("github", VALUE, &["a.com"], &[Location::Header]);
        github.requests.methods.push("GET".parse().unwrap());
        github.requests.paths.push("/repos/*".parse().unwrap());
        let limited = Arc::new(SandboxCredentials::generate(&[github]).unwrap());
        let p = placeholder(&limited);
        assert!(run(&limited, TLS, "/repos/x", ("a", &p)).is_ok());
        assert_eq!(run(&limited, TLS, "/user", ("a", &p)).unwrap_err(), "secret-elsewhere");
        assert_eq!(run(&limited, TLS, "/repos/../user", ("a", &p)).unwrap_err(), "secret-elsewhere");
        assert!(run(&limited, TLS, "/user", ("a", "b")).is_ok());
    }
}
