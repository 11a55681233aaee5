//! Secrets of a sandbox: the guest has placeholders, and the proxy inserts the values into requests to the right hosts.
//!
//! Invariants:
//! - A value is in no log, error, decision or `Debug` output, and is overwritten when it is no longer needed. Copies in the
//!   buffers of the HTTP and TLS libraries are freed, but not overwritten.
//! - A placeholder has the length of its value, so that exchanging them changes no length of a message.
//! - A value is inserted only into the locations that its definition names, for its hosts, methods and paths.

mod credentials;
mod definition;
mod guest_files;
mod insertion;
mod java_trust_store;
mod placeholder;
mod replacement;
mod stream;

pub use credentials::{CredentialsError, RestoredCredentials, SandboxCredentials};
pub use definition::{Location, SecretDefinition, SecretValue, SecretValueError};
pub use guest_files::GuestFiles;

#[cfg(test)]
pub(crate) use credentials::tests::definition as definition_for_tests;
pub(crate) use insertion::{Destination, SecretDenial, insert_secrets};
pub(crate) use replacement::Replacements;
pub(crate) use stream::StreamReplacer;
