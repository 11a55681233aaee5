//! The reply of the init to a request for a listener. Each request has its own socket for the reply.

use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum ListenReport {
    /// Carries the listener.
    Listening,
    /// The host has a listener for this port.
    AlreadyOpen,
    /// A process of the guest uses the port.
    InUse,
    /// The sandbox has as many ports as it may have.
    TooMany,
    /// The sandbox has no egress, or the port is one of its own services.
    NotAllowed,
    Failed {
        errno: i32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_keep_their_wire_format() {
        let json = |frame| serde_json::to_string(&frame).unwrap();
        assert_eq!(json(ListenReport::Listening), r#""listening""#);
        assert_eq!(json(ListenReport::AlreadyOpen), r#""already_open""#);
        assert_eq!(json(ListenReport::InUse), r#""in_use""#);
        assert_eq!(json(ListenReport::TooMany), r#""too_many""#);
        assert_eq!(json(ListenReport::NotAllowed), r#""not_allowed""#);
        assert_eq!(json(ListenReport::Failed { errno: 1 }), r#"{"failed":{"errno":1}}"#);
    }
}
