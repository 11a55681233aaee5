//! Names and arguments in frames: as text where they are text, which they nearly always are, else as bytes. What serde
//! makes of them by itself is a list of numbers, four times as long, and more than a socket takes at once.

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
    let own = |string| match string {
        Owned::Text(text) => OsString::from(text),
        Owned::Bytes(bytes) => OsString::from_vec(bytes),
    };
    Ok(strings.into_iter().map(own).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Order(#[serde(with = "super")] Vec<OsString>);

    #[test]
    fn text_takes_as_much_room_as_it_has_letters() {
        let order = Order(vec!["x".repeat(60_000).into()]);
        assert_eq!(serde_json::to_vec(&order).unwrap().len(), 60_004);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_arrive_as_they_were(strings in proptest::collection::vec(proptest::collection::vec(1_u8.., 0..20), 0..4)) {
            let order = Order(strings.into_iter().map(OsString::from_vec).collect());
            let frame = serde_json::to_vec(&order).unwrap();
            proptest::prop_assert_eq!(serde_json::from_slice::<Order>(&frame).unwrap(), order);
        }
    }
}
