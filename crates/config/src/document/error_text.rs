//! Translates error messages of serde for users who do not know Rust.

/// Replaces names of Rust types and serde terms in an error message.
pub(crate) fn plain_message(message: &str) -> String {
    let replacements = [
        ("unknown variant", "unknown value"),
        ("expected u16", "expected a number from 0 to 65535"),
        ("expected u32", "expected a whole number"),
        ("expected u64", "expected a whole number, not below 0"),
        ("expected usize", "expected a whole number, not below 0"),
        ("expected f64", "expected a number"),
        ("expected a boolean", "expected true or false"),
        ("expected a sequence", "expected a list"),
        ("expected a map", "expected a table"),
    ];
    replacements.into_iter().fold(message.to_owned(), |text, (serde, plain)| text.replace(serde, plain))
}

/// Returns the unknown key that an error message of serde names, and the keys that it lists as known.
pub(crate) fn unknown_key(message: &str) -> Option<(&str, Vec<&str>)> {
    let (unknown, rest) = message.strip_prefix("unknown field `")?.split_once('`')?;
    // serde lists the known keys in backticks.
    Some((unknown, rest.split('`').skip(1).step_by(2).collect()))
}
