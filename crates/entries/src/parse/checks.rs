//! What holds of single values, before and after `${VAR}` in them is expanded.

use std::collections::BTreeMap;

use super::error::EntryError;
use super::fields::Fields;

/// A value that is known only when the server starts.
pub(super) fn is_open(text: &str) -> bool {
    text.contains("${")
}

pub(super) fn check_path(fields: &Fields<'_>, key: &str, text: &str) -> Result<(), EntryError> {
    if text.starts_with('/') || text == "~" || text.starts_with("~/") || text.starts_with("${") {
        return Ok(());
    }
    Err(fields.wrong(key, format!("`{text}` is not an absolute path"), "write it from / or from ~/"))
}

pub(super) fn check_variables(
    fields: &Fields<'_>,
    key: &str,
    variables: &BTreeMap<String, String>,
) -> Result<(), EntryError> {
    match variables.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
        Some(name) => Err(fields.wrong(
            key,
            format!("`{}` cannot be the name of a variable", name.escape_debug()),
            "a name has at least one character, and no `=`",
        )),
        None => Ok(()),
    }
}

pub(super) fn check_headers(fields: &Fields<'_>, headers: &BTreeMap<String, String>) -> Result<(), EntryError> {
    // RFC 9110, 5.6.2: the characters of a token.
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    for (name, value) in headers {
        let shown = format!("headers.{}", name.escape_debug());
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(fields.wrong(&shown, "it is not the name of a header", "use letters, digits and `-`"));
        }
        if value.chars().any(|char| char.is_control() && char != '\t') {
            return Err(fields.wrong(&shown, "its value has a control character", "write it in one line"));
        }
    }
    Ok(())
}

/// Whether a URL is of one of these schemes and names a host.
pub fn check_url(url: &str, schemes: &[&str]) -> Result<(), String> {
    if url.chars().any(|char| char.is_control() || char.is_whitespace()) {
        return Err("it has a space or a control character".into());
    }
    let (scheme, rest) = url.split_once("://").ok_or("it has no scheme")?;
    let scheme = scheme.to_ascii_lowercase();
    if !schemes.contains(&scheme.as_str()) {
        return Err(format!("its scheme is `{scheme}`"));
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if host.is_empty() || host.starts_with(':') {
        return Err("it names no host".into());
    }
    Ok(())
}
