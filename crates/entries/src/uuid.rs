//! Ids of servers.

use ::uuid::Uuid;

/// Of names of servers, for ids that are derived from them.
const NAMES: Uuid = Uuid::from_u128(0x6f1c_90c5_3b5e_4c0a_9d5f_27d1_c1a8_44e3);

/// A new one, for an entry that is stored.
pub fn new_uuid() -> String {
    Uuid::new_v4().to_string()
}

/// The one that belongs to a name, for an entry in a file: the same after every reading.
pub fn derived_uuid(name: &str) -> String {
    Uuid::new_v5(&NAMES, name.as_bytes()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_a_name_stays_and_others_are_new() {
        assert_eq!(derived_uuid("github"), "41b4f1cd-944a-5fd3-8a9a-d91ca6598d5b");
        assert_ne!(derived_uuid("github"), derived_uuid("Github"));
        assert_ne!(new_uuid(), new_uuid());
    }
}
