//! Why something that a caller wants to keep is not kept: what it is called, or how much of it there is.

use ringfence_core::bytes;

/// Told to the code that asked, so that it can do something about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotKept {
    #[error("`{name}` cannot be the name of a saved tool: {why}")]
    ToolName { name: String, why: &'static str },
    #[error("this cannot be the key of a memory: {why}")]
    MemoryKey { why: &'static str },
    #[error("the value of a memory must be JSON")]
    NoJson,
    #[error("{what} has {bytes} bytes, and may have {} at most", bytes::format(*most))]
    TooLarge { what: &'static str, bytes: u64, most: u64 },
    #[error("there are {most} {what} already, and there may be no more")]
    TooMany { what: &'static str, most: u64 },
    #[error("your {what} would have {bytes} bytes in all, and may have {} at most", bytes::format(*most))]
    Full { what: &'static str, bytes: u64, most: u64 },
}

impl NotKept {
    /// Whether it is a matter of how much, and not of what.
    pub fn is_limit(&self) -> bool {
        matches!(self, Self::TooLarge { .. } | Self::TooMany { .. } | Self::Full { .. })
    }

    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::ToolName { .. } => "choose a name of ASCII letters, digits and _, such as `count_words`".into(),
            Self::MemoryKey { .. } => "choose a key of 1 to 256 printable characters".into(),
            Self::NoJson => "save what json can hold: text, numbers, lists, dictionaries with text as keys".into(),
            Self::TooLarge { .. } => "keep less of it, or in several parts".into(),
            Self::Full { what, .. } if *what == super::saved_tools::WHAT => {
                "delete saved tools that are no longer needed; the last 20 versions of each count".into()
            }
            Self::TooMany { what, .. } | Self::Full { what, .. } => {
                format!("delete {what} that are no longer needed")
            }
        }
    }
}
