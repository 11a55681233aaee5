//! The environment variables of an image.

use std::collections::BTreeMap;

use crate::error::ImageError;
use crate::limits::MAX_ENVIRONMENT_BYTES;

/// Variables about the user and the directories of the guest. The sandbox sets them, whatever the image says.
const SANDBOX_VARIABLES: [&str; 5] = ["HOME", "LOGNAME", "SHELL", "TMPDIR", "USER"];

/// Parses `NAME=VALUE` texts. Malformed variables and those of the sandbox are ignored.
pub(crate) fn parse(texts: &[String]) -> Result<BTreeMap<String, String>, ImageError> {
    let pairs = texts.iter().filter_map(|text| text.split_once('='));
    // Control characters grow sixfold when they are encoded for the sandbox, and no variable needs them.
    let is_printable = |value: &str| !value.contains(char::is_control);
    let accepted =
        pairs.filter(|(name, value)| is_name(name) && is_printable(value) && !SANDBOX_VARIABLES.contains(name));
    let variables: BTreeMap<String, String> =
        accepted.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let bytes: usize = variables.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > MAX_ENVIRONMENT_BYTES {
        return Err(ImageError::TooLarge(format!(
            "the environment variables have {bytes} bytes; the limit is {MAX_ENVIRONMENT_BYTES} bytes"
        )));
    }
    Ok(variables)
}

/// Returns whether a name is valid in shells. This excludes the functions that bash imports (`BASH_FUNC_x%%`).
fn is_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.bytes().all(is_inner) && name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_formed_variables_are_accepted_except_those_of_the_sandbox() {
        let given = [
            "PATH=/opt/bin:/bin",
            "LANG=C",
            "EMPTY=",
            "A=b=c",
            "A=twice",
            "HOME=/root",
            "USER=root",
            "SHELL=/x",
            "TMPDIR=/x",
            "LOGNAME=x",
            "none",
            "=x",
            "1A=x",
            "B-C=x",
            "BASH_FUNC_x%%=() { :; }",
            "N=a\0b",
            "C=\u{1}",
            " S=x",
            "Ä=x",
        ];
        let variables = parse(&given.map(Into::into)).unwrap();
        let variables: Vec<String> = variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(variables, ["A=twice", "EMPTY=", "LANG=C", "PATH=/opt/bin:/bin"]);
        let large = [format!("A={}", "x".repeat(MAX_ENVIRONMENT_BYTES))];
        assert!(matches!(parse(&large), Err(ImageError::TooLarge(_))));
    }
}
