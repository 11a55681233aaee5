//! Rules and the decisions they lead to. Pure functions: nothing here resolves or connects.

mod address_class;
mod host;
mod policy;
mod rule;

pub use address_class::AddressClass;
pub use host::{DnsName, Host, HostError};
pub use policy::Policy;
pub use rule::{Rule, RuleError};

pub(crate) use host::HostPort;
pub(crate) use policy::Denial;
