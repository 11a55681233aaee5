//! What the host asks the init about files, and what it answers, on a socket of the question's own.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum FileAction {
    Read,
    /// With room for as much.
    Write {
        bytes: u64,
    },
    List {
        most: u32,
    },
    /// How full the workspace is.
    Measure,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum FileReport {
    /// Carries the file, and the workspace to compare it with.
    Opened,
    /// Carries the workspace.
    Workspace,
    /// Some of what is in a directory.
    Entries {
        entries: Vec<DirectoryEntry>,
    },
    /// How many there are in all.
    End {
        total: u64,
    },
    Refused {
        errno: i32,
    },
}

/// Something in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectoryEntry {
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
