//! UUIDs of server entries.

use ::uuid::Uuid;

/// The namespace of UUIDs that are derived from server names (RFC 9562, version 5).
const SERVER_NAMES: Uuid = Uuid::from_u128(0x6f1c_90c5_3b5e_4c0a_9d5f_27d1_c1a8_44e3);

/// Creates a random UUID, for an entry that is stored.
pub fn new_uuid() -> String {
    Uuid::new_v4().to_string()
}

/// Derives the UUID of a server name, for an entry in a file. The same name always has the same UUID.
pub fn derived_uuid(name: &str) -> String {
    Uuid::new_v5(&SERVER_NAMES, name.as_bytes()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_uuid_is_stable_and_new_uuid_is_random() {
        assert_eq!(derived_uuid("github"), "41b4f1cd-944a-5fd3-8a9a-d91ca6598d5b");
        assert_ne!(derived_uuid("github"), derived_uuid("Github"));
        assert_ne!(new_uuid(), new_uuid());
    }
}
