//! `ringfence server disable NAME…`.

use clap::Args;

/// Stop servers, and do not start them until they are enabled again.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The servers' names
    #[arg(required = true, value_name = "NAME")]
    pub(super) names: Vec<String>,
}
