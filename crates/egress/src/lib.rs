//! Network egress of a sandbox: a forward proxy on the host that allows destinations by rule.
//!
//! The network namespace of a sandbox has only a loopback interface. A listener inside it is served by this crate on the
//! host as an HTTP/1.1 proxy, for `CONNECT` tunnels and absolute-form `http://` requests. Invariants:
//! - The proxy resolves and connects to a host only after a rule has allowed the host and the port.
//! - The proxy resolves a name once per connection, checks every address, and connects to a checked address.
//! - Every request is checked, including plain-text requests inside a tunnel. A forwarding connection carries one request.
//! - When the proxy stops, all traffic stops.
//!
//! The proxy does not inspect TLS beyond the first `ClientHello`, in which an encrypted `ClientHello` may name another
//! server. It does not check protocols other than TLS and HTTP/1, which pass only on ports that a rule names. It does not
//! follow redirects and has no secrets.

mod context;
mod decision;
#[cfg(fuzzing)]
pub mod fuzzing;
mod http;
mod name_lookup;
mod peer_socket;
mod proxy;
mod refusal;
mod relay;
mod rules;
mod tls;
mod upstream;

pub use decision::{Decision, DecisionLog};
pub use peer_socket::{PeerSocket, distinct_own_uid};
pub use proxy::Proxy;
pub use rules::{AddressClass, DnsName, Host, HostError, Policy, Rule, RuleError};
