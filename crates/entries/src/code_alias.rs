//! The names by which code in a sandbox calls servers and their tools: Python identifiers, each there once.
//!
//! Computed over all names that there are, so that what a caller may see does not change what something is called.

use std::collections::{HashMap, HashSet};

/// Words that Python does not take as a name. Those with a capital cannot come out of lower case.
const KEYWORDS: [&str; 32] = [
    "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del", "elif", "else", "except",
    "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise",
    "return", "try", "while", "with", "yield",
];

/// The aliases of servers, in the order of their names.
///
/// A keyword is avoided here too: `from mcp.servers import` could not name it.
pub fn server_aliases<S: AsRef<str>>(names: &[S]) -> Vec<String> {
    distinct(names)
}

/// The aliases of one server's tools, in the order of their names.
pub fn tool_aliases<S: AsRef<str>>(names: &[S]) -> Vec<String> {
    distinct(names)
}

fn distinct<S: AsRef<str>>(names: &[S]) -> Vec<String> {
    let plain: Vec<String> = names.iter().map(|name| identifier(name.as_ref())).collect();
    // The first of each has it as it is, before any number is given out: `x_2` stays `x_2`, whoever comes before it.
    let mut taken: HashSet<String> = plain.iter().cloned().collect();
    let mut next: HashMap<&str, usize> = HashMap::new();
    let mut aliases = Vec::with_capacity(plain.len());
    for name in &plain {
        let number = next.entry(name).or_insert(1);
        let mut alias = name.clone();
        while *number > 1 && !taken.insert(alias.clone()) {
            alias = format!("{name}_{number}");
            *number += 1;
        }
        *number = (*number).max(2);
        aliases.push(alias);
    }
    aliases
}

/// What is nearest to a name among Python's identifiers.
fn identifier(name: &str) -> String {
    let mut identifier = String::with_capacity(name.len());
    let mut is_in_run = false;
    for char in name.chars().flat_map(char::to_lowercase) {
        let is_kept = matches!(char, 'a'..='z' | '0'..='9' | '_');
        if is_kept {
            identifier.push(char);
        } else if !is_in_run {
            identifier.push('_');
        }
        is_in_run = !is_kept;
    }
    if identifier.is_empty() || identifier.starts_with(|first: char| first.is_ascii_digit()) {
        identifier.insert(0, '_');
    }
    if KEYWORDS.contains(&identifier.as_str()) {
        identifier.push('_');
    }
    identifier
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_become_identifiers() {
        for (name, alias) in [
            ("github", "github"),
            ("GitHub", "github"),
            ("my-server.io / v2", "my_server_io_v2"),
            ("7zip", "_7zip"),
            ("a__b-", "a__b_"),
            ("-a", "_a"),
            ("", "_"),
            ("日本", "_"),
            ("Déjà vu", "d_j_vu"),
            ("import", "import_"),
            ("IN", "in_"),
            ("None", "none"),
            ("match", "match"),
        ] {
            assert_eq!(server_aliases(&[name]), [alias]);
            assert_eq!(tool_aliases(&[name]), [alias]);
        }
    }

    #[test]
    fn who_comes_later_gets_a_number_that_nobody_has() {
        assert_eq!(tool_aliases(&["a-b", "a.b", "A b"]), ["a_b", "a_b_2", "a_b_3"]);
        assert_eq!(tool_aliases(&["x", "X", "x_2", "x_3"]), ["x", "x_4", "x_2", "x_3"]);
        assert_eq!(tool_aliases(&["class", "class_"]), ["class_", "class__2"]);
        assert_eq!(server_aliases(&["", "é", "_"]), ["_", "__2", "__3"]);
    }

    #[test]
    fn many_of_one_name_take_no_time() {
        let names = vec!["same"; 20_000];
        assert_eq!(tool_aliases(&names).last().map(String::as_str), Some("same_20000"));
    }

    proptest! {
        #[test]
        fn they_are_identifiers_and_each_is_there_once(names in prop::collection::vec("[aA_ .é2-]{0,4}|\\PC{0,6}|class|in|x_?[23]?", 0..40)) {
            let aliases = tool_aliases(&names);
            prop_assert_eq!(aliases.len(), names.len());
            let distinct: HashSet<&String> = aliases.iter().collect();
            prop_assert_eq!(distinct.len(), aliases.len());
            for alias in &aliases {
                prop_assert!(alias.starts_with(|first: char| first.is_ascii_lowercase() || first == '_'), "{}", alias);
                let is_part = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_';
                prop_assert!(alias.chars().all(is_part), "{}", alias);
                prop_assert!(!KEYWORDS.contains(&alias.as_str()), "{}", alias);
            }
            prop_assert_eq!(server_aliases(&names), aliases);
        }
    }
}
