//! Types that every other crate of ringfence uses: principals, session ids, failures, templates, flavors, sandbox specs
//! and audit events.
//!
//! This crate starts no process, opens no connection and performs no blocking I/O. Its only system calls are those of
//! [`AllowedRoot`], which opens directories, [`SessionId::random`] and [`now_ms`].

mod allowed_root;
mod audit;
pub mod bytes;
mod egress_sockets;
mod failure;
mod flavor;
pub mod hidden_text;
mod identity;
mod mirror_environment;
pub mod os_strings;
mod spec;
pub mod suggest;
pub mod sync;
mod template;
mod template_packages;

pub use allowed_root::AllowedRoot;
pub use audit::{AuditDetail, AuditEvent, AuditKind, AuditThrottle, now_ms};
pub use egress_sockets::EgressSockets;
pub use failure::{Failure, Kind};
pub use flavor::{Flavor, Flavors, UnknownFlavor};
pub use identity::{Principal, SessionId, fair_share};
pub use mirror_environment::mirror_environment;
pub use spec::{
    Access, Command, DEFAULT_EGRESS_PORTS, DNS_PORT, EGRESS_PREFIX_LENGTH, EGRESS_RANGE, Limits, MAX_EGRESS_PORTS,
    MIRROR_PORT, Network, PLACEHOLDER, PROXY_PORT, Root, Spec, SpecError, Volume, WORKSPACE, Weakness, Workspace,
    WorkspaceEntry,
};
pub use template::{
    Language, PATH, Template, Templates, UnknownTemplate, default_accepted_weaknesses, proxy_environment,
};
pub use template_packages::{InstalledPackages, TemplatePackages};
