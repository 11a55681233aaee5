//! The paths that the mirror serves.

use super::hash::FileHash;
use super::names::{NpmName, PythonName, is_python_file_name};

/// What a guest requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    /// `/npm/-/ping`
    Ping,
    /// `/pypi/simple/NAME/`
    PythonIndex(PythonName),
    /// `/pypi/files/NAME/HASH/FILE` and `/pypi/files/NAME/HASH/FILE.metadata`
    PythonFile {
        project: PythonName,
        hash: FileHash,
        file_name: String,
        is_metadata: bool,
    },
    /// `/npm/NAME`
    Packument(NpmName),
    /// `/npm/NAME/-/FILE`
    Tarball {
        name: NpmName,
        version: String,
    },
    /// `/programs/uv`
    Uv,
    /// A function of a registry that the mirror does not have.
    Unsupported(&'static str),
    NotFound,
}

impl Route {
    /// Parses the target of a request. Its query is ignored.
    pub(super) fn parse(target: &str) -> Self {
        let path = target.split(['?', '#']).next().unwrap_or_default();
        let Some(path) = path.strip_prefix('/') else { return Self::NotFound };
        // A package name can contain an encoded slash, so segments are decoded after the split.
        let Some(segments) = path.split('/').map(decode).collect::<Option<Vec<String>>>() else {
            return Self::NotFound;
        };
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        match segments.as_slice() {
            ["pypi", "simple"] | ["pypi", "simple", ""] => {
                Self::Unsupported("the mirror does not list all packages; request one by its name")
            }
            ["pypi", "simple", name] | ["pypi", "simple", name, ""] => {
                PythonName::parse(name).map_or(Self::NotFound, Self::PythonIndex)
            }
            ["pypi", "files", project, hash, file] => python_file(project, hash, file).unwrap_or(Self::NotFound),
            ["programs", "uv"] => Self::Uv,
            ["npm", rest @ ..] => npm(rest, true),
            // npm replaces only the host in lock files, so that the path of a tarball has no prefix then.
            rest => npm(rest, false),
        }
    }
}

fn python_file(project: &str, hash: &str, file: &str) -> Option<Route> {
    let (file_name, is_metadata) = match file.strip_suffix(".metadata") {
        Some(name) => (name, true),
        None => (file, false),
    };
    let (project, hash) = (PythonName::parse(project)?, FileHash::from_path(hash)?);
    is_python_file_name(file_name).then(|| Route::PythonFile {
        project,
        hash,
        file_name: file_name.to_owned(),
        is_metadata,
    })
}

fn npm(segments: &[&str], has_prefix: bool) -> Route {
    match segments {
        ["-", "ping"] if has_prefix => Route::Ping,
        // The package `npm` without the prefix.
        ["-", file] if has_prefix && file.starts_with("npm-") => tarball("npm", file),
        ["-", ..] if has_prefix => {
            Route::Unsupported("the mirror is read-only and has no search, audit, login or publish")
        }
        [scope, name, "-", file] if scope.starts_with('@') => tarball(&format!("{scope}/{name}"), file),
        [name, "-", file] => tarball(name, file),
        [scope, name] if has_prefix && scope.starts_with('@') => package(&format!("{scope}/{name}")),
        [name] if has_prefix => package(name),
        _ => Route::NotFound,
    }
}

fn package(name: &str) -> Route {
    NpmName::parse(name).map_or(Route::NotFound, Route::Packument)
}

fn tarball(name: &str, file: &str) -> Route {
    let parsed = NpmName::parse(name).and_then(|name| Some((name.version_in(file)?, name)));
    parsed.map_or(Route::NotFound, |(version, name)| Route::Tarball { name, version })
}

/// Decodes one segment of a path. `None` if it is not UTF-8 or has an incomplete escape.
pub(super) fn decode(segment: &str) -> Option<String> {
    if !segment.contains('%') {
        return Some(segment.to_owned());
    }
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = after;
            continue;
        }
        let digits = after.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npm_name(text: &str) -> NpmName {
        NpmName::parse(text).unwrap()
    }

    #[test]
    fn paths_of_packages_are_parsed() {
        let hash = "0".repeat(64);
        assert_eq!(
            Route::parse("/pypi/simple/Foo_Bar/?x=y"),
            Route::PythonIndex(PythonName::parse("foo-bar").unwrap())
        );
        assert_eq!(
            Route::parse(&format!("/pypi/files/foo/{hash}/foo-1.0%2Bcpu.tar.gz.metadata")),
            Route::PythonFile {
                project: PythonName::parse("foo").unwrap(),
                hash: FileHash::from_path(&hash).unwrap(),
                file_name: "foo-1.0+cpu.tar.gz".into(),
                is_metadata: true
            }
        );
        for path in ["/npm/@a%2fb", "/npm/@a%2Fb", "/npm/@a/b", "/npm/%40a%2fb"] {
            assert_eq!(Route::parse(path), Route::Packument(npm_name("@a/b")), "{path}");
        }
        for path in ["/npm/@a/b/-/b-1.0.0.tgz", "/npm/@a%2fb/-/b-1.0.0.tgz", "/@a/b/-/b-1.0.0.tgz"] {
            assert_eq!(
                Route::parse(path),
                Route::Tarball { name: npm_name("@a/b"), version: "1.0.0".into() },
                "{path}"
            );
        }
        let npm = Route::Tarball { name: npm_name("npm"), version: "11.0.0".into() };
        assert_eq!(Route::parse("/npm/-/npm-11.0.0.tgz"), npm);
        assert_eq!(Route::parse("/npm/npm/-/npm-11.0.0.tgz"), npm);
        assert_eq!(Route::parse("/npm/-/ping"), Route::Ping);
        assert_eq!(Route::parse("/programs/uv"), Route::Uv);
    }

    #[test]
    fn other_paths_are_not_found() {
        let hash = "0".repeat(64);
        for path in [
            "",
            "/",
            "http://registry.example/npm/a",
            "/npm/",
            "/npm/..",
            "/npm/../a",
            "/npm/%2e%2e",
            "/npm/a%2fb",
            "/npm/@a%2f..%2fb",
            "/npm/a/1.0.0",
            "/npm/a/-/a-../../x.tgz",
            "/npm/a%00",
            "/npm/a%",
            "/npm/%ff",
            "/a",
            "/pypi/simple/../files",
            "/pypi/simple/a%2f..%2fb/",
            "/pypi/files/a/zz/a-1.whl",
            &format!("/pypi/files/a/{hash}/..%2fx.whl"),
            &format!("/pypi/files/a/{hash}/x.exe"),
            &format!("/pypi/files/{hash}/http:%2f%2fevil.example%2fx.whl"),
        ] {
            assert_eq!(Route::parse(path), Route::NotFound, "{path}");
        }
        for path in
            ["/npm/-/v1/search?text=a", "/npm/-/npm/v1/security/advisories/bulk", "/npm/-/user/x", "/pypi/simple/"]
        {
            assert!(matches!(Route::parse(path), Route::Unsupported(_)), "{path}");
        }
    }
}
