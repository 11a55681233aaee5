//! The only way out of a sandbox: a forward proxy that allows hosts by rule.
//!
//! A sandbox has a network namespace with nothing but loopback. A listener inside it is served
//! from here, on the host, as an HTTP/1.1 proxy: `CONNECT` tunnels and absolute-form `http://`.
//! What always holds:
//! - nothing is resolved or connected before a rule has allowed the host and the port;
//! - a name is resolved once, every answer is checked, and the connection goes to a checked answer;
//! - each request is judged anew, also those in plain text inside a tunnel, and a connection that forwards carries one;
//! - when the proxy ends, so does all traffic.
//!
//! It does not look inside TLS beyond the first `ClientHello` (where an encrypted one can name another server), does not
//! check protocols other than TLS and HTTP/1, which pass on ports that a rule names, does not follow redirects, and holds
//! no secrets.

mod address;
mod body;
mod connection;
mod decision;
mod dial;
mod first_line;
mod forward;
#[cfg(fuzzing)]
pub mod fuzzing;
mod head;
mod hello;
mod host;
pub mod loopback;
mod policy;
mod proxy;
mod refusal;
mod relay;
mod request;
mod resolver;
mod rule;
#[cfg(test)]
mod tests;
mod tunnel;
mod tunnelled_http;

pub use address::Reach;
pub use decision::{Decision, DecisionLog};
pub use head::HeadError;
pub use host::{Host, HostError, Name, Target};
pub use policy::Policy;
pub use proxy::{Limits, Proxy};
pub use refusal::Refusal;
pub use rule::{Rule, RuleError};
