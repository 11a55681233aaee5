//! Which requests a rule or a secret allows: methods and path patterns.

mod method;
mod path;
mod scope;

pub use method::{Method, MethodError};
pub use path::{PathPattern, PathPatternError};
pub use scope::RequestScope;

pub(crate) use scope::{RequestDenial, overrides_request};
