//! The native backend: Linux namespaces, made by a launcher process that outlives the server.

mod adoption;
pub(crate) mod background_output;
pub(crate) mod launcher;
pub(crate) mod launcher_sockets;
mod launchers;
mod zygote;

pub use adoption::{Adopted, Orphan, Orphans, end_orphans};
pub use launcher::LAUNCHER_ROLE;
pub use launcher_sockets::LauncherSockets;
pub use launchers::Launchers;
pub use zygote::{ZYGOTE_LIBRARY, find_program, host_python, python_zygote};
