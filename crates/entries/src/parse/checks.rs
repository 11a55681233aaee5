//! Checks of single values: paths, variables, headers and URLs.

use std::collections::BTreeMap;

use super::error::EntryError;
use super::fields::Fields;

/// Returns whether a value contains a variable reference, so that it can be checked only after expansion.
pub(super) fn has_reference(text: &str) -> bool {
    text.contains("${")
}

pub(super) fn check_path(fields: &Fields<'_>, key: &str, text: &str) -> Result<(), EntryError> {
    if text.starts_with('/') || text == "~" || text.starts_with("~/") || text.starts_with("${") {
        return Ok(());
    }
    Err(fields.invalid(key, format!("is not an absolute path: `{text}`"), "start the path with / or ~/"))
}

pub(super) fn check_variables(
    fields: &Fields<'_>,
    key: &str,
    variables: &BTreeMap<String, String>,
) -> Result<(), EntryError> {
    match variables.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
        Some(name) => Err(fields.invalid(
            key,
            format!("contains the invalid variable name `{}`", name.escape_debug()),
            "use a name with at least one character and without `=`",
        )),
        None => Ok(()),
    }
}

pub(super) fn check_headers(fields: &Fields<'_>, headers: &BTreeMap<String, String>) -> Result<(), EntryError> {
    // RFC 9110, 5.6.2: the characters of a token.
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    for (name, value) in headers {
        let key = format!("headers.{}", name.escape_debug());
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(fields.invalid(&key, "is not a valid header name", "use letters, digits and `-`"));
        }
        if value.chars().any(|char| char.is_control() && char != '\t') {
            return Err(fields.invalid(&key, "contains a control character", "write the value on one line"));
        }
    }
    Ok(())
}

/// Checks that a URL has one of the given schemes and a host.
///
/// The error is a predicate ("has no host") that does not repeat the URL, because a URL may contain a secret.
pub(crate) fn check_url(url: &str, schemes: &[&str]) -> Result<(), String> {
    if url.chars().any(|char| char.is_control() || char.is_whitespace()) {
        return Err("contains a space or a control character".into());
    }
    let (scheme, rest) = url.split_once("://").ok_or("has no scheme")?;
    let scheme = scheme.to_ascii_lowercase();
    if !schemes.contains(&scheme.as_str()) {
        return Err(format!("has the unsupported scheme `{scheme}`"));
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if host.is_empty() || host.starts_with(':') {
        return Err("has no host".into());
    }
    Ok(())
}
