//! The vocabulary of ringfence: the types that every other crate uses.
//!
//! Principals, sessions, failures, templates, flavors, the spec of a sandbox and audit events. Nothing here starts a
//! process, opens a connection or waits.

mod allowed_root;
mod audit;
pub mod bytes;
mod failure;
mod fair_share;
mod flavor;
pub mod hidden_text;
mod identity;
pub mod os_strings;
mod spec;
pub mod suggest;
mod template;

pub use allowed_root::AllowedRoot;
pub use audit::{AuditEvent, AuditKind, AuditThrottle, Detail, now_ms};
pub use failure::{Failure, Kind};
pub use fair_share::fair_share;
pub use flavor::{Flavor, Flavors, UnknownFlavor};
pub use identity::{Principal, SessionId};
pub use spec::{
    Access, Command, Limits, Network, PLACEHOLDER, PROXY_PORT, Root, Spec, SpecError, Volume, WORKSPACE, Weakness,
    Workspace,
};
pub use template::{
    Language, PATH, Template, Templates, UnknownTemplate, default_accepted_weaknesses, proxy_environment,
};
