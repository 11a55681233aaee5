//! What the host asks the init about files, and what it answers, on a socket of the question's own.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum FileAction {
    Read,
    Write,
    List { most: u32 },
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum FileReport {
    /// Carries the file, and the workspace to compare it with.
    Opened,
    /// Some of what is in a directory.
    Entries {
        entries: Vec<Entry>,
    },
    End {
        more: bool,
    },
    Refused {
        errno: i32,
    },
}

/// Something in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Any bytes but NUL and a slash.
    pub name: Vec<u8>,
    pub kind: FileKind,
    pub size: u64,
    /// Seconds since the epoch.
    pub modified: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Directory,
    Link,
    /// A FIFO, a socket or a device.
    Other,
}
