//! Network egress of a sandbox: everything that a sandbox reaches is allowed by name and relayed by the host.
//!
//! The network namespace of a sandbox has only a loopback interface. The host serves sockets inside it: a DNS server that
//! maps allowed names to local addresses, listeners for connections to these addresses, and an HTTP/1.1 forward proxy for
//! `CONNECT` tunnels and absolute-form `http://` requests. Invariants:
//! - A host is resolved and connected to only after a rule, or the user, has allowed the host and the port. A query of
//!   the guest to the DNS server never leaves the host.
//! - A name is resolved once per connection; every address is checked, and the connection goes to a checked address.
//! - Every request is checked, including plain-text requests inside a tunnel. A forwarding connection carries one request.
//! - When the handle of the egress is dropped, all traffic stops.
//! - A value of a secret is sent only to the hosts of the secret, and never reaches the guest by this crate.
//!
//! This crate decrypts TLS only for hosts with a secret, or whose rules have methods or paths. For all other hosts it does
//! not inspect TLS beyond the first `ClientHello`, in which an encrypted `ClientHello` may name another server. It does not
//! check protocols other than TLS and HTTP/1, which pass only on ports that a rule names. It does not follow redirects.

mod approvals;
mod context;
mod decision;
mod egress;
#[cfg(fuzzing)]
pub mod fuzzing;
mod http;
mod live_policy;
mod mirror;
mod name_lookup;
mod name_table;
mod peer_socket;
mod proxy;
mod refusal;
mod refused_hosts;
mod relay;
mod remedy;
mod resolver;
mod rules;
mod secrets;
mod terminate;
mod tls;
mod transparent;
mod upstream;

pub use approvals::{Approval, ApprovalRequest, Approvals};
pub use decision::{Decision, DecisionLog, Source};
pub use egress::{Egress, EgressSettings};
pub use mirror::{
    CacheUsage, Mirror, MirrorSettings, NpmRegistries, PackageCache, PruneLimits, Pruned, PythonIndexes, RegistrySource,
};
pub use peer_socket::{PeerSocket, distinct_own_uid};
pub use refused_hosts::RefusedHosts;
pub use remedy::Remedy;
pub use rules::{
    AddressClass, DnsName, Host, HostError, Method, MethodError, PathPattern, PathPatternError, Policy, RequestScope,
    Rule, RuleError,
};
pub use secrets::{
    CredentialsError, GuestFiles, Location, RestoredCredentials, SandboxCredentials, SecretDefinition, SecretValue,
    SecretValueError,
};
pub use tls::AuthorityError;
