//! The variables of an image.

use std::collections::BTreeMap;

use super::bounds::ENVIRONMENT_BYTES;
use super::error::ImageError;

/// What says who and where the guest is: the sandbox's own, whoever an image was made for.
const OWN: [&str; 5] = ["HOME", "LOGNAME", "SHELL", "TMPDIR", "USER"];

/// Those that are well-formed, and not the sandbox's own.
pub(super) fn of(texts: &[String]) -> Result<BTreeMap<String, String>, ImageError> {
    let pairs = texts.iter().filter_map(|text| text.split_once('='));
    // Control characters grow sixfold on their way into a sandbox, and no variable has need of them.
    let is_plain = |value: &str| !value.contains(char::is_control);
    let kept = pairs.filter(|(name, value)| is_name(name) && is_plain(value) && !OWN.contains(name));
    let kept: BTreeMap<String, String> = kept.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let bytes: usize = kept.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > ENVIRONMENT_BYTES {
        return Err(ImageError::TooLarge(format!("its variables have {bytes} bytes")));
    }
    Ok(kept)
}

/// As shells have them; a function that bash would take from its environment has another.
fn is_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.bytes().all(is_inner) && name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_formed_variables_are_kept_and_the_sandboxes_own_are_not_changed() {
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
        let kept = of(&given.map(Into::into)).unwrap();
        let kept: Vec<String> = kept.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(kept, ["A=twice", "EMPTY=", "LANG=C", "PATH=/opt/bin:/bin"]);
        let large = [format!("A={}", "x".repeat(ENVIRONMENT_BYTES))];
        assert!(matches!(of(&large), Err(ImageError::TooLarge(_))));
    }
}
