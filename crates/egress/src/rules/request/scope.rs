//! The methods and paths to which a rule or a secret is limited.

use super::method::Method;
use super::path::{PathPattern, RequestPath};

/// Methods and path patterns. An empty list does not limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RequestScope {
    pub methods: Vec<Method>,
    pub paths: Vec<PathPattern>,
}

/// Reason why a request is outside of a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestDenial {
    #[error("no rule allows this method for this path")]
    Method,
    #[error("no rule allows this path")]
    Path,
    #[error("the path is ambiguous, and the rules of this host are limited to paths")]
    AmbiguousPath,
    #[error("the request overrides its method or path by a header field")]
    Override,
}

impl RequestDenial {
    /// Returns the stable code of this denial.
    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::Method => "wrong-method",
            Self::Path => "wrong-path",
            Self::AmbiguousPath => "ambiguous-path",
            Self::Override => "request-override",
        }
    }
}

/// Returns whether some servers take the method or the path of a request from the field with this name (in lower case).
/// CGI and what is modelled on it do not distinguish `_` and `-`.
pub(crate) fn overrides_request(field: &str) -> bool {
    const FIELDS: [&str; 6] = [
        "x-http-method-override",
        "x-http-method",
        "x-method-override",
        "x-original-url",
        "x-rewrite-url",
        "x-original-uri",
    ];
    FIELDS.contains(&field.replace('_', "-").as_str())
}

impl RequestScope {
    pub fn is_limited(&self) -> bool {
        !self.methods.is_empty() || !self.paths.is_empty()
    }

    /// Checks a request. `path` has no query.
    pub(crate) fn check(&self, method: &str, path: &str) -> Result<(), RequestDenial> {
        if !self.paths.is_empty() {
            let path = RequestPath::parse(path).ok_or(RequestDenial::AmbiguousPath)?;
            if !self.paths.iter().any(|pattern| pattern.matches(&path)) {
                return Err(RequestDenial::Path);
            }
        }
        let has_method = self.methods.is_empty() || self.methods.iter().any(|allowed| allowed.as_str() == method);
        if has_method { Ok(()) } else { Err(RequestDenial::Method) }
    }

    /// Checks a request against several scopes, of which one must allow it. No scopes allow everything.
    ///
    /// The reason is that of the scope which comes closest: one that allows the path, but not the method.
    pub(crate) fn check_any<'a>(
        scopes: impl IntoIterator<Item = &'a Self>,
        method: &str,
        path: &str,
    ) -> Result<(), RequestDenial> {
        let mut closest = Ok(());
        for scope in scopes {
            match scope.check(method, path) {
                Ok(()) => return Ok(()),
                Err(RequestDenial::Method) => closest = Err(RequestDenial::Method),
                Err(denial) if closest != Err(RequestDenial::Method) => closest = Err(denial),
                Err(_) => {}
            }
        }
        closest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(methods: &[&str], paths: &[&str]) -> RequestScope {
        RequestScope {
            methods: methods.iter().map(|method| method.parse().unwrap()).collect(),
            paths: paths.iter().map(|path| path.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn fields_that_override_requests_are_known_in_every_spelling() {
        assert!(overrides_request("x-http-method-override") && overrides_request("x_http_method_override"));
        assert!(overrides_request("x-original_url") && !overrides_request("x-original"));
    }

    #[test]
    fn one_scope_must_allow_both_method_and_path() {
        let scopes = [scope(&["get"], &["/a/*"]), scope(&["POST"], &["/b"])];
        let check = |method, path| RequestScope::check_any(&scopes, method, path);
        assert_eq!(check("GET", "/a/x"), Ok(()));
        assert_eq!(check("POST", "/b"), Ok(()));
        assert_eq!(check("POST", "/a/x"), Err(RequestDenial::Method));
        assert_eq!(check("get", "/a/x"), Err(RequestDenial::Method));
        assert_eq!(check("GET", "/c"), Err(RequestDenial::Path));
        assert_eq!(check("GET", "/a/../b"), Err(RequestDenial::AmbiguousPath));
        assert_eq!(RequestScope::check_any(&[], "GET", "//"), Ok(()));
        assert_eq!(RequestScope::check_any(&[scope(&["GET"], &[])], "GET", "//"), Ok(()));
    }
}
