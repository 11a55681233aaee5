//! File requests to the init, and its replies. Each request has its own socket for the reply.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum FileAction {
    Read,
    /// Open for writing, and reserve this many bytes.
    Write {
        bytes: u64,
    },
    List {
        #[serde(rename = "most")]
        max_entries: u32,
    },
    /// Report the usage of the workspace.
    Measure,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum FileReport {
    /// Carries the file, and the workspace to compare it with.
    Opened,
    /// Carries the workspace.
    Workspace,
    /// A part of a directory's entries.
    Entries {
        entries: Vec<DirectoryEntry>,
    },
    /// The end of a listing, with the number of entries that the directory has.
    End {
        total: u64,
    },
    Refused {
        errno: i32,
    },
}

/// An entry of a directory in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectoryEntry {
    /// Any bytes except NUL and a slash.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_keep_their_wire_format() {
        let json = |frame| serde_json::to_string(&frame).unwrap();
        assert_eq!(json(FileAction::Read), r#""read""#);
        assert_eq!(json(FileAction::Write { bytes: 1 }), r#"{"write":{"bytes":1}}"#);
        assert_eq!(json(FileAction::List { max_entries: 1 }), r#"{"list":{"most":1}}"#);
        assert_eq!(json(FileAction::Measure), r#""measure""#);
        let json = |frame| serde_json::to_string(&frame).unwrap();
        assert_eq!(json(FileReport::Opened), r#""opened""#);
        assert_eq!(json(FileReport::Workspace), r#""workspace""#);
        let entry = DirectoryEntry { name: b"a".to_vec(), kind: FileKind::Link, size: 1, modified: 2 };
        assert_eq!(
            json(FileReport::Entries { entries: vec![entry] }),
            r#"{"entries":{"entries":[{"name":[97],"kind":"link","size":1,"modified":2}]}}"#
        );
        assert_eq!(json(FileReport::End { total: 1 }), r#"{"end":{"total":1}}"#);
        assert_eq!(json(FileReport::Refused { errno: 1 }), r#"{"refused":{"errno":1}}"#);
    }
}
