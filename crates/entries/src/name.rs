//! Names of servers, and the names of tools that start with them.
//!
//! A server name is used in three contexts that must be parsed again: before `__` in the names of the server's tools, as
//! a segment of REST paths, and as a key in files. So a name contains no `__` and no `/`, does not end with `_` (`a___b`
//! could be `a` and `_b`, or `a_` and `b`), is not `.` or `..`, and is short and printable.

/// The separator between the name of a server and the name of its tool.
pub const TOOL_SEPARATOR: &str = "__";

/// Maximum length of a server name in characters.
pub(crate) const MAX_NAME_CHARS: usize = 64;

/// Checks a server name. The error is a reason that can follow a colon.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("the name is empty");
    }
    if name.chars().count() > MAX_NAME_CHARS {
        return Err("the name is longer than 64 characters");
    }
    if name.chars().any(char::is_control) {
        return Err("the name contains a control character");
    }
    if name.contains(TOOL_SEPARATOR) {
        return Err("`__` separates the name of a server from the name of its tool");
    }
    if name.ends_with('_') {
        return Err("a trailing `_` would run into the `__` before the name of a tool");
    }
    if name.contains('/') {
        return Err("`/` separates the segments of a URL path");
    }
    if matches!(name, "." | "..") {
        return Err("the name denotes a directory in a path");
    }
    if name.trim() != name {
        return Err("the name starts or ends with a space");
    }
    Ok(())
}

/// Derives a valid server name from a name in the settings of a client, which may allow more characters.
///
/// Returns `None` if no valid character remains.
pub fn sanitize_name(name: &str) -> Option<String> {
    let mut sanitized = String::new();
    for char in name.trim().chars() {
        let char = if char == '/' || char.is_control() { '-' } else { char };
        if char == '_' && sanitized.ends_with('_') {
            continue;
        }
        sanitized.push(char);
    }
    let short: String = sanitized.chars().take(MAX_NAME_CHARS).collect();
    let short = short.trim_end_matches(|char: char| char == '_' || char.is_whitespace()).to_owned();
    check_name(&short).is_ok().then_some(short)
}

/// The form of a server name in the names of its tools: many clients accept only letters, digits, `_` and `-` there.
pub fn tool_prefix(server: &str) -> String {
    server.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_name_splits_in_one_way() {
        for valid in ["a", "sequential-thinking", "Déjà vu", "a_b", "_a", "io.github.x", &"x".repeat(64)] {
            assert_eq!(check_name(valid), Ok(()), "{valid}");
            let tool = format!("{valid}__tool");
            assert_eq!(tool.split_once("__"), Some((valid, "tool")));
        }
        for invalid in ["", "a__b", "a_", "a/b", ".", "..", " a", "a\n", "\u{1b}[0m", &"x".repeat(65)] {
            assert!(check_name(invalid).is_err(), "{invalid:?}");
        }
    }

    #[test]
    fn client_names_are_sanitized_or_rejected() {
        assert_eq!(sanitize_name("io.github.upstash/context7").as_deref(), Some("io.github.upstash-context7"));
        assert_eq!(sanitize_name("my___server__").as_deref(), Some("my_server"));
        assert_eq!(sanitize_name(" x\t ").as_deref(), Some("x"));
        assert_eq!(sanitize_name(&"é".repeat(80)).map(|name| name.chars().count()), Some(64));
        for unusable in ["", "_", " ", ".."] {
            assert_eq!(sanitize_name(unusable), None, "{unusable:?}");
        }
    }
}
