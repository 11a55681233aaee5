//! The option or command with which a user permits a refused host.

use crate::rules::HostPort;

/// The kind of sandbox, which determines how its user permits a host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Remedy {
    /// The sandbox of `ringfence run`, whose rules are an option.
    #[default]
    Run,
    /// The sandbox of the session with this id.
    Session(String),
    /// The sandbox of the hosted server with this name.
    Server(String),
}

impl Remedy {
    /// Returns the option or command that permits the hosts of a rule.
    pub fn permit(&self, rule: &str) -> String {
        match self {
            Self::Run => format!("--network allow={rule}"),
            Self::Session(id) => format!("ringfence allow session {id} {rule}"),
            Self::Server(name) => format!("ringfence allow server {name} {rule}"),
        }
    }

    /// Returns the option or command that permits a destination.
    pub(crate) fn permit_target(&self, target: &HostPort) -> String {
        self.permit(&target.rule_text())
    }

    /// Returns the option or command that permits a destination with a private address.
    pub(crate) fn permit_private(&self, target: &HostPort) -> String {
        self.permit(&format!("{}+private", target.rule_text()))
    }
}
