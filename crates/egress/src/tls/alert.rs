//! Alerts in plain text, for clients whose `ClientHello` is refused (RFC 8446, 6).

/// A fatal alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alert {
    AccessDenied = 49,
    InternalError = 80,
    UnrecognizedName = 112,
}

impl Alert {
    /// Returns the record with this alert, in the version that every client accepts.
    pub(crate) fn record(self) -> [u8; 7] {
        const FATAL: u8 = 2;
        [0x15, 3, 3, 0, 2, FATAL, self as u8]
    }
}
