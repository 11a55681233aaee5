//! Aliases of servers and tools for code in a sandbox: unique Python identifiers.
//!
//! Compute the aliases of all servers, or of all tools of a server, at once. If they were computed only over what a
//! caller may see, the alias of one and the same tool would differ between callers.

use std::collections::{HashMap, HashSet};

/// The keywords of Python. `None`, `True` and `False` are missing, because aliases are lower case.
const KEYWORDS: [&str; 32] = [
    "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del", "elif", "else", "except",
    "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise",
    "return", "try", "while", "with", "yield",
];

/// Returns one alias for each name, in the same order.
///
/// Names that map to the same identifier get a number: `x`, `x_2`, `x_3`. No alias is a keyword, because
/// `from mcp.servers import ALIAS` must be valid Python.
pub fn code_aliases<S: AsRef<str>>(names: &[S]) -> Vec<String> {
    let identifiers: Vec<String> = names.iter().map(|name| identifier(name.as_ref())).collect();
    // All plain identifiers are taken before the first number is used, so that a tool named `x_2` has the alias `x_2`,
    // independent of its position.
    let mut taken: HashSet<String> = identifiers.iter().cloned().collect();
    let mut next_numbers: HashMap<&str, usize> = HashMap::new();
    let mut aliases = Vec::with_capacity(identifiers.len());
    for identifier in &identifiers {
        let number = next_numbers.entry(identifier).or_insert(1);
        let mut alias = identifier.clone();
        while *number > 1 && !taken.insert(alias.clone()) {
            alias = format!("{identifier}_{number}");
            *number += 1;
        }
        *number = (*number).max(2);
        aliases.push(alias);
    }
    aliases
}

/// Maps a name to a Python identifier: lower case, with `_` for each run of other characters.
fn identifier(name: &str) -> String {
    let mut identifier = String::with_capacity(name.len());
    let mut is_in_run = false;
    for char in name.chars().flat_map(char::to_lowercase) {
        let is_valid = matches!(char, 'a'..='z' | '0'..='9' | '_');
        if is_valid {
            identifier.push(char);
        } else if !is_in_run {
            identifier.push('_');
        }
        is_in_run = !is_valid;
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
            assert_eq!(code_aliases(&[name]), [alias]);
        }
    }

    #[test]
    fn duplicates_get_unused_numbers() {
        assert_eq!(code_aliases(&["a-b", "a.b", "A b"]), ["a_b", "a_b_2", "a_b_3"]);
        assert_eq!(code_aliases(&["x", "X", "x_2", "x_3"]), ["x", "x_4", "x_2", "x_3"]);
        assert_eq!(code_aliases(&["class", "class_"]), ["class_", "class__2"]);
        assert_eq!(code_aliases(&["", "é", "_"]), ["_", "__2", "__3"]);
    }

    #[test]
    fn many_duplicates_take_linear_time() {
        let names = vec!["same"; 20_000];
        assert_eq!(code_aliases(&names).last().map(String::as_str), Some("same_20000"));
    }

    proptest! {
        #[test]
        fn aliases_are_unique_identifiers(names in prop::collection::vec("[aA_ .é2-]{0,4}|\\PC{0,6}|class|in|x_?[23]?", 0..40)) {
            let aliases = code_aliases(&names);
            prop_assert_eq!(aliases.len(), names.len());
            let distinct: HashSet<&String> = aliases.iter().collect();
            prop_assert_eq!(distinct.len(), aliases.len());
            for alias in &aliases {
                prop_assert!(alias.starts_with(|first: char| first.is_ascii_lowercase() || first == '_'), "{}", alias);
                let is_part = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_';
                prop_assert!(alias.chars().all(is_part), "{}", alias);
                prop_assert!(!KEYWORDS.contains(&alias.as_str()), "{}", alias);
            }
        }
    }
}
