//! Where a secret may be used.

use std::collections::BTreeSet;
use std::error::Error as _;

use ringfence_egress::{Location, RequestScope, Rule};

/// Where a secret may be used, as texts that the user writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretSettings {
    /// The variable in which a guest finds the placeholder.
    pub variable: String,
    /// The hosts that receive the value, as `HOST[:PORT][+private]`.
    pub hosts: Vec<String>,
    /// The HTTP methods of requests that receive the value; all if there are none.
    pub methods: Vec<String>,
    /// The paths of requests that receive the value; all if there are none.
    pub paths: Vec<String>,
    pub locations: BTreeSet<Location>,
}

/// Settings that were checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretUse {
    pub(crate) variable: String,
    pub(crate) hosts: Vec<Rule>,
    pub(crate) requests: RequestScope,
    pub(crate) locations: BTreeSet<Location>,
}

/// Reason why settings of a secret are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSecret {
    #[error("`{0}` is not the name of a variable")]
    Variable(String),
    #[error("{problem}")]
    Host { problem: String, hint: &'static str },
    #[error("a secret needs at least one host, without methods and paths")]
    Hosts,
    #[error("a secret needs a part of requests in which its value is inserted")]
    Locations,
    #[error("{0}")]
    Requests(String),
}

impl InvalidSecret {
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Variable(_) => "use letters, digits and `_`, without a digit at the start",
            Self::Host { hint, .. } => hint,
            Self::Hosts => "name hosts such as api.example.com; the secret itself may have methods and paths",
            Self::Locations => "name one or more of header, query and basic",
            Self::Requests(_) => "write methods such as GET, and paths such as /user or /repos/*",
        }
    }
}

/// Returns the default name of the variable.
pub fn default_variable(secret: &str) -> String {
    secret.to_uppercase().replace('-', "_")
}

impl SecretSettings {
    /// Checks the settings without using them.
    pub fn check(&self) -> Result<(), InvalidSecret> {
        self.parse().map(drop)
    }

    pub(crate) fn parse(&self) -> Result<SecretUse, InvalidSecret> {
        let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
        let variable = &self.variable;
        if !variable.starts_with(is_letter) || !variable.chars().all(|c| is_letter(c) || c.is_ascii_digit()) {
            return Err(InvalidSecret::Variable(variable.clone()));
        }
        let parse_host = |text: &String| {
            text.parse::<Rule>().map_err(|error| {
                let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
                InvalidSecret::Host { problem: format!("{error}{cause}"), hint: error.hint() }
            })
        };
        let hosts = self.hosts.iter().map(parse_host).collect::<Result<Vec<Rule>, _>>()?;
        if hosts.is_empty() || hosts.iter().any(|rule| rule.requests().is_limited()) {
            return Err(InvalidSecret::Hosts);
        }
        if self.locations.is_empty() {
            return Err(InvalidSecret::Locations);
        }
        let invalid = |error: &dyn std::error::Error| InvalidSecret::Requests(error.to_string());
        let methods = self.methods.iter().map(|text| text.parse()).collect::<Result<_, _>>();
        let paths = self.paths.iter().map(|text| text.parse()).collect::<Result<_, _>>();
        Ok(SecretUse {
            variable: variable.clone(),
            hosts,
            requests: RequestScope {
                methods: methods.map_err(|error| invalid(&error))?,
                paths: paths.map_err(|error| invalid(&error))?,
            },
            locations: self.locations.clone(),
        })
    }
}

impl SecretUse {
    /// Returns the settings again, each text in one spelling.
    pub(crate) fn settings(&self) -> SecretSettings {
        SecretSettings {
            variable: self.variable.clone(),
            hosts: self.hosts.iter().map(ToString::to_string).collect(),
            methods: self.requests.methods.iter().map(ToString::to_string).collect(),
            paths: self.requests.paths.iter().map(ToString::to_string).collect(),
            locations: self.locations.clone(),
        }
    }
}
