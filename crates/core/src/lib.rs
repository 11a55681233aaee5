//! Types that every other crate of ringfence uses: principals, session ids, failures, templates, flavors, sandbox specs
//! and audit events.
//!
//! This crate starts no process, opens no connection and performs no blocking I/O. Its only system calls are those of
//! [`AllowedRoot`], which opens directories, [`SessionId::random`] and [`now_ms`].

mod allowed_root;
mod audit;
pub mod bytes;
mod failure;
mod flavor;
pub mod hidden_text;
mod identity;
pub mod os_strings;
mod spec;
pub mod suggest;
pub mod sync;
mod template;

pub use allowed_root::AllowedRoot;
pub use audit::{AuditDetail, AuditEvent, AuditKind, AuditThrottle, now_ms};
pub use failure::{Failure, Kind};
pub use flavor::{Flavor, Flavors, UnknownFlavor};
pub use identity::{Principal, SessionId, fair_share};
pub use spec::{
    Access, Command, Limits, Network, PLACEHOLDER, PROXY_PORT, Root, Spec, SpecError, Volume, WORKSPACE, Weakness,
    Workspace,
};
pub use template::{
    Language, PATH, Template, Templates, UnknownTemplate, default_accepted_weaknesses, proxy_environment,
};
