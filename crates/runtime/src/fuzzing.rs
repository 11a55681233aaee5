//! Entry points of the fuzz targets.

pub use crate::egress::fuzzing::egress_heads;
pub use crate::image::fuzzing::tar_layers;
pub use crate::servers::import::fuzzing::client_configs;
pub use crate::session::fuzzing::kernel_messages;
