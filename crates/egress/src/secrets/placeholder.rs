//! Placeholders: random texts that look like the value of a secret to the programs of a guest.
//!
//! A placeholder has the length of the value, its known prefix, its punctuation and its alphabet. Programs that check
//! the form of a token therefore accept it.

use std::collections::BTreeSet;

use ring::error::Unspecified;
use ring::rand::{SecureRandom, SystemRandom};

/// Prefixes of well-known tokens. A prefix comes before its own prefixes.
const PREFIXES: [&str; 49] = [
    "github_pat_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "glpat-",
    "sk-ant-api03-",
    "sk-ant-admin01-",
    "sk-ant-oat01-",
    "sk-ant-",
    "sk-proj-",
    "sk-svcacct-",
    "sk-or-v1-",
    "sk-lf-",
    "sk-",
    "xoxb-",
    "xoxp-",
    "xoxa-",
    "xoxe-",
    "xapp-",
    "AKIA",
    "ASIA",
    "npm_",
    "pypi-",
    "hf_",
    "tvly-",
    "fc-",
    "figd_",
    "sbp_",
    "sb_secret_",
    "secret_",
    "ntn_",
    "dop_v1_",
    "AIza",
    "SG.",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "rk_test_",
    "pk_live_",
    "lin_api_",
    "glsa_",
    "gsk_",
    "r8_",
    "pplx-",
    "BSA",
    "whsec_",
    "shpat_",
];
/// Minimum number of random characters: with fewer, a placeholder could occur in unrelated data.
const MIN_RANDOM: usize = 8;

/// Makes a new placeholder for a value.
pub(super) fn placeholder_for(value: &str) -> Result<String, Unspecified> {
    let random = SystemRandom::new();
    loop {
        let placeholder = imitate(value, &random)?;
        if placeholder != value {
            return Ok(placeholder);
        }
    }
}

fn imitate(value: &str, random: &SystemRandom) -> Result<String, Unspecified> {
    let alphabet_of = |text: &str| alphabet(text).into_iter().collect::<Vec<u8>>();
    let prefix = prefix_length(value);
    let rest = &value[prefix..];
    let is_random = |byte: u8| byte.is_ascii_alphanumeric();
    if !rest.is_ascii() || rest.bytes().filter(|byte| is_random(*byte)).count() < MIN_RANDOM {
        let alphabet: Vec<u8> = (b'a'..=b'z').chain(b'0'..=b'9').collect();
        return (0..value.len()).map(|_| pick(&alphabet, random).map(char::from)).collect();
    }
    let alphabet = alphabet_of(rest);
    let mut placeholder = value[..prefix].to_owned();
    for (index, byte) in rest.bytes().enumerate() {
        // The version and the variant of a UUID.
        let is_fixed = !is_random(byte) || is_uuid(rest) && matches!(index, 14 | 19);
        placeholder.push(char::from(if is_fixed { byte } else { pick(&alphabet, random)? }));
    }
    Ok(placeholder)
}

/// Returns the length of the part that is the same for all tokens of this kind.
fn prefix_length(value: &str) -> usize {
    if is_jwt(value) {
        // The first segment names the algorithm.
        return value.find('.').unwrap_or_default();
    }
    let known = PREFIXES.iter().find(|prefix| value.len() >= prefix.len() + MIN_RANDOM && value.starts_with(**prefix));
    known.map_or(0, |prefix| prefix.len())
}

fn is_jwt(value: &str) -> bool {
    let is_segment = |part: &str| {
        part.len() >= MIN_RANDOM && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    value.starts_with("eyJ") && value.split('.').count() == 3 && value.split('.').all(is_segment)
}

fn is_uuid(text: &str) -> bool {
    let is_at = |(index, byte): (usize, u8)| {
        if matches!(index, 8 | 13 | 18 | 23) { byte == b'-' } else { byte.is_ascii_hexdigit() }
    };
    text.len() == 36 && text.bytes().enumerate().all(is_at)
}

/// Returns the characters from which a text seems to be made: digits, hexadecimal digits, or letters of some case.
fn alphabet(text: &str) -> BTreeSet<u8> {
    let has = |class: fn(&u8) -> bool| text.as_bytes().iter().any(class);
    let (lower, upper) = (has(u8::is_ascii_lowercase), has(u8::is_ascii_uppercase));
    let letters = text.bytes().filter(u8::is_ascii_alphabetic);
    let is_hexadecimal = letters.clone().all(|b| b.is_ascii_hexdigit()) && lower != upper;
    let mut alphabet = BTreeSet::new();
    if has(u8::is_ascii_digit) {
        alphabet.extend(b'0'..=b'9');
    }
    if lower {
        alphabet.extend(b'a'..=if is_hexadecimal { b'f' } else { b'z' });
    }
    if upper {
        alphabet.extend(b'A'..=if is_hexadecimal { b'F' } else { b'Z' });
    }
    alphabet
}

fn pick(alphabet: &[u8], random: &SystemRandom) -> Result<u8, Unspecified> {
    // Larger values would make some characters more likely.
    let limit = 256 / alphabet.len() * alphabet.len();
    loop {
        let mut byte = [0];
        random.fill(&mut byte)?;
        let value = usize::from(byte[0]);
        if value < limit {
            return Ok(alphabet[value % alphabet.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whether a character belongs to a class.
    type Class = fn(u8) -> bool;

    #[test]
    fn placeholders_have_the_shape_of_their_value() {
        let digits = |byte: u8| byte.is_ascii_digit();
        let alphanumeric = |byte: u8| byte.is_ascii_alphanumeric();
        let hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let upper = |byte: u8| byte.is_ascii_digit() || byte.is_ascii_uppercase();
        let cases: [(&str, &str, Class); 9] = [
            ("ghp_16C7e42F292c6912E7710c838347Ae178B4a", "ghp_", alphanumeric),
            ("github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuv", "github_pat_", alphanumeric),
            ("sk-ant-api03-AbCdEf0123456789-xyz_AA", "sk-ant-api03-", alphanumeric),
            ("xoxb-123456789012-1234567890123-AbCdEfGhIj", "xoxb-", alphanumeric),
            ("AKIAIOSFODNN7EXAMPLE", "AKIA", upper),
            ("123e4567-e89b-42d3-a456-426614174000", "", hexadecimal),
            ("5f4dcc3b5aa765d61d8327deb882cf99", "", hexadecimal),
            ("482910374650", "", digits),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.abcDEF123_-x", "eyJhbGciOiJIUzI1NiJ9.", alphanumeric),
        ];
        for (value, prefix, is_allowed) in cases {
            let placeholder = placeholder_for(value).unwrap();
            assert_ne!(placeholder, value);
            assert_eq!(placeholder.len(), value.len());
            assert!(placeholder.starts_with(prefix), "{placeholder}");
            for (new, old) in placeholder.bytes().zip(value.bytes()).skip(prefix.len()) {
                assert_eq!(new.is_ascii_alphanumeric(), old.is_ascii_alphanumeric(), "{value} {placeholder}");
                assert!(!new.is_ascii_alphanumeric() || is_allowed(new), "{value} {placeholder}");
            }
        }
        let uuid = placeholder_for("123e4567-e89b-42d3-a456-426614174000").unwrap();
        assert_eq!((&uuid[14..15], &uuid[19..20]), ("4", "a"));
    }

    #[test]
    fn prefixes_come_before_their_own_prefixes() {
        for (index, prefix) in PREFIXES.iter().enumerate() {
            let hidden = PREFIXES[..index].iter().find(|earlier| prefix.starts_with(**earlier));
            assert_eq!(hidden, None, "{prefix} is never used");
        }
    }

    proptest! {
        #[test]
        fn placeholder_has_the_length_and_no_long_part_of_the_value(value in "[!-~]{16,64}|\\PC{8,30}") {
            let placeholder = placeholder_for(&value).unwrap();
            prop_assert_eq!(placeholder.len(), value.len());
            prop_assert_ne!(&placeholder, &value);
            prop_assert_ne!(placeholder_for(&value).unwrap(), placeholder);
        }
    }
}
