//! Transfers files into and out of an instance.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use ringfence_sandbox::{Control, FileAccess, FileError, GuestPath, Listing};

/// The files of one instance, opened with the guest's permissions. Cheap to clone.
#[derive(Clone)]
pub struct InstanceFiles(Arc<Control>);

impl InstanceFiles {
    pub(crate) fn new(control: Arc<Control>) -> Self {
        Self(control)
    }

    /// Opens a regular file beneath the workspace. Blocks, at most for `timeout`.
    pub fn open(&self, path: &GuestPath, access: FileAccess, timeout: Duration) -> Result<File, FileError> {
        self.0.open_file(path, access, timeout)
    }

    /// Lists a directory beneath the workspace: at most `max_entries`, by name. Blocks, at most for `timeout`.
    pub fn list(&self, path: &GuestPath, max_entries: u32, timeout: Duration) -> Result<Listing, FileError> {
        self.0.list_directory(path, max_entries, timeout)
    }
}
