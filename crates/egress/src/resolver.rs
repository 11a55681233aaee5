//! Where names get their addresses.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::host::Name;

/// Lookups that may run at once: a lookup cannot be cancelled, and outlives its deadline.
const MAX_LOOKUPS: usize = 16;

/// The source of addresses.
#[derive(Debug)]
pub(super) enum Resolver {
    /// The host's own resolver.
    System(Arc<Semaphore>),
    /// Prepared answers, each given once.
    #[cfg(test)]
    Scripted(std::sync::Mutex<std::collections::VecDeque<Vec<IpAddr>>>),
}

impl Resolver {
    pub(super) fn system() -> Self {
        Self::System(Arc::new(Semaphore::new(MAX_LOOKUPS)))
    }

    /// Looks a name up once. The caller sets the deadline.
    pub(super) async fn lookup(&self, name: &Name) -> io::Result<Vec<IpAddr>> {
        match self {
            Self::System(slots) => {
                let slot = Arc::clone(slots).acquire_owned().await.map_err(io::Error::other)?;
                let name = name.as_str().to_owned();
                tokio::task::spawn_blocking(move || {
                    let _slot = slot;
                    let found = (name.as_str(), 0).to_socket_addrs()?;
                    Ok(found.map(|address| address.ip().to_canonical()).collect())
                })
                .await?
            }
            #[cfg(test)]
            Self::Scripted(answers) => {
                answers.lock().unwrap().pop_front().ok_or_else(|| io::ErrorKind::NotFound.into())
            }
        }
    }
}
