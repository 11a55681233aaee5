//! The state that outlives a server: sessions, hosted servers, saved tools, memories and the audit log, in one `SQLite`
//! database in the state directory.
//!
//! One thread owns the connection and writes in batches. A write that was acknowledged is committed and survives the
//! death of the process at any moment. Several processes may share a directory.
//! Recording audit events never waits. Events are written together, so a killed process can lose those of its last
//! milliseconds.
//! A damaged database is replaced by the newest backup when it is opened, and reported.

mod audit_log;
mod audit_reads;
mod audit_writes;
mod backup;
mod catalogues;
mod congestion;
mod connection;
mod crash_point;
mod damage;
mod damage_report;
mod database;
mod default_sessions;
mod directory;
mod error;
mod locks;
mod memories;
mod migrations;
mod pins;
mod recovery;
mod saved_tools;
mod servers;
mod session_grants;
mod session_rules;
mod sessions;
mod shutdown_marker;
mod store;
mod writer;

pub use audit_log::Audit;
pub use audit_reads::{AuditFilter, AuditRecord};
pub use catalogues::StoredCatalogue;
pub use damage_report::{DamageReport, RestoredBackup, damage_reports};
pub use default_sessions::{DefaultSessionOwner, DefaultSessionRecord};
pub use error::{Collection, Rejected, StoreError};
pub use memories::{Memory, MemoryInfo, MemorySaved};
pub use pins::{Pin, PinKind};
pub use saved_tools::{SavedTool, SavedToolInfo};
pub use servers::{OnConflict, StoredServer};
pub use sessions::SessionRecord;
pub use store::Store;

#[cfg(test)]
mod tests;
