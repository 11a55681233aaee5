//! Serializes `OsString` lists compactly: each as a string if it is UTF-8, otherwise as an array of bytes.
//!
//! Serde's own form of an `OsString` is an array of numbers. It is four times as long, so that long command lines would
//! not fit into one frame of a sandbox socket. Use this module with `#[serde(with = "…::os_strings")]`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize)]
#[serde(untagged)]
enum Borrowed<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Owned {
    Text(String),
    Bytes(Vec<u8>),
}

pub fn serialize<S: Serializer>(strings: &[OsString], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(strings.iter().map(|string| match string.to_str() {
        Some(text) => Borrowed::Text(text),
        None => Borrowed::Bytes(string.as_bytes()),
    }))
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<OsString>, D::Error> {
    let strings = Vec::<Owned>::deserialize(deserializer)?;
    let into_os_string = |string| match string {
        Owned::Text(text) => OsString::from(text),
        Owned::Bytes(bytes) => OsString::from_vec(bytes),
    };
    Ok(strings.into_iter().map(into_os_string).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Arguments(#[serde(with = "super")] Vec<OsString>);

    #[test]
    fn utf8_is_serialized_as_string() {
        let arguments = Arguments(vec!["x".repeat(60_000).into()]);
        assert_eq!(serde_json::to_vec(&arguments).unwrap().len(), 60_004);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_survive_a_round_trip(strings in proptest::collection::vec(proptest::collection::vec(1_u8.., 0..20), 0..4)) {
            let arguments = Arguments(strings.into_iter().map(OsString::from_vec).collect());
            let json = serde_json::to_vec(&arguments).unwrap();
            proptest::prop_assert_eq!(serde_json::from_slice::<Arguments>(&json).unwrap(), arguments);
        }
    }
}
