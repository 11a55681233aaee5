//! Names of servers.
//!
//! A name stands in three places that must be read back: before `__` in the names of a server's tools, in a path
//! segment of REST, and in a table of a file. So it holds no `__` and no `/`, does not end in `_` (`a___b` could be
//! `a` and `_b` or `a_` and `b`), is no `.` or `..`, and is short and printable.

/// In characters.
pub(crate) const MOST_NAME_CHARACTERS: usize = 64;

/// Says what is wrong with a name.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("is empty");
    }
    if name.chars().count() > MOST_NAME_CHARACTERS {
        return Err("is longer than 64 characters");
    }
    if name.chars().any(char::is_control) {
        return Err("has a control character");
    }
    if name.contains("__") {
        return Err("has `__`, which stands between a server and its tool");
    }
    if name.ends_with('_') {
        return Err("ends with `_`, which would run into the `__` before its tools");
    }
    if name.contains('/') {
        return Err("has a `/`, which ends a part of a path");
    }
    if matches!(name, "." | "..") {
        return Err("means a directory in a path");
    }
    if name.trim() != name {
        return Err("begins or ends with a space");
    }
    Ok(())
}

/// The nearest name that can be used, if anything is left of it. Clients allow more than we do.
pub fn adapt_name(name: &str) -> Option<String> {
    let mut adapted = String::new();
    for char in name.trim().chars() {
        let char = if char == '/' || char.is_control() { '-' } else { char };
        if char == '_' && adapted.ends_with('_') {
            continue;
        }
        adapted.push(char);
    }
    let short: String = adapted.chars().take(MOST_NAME_CHARACTERS).collect();
    let short = short.trim_end_matches(|char: char| char == '_' || char.is_whitespace()).to_owned();
    check_name(&short).is_ok().then_some(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_of_a_server_is_read_back_in_one_way() {
        for good in ["a", "sequential-thinking", "Déjà vu", "a_b", "_a", "io.github.x", &"x".repeat(64)] {
            assert_eq!(check_name(good), Ok(()), "{good}");
            let shown = format!("{good}__tool");
            assert_eq!(shown.split_once("__"), Some((good, "tool")));
        }
        for bad in ["", "a__b", "a_", "a/b", ".", "..", " a", "a\n", "\u{1b}[0m", &"x".repeat(65)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn names_of_clients_are_adapted_or_given_up() {
        let adapted = |name: &str| adapt_name(name);
        assert_eq!(adapted("io.github.upstash/context7").as_deref(), Some("io.github.upstash-context7"));
        assert_eq!(adapted("my___server__").as_deref(), Some("my_server"));
        assert_eq!(adapted(" x\t ").as_deref(), Some("x"));
        assert_eq!(adapted(&"é".repeat(80)).map(|name| name.chars().count()), Some(64));
        for hopeless in ["", "_", " ", ".."] {
            assert_eq!(adapted(hopeless), None, "{hopeless:?}");
        }
    }
}
