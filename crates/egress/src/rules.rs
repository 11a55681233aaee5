//! Rules and the decisions they lead to. Pure functions: nothing here resolves or connects.

mod address_class;
mod host;
mod policy;
mod request;
mod rule;

pub use address_class::AddressClass;
pub use host::{DnsName, Host, HostError};
pub use policy::Policy;
pub use request::{Method, MethodError, PathPattern, PathPatternError, RequestScope};
pub use rule::{Rule, RuleError};

pub(crate) use host::HostPort;
pub(crate) use policy::Denial;
pub(crate) use request::{RequestDenial, overrides_request};
