//! Query parameters. Each route lists the parameters it reads; a request with any other parameter is refused.
//!
//! Ignoring a parameter would change the meaning of a request: `PUT …?offset=10` would replace the whole file.

use axum::extract::Query;
use axum::http::{Method, Uri};
use ringfence_core::{Failure, Kind};

/// The route of requests that match no other.
pub(super) const FALLBACK: &str = "/v1/{*rest}";

/// Maximum length of an unknown parameter's name in the error.
const MAX_SHOWN_CHARS: usize = 64;

fn known_parameters(method: &Method, route: &str) -> &'static [&'static str] {
    let is_read = *method == Method::GET || *method == Method::HEAD;
    match route {
        "/v1/sessions/{id}/files" | "/v1/sessions/{id}/files/" | "/v1/sessions/{id}/files/{*path}" if is_read => {
            &["offset", "length"]
        }
        _ => &[],
    }
}

pub(super) fn check(method: &Method, route: &str, uri: &Uri) -> Result<(), Failure> {
    if route == FALLBACK || uri.query().is_none_or(str::is_empty) {
        return Ok(());
    }
    let Query(given) = Query::<Vec<(String, String)>>::try_from_uri(uri)
        .map_err(|rejection| Failure::new(Kind::Validation, rejection.body_text()))?;
    let known = known_parameters(method, route);
    let Some((unknown, _)) = given.into_iter().find(|(name, _)| !known.contains(&name.as_str())) else {
        return Ok(());
    };
    let unknown: String = unknown.chars().take(MAX_SHOWN_CHARS).collect();
    let suggestion = match known {
        [] => "this request takes no query parameters".to_owned(),
        known => format!("this request takes {}", known.join(" and ")),
    };
    let failure = Failure::new(Kind::Validation, format!("unknown query parameter `{unknown}`"));
    Err(failure.hint(suggestion).with("field", unknown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reads_of_files_take_parameters() {
        let file = "/v1/sessions/{id}/files/{*path}";
        let check = |method: Method, route: &str, uri: &str| check(&method, route, &uri.parse().unwrap());
        assert!(check(Method::GET, file, "/v1/sessions/s/files/a?offset=1&length=2").is_ok());
        assert!(check(Method::GET, file, "/v1/sessions/s/files/a?").is_ok());
        assert!(check(Method::PUT, file, "/v1/sessions/s/files/a").is_ok());
        assert!(check(Method::GET, FALLBACK, "/v1/nothing?a=b").is_ok(), "the fallback responds with 404");
        let refused = check(Method::PUT, file, "/v1/sessions/s/files/a?offset=1").unwrap_err();
        assert_eq!(refused.message, "unknown query parameter `offset`");
        for (method, route, uri) in [
            (Method::GET, file, "/v1/sessions/s/files/a?offset=1&limit=2"),
            (Method::GET, file, "/v1/sessions/s/files/a?offse%74s=1"),
            (Method::POST, "/v1/sessions", "/v1/sessions?template=python"),
            (Method::DELETE, "/v1/servers/{name}", "/v1/servers/a?force"),
        ] {
            assert!(check(method, route, uri).is_err(), "{uri}");
        }
    }
}
