//! Lookup of host names on the host.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::rules::DnsName;

/// Maximum number of concurrent lookups. A lookup cannot be cancelled, so it may outlive its timeout.
const MAX_LOOKUPS: usize = 16;

/// The source of addresses for names.
#[derive(Debug)]
pub(crate) enum NameLookup {
    /// The resolver of the host system.
    System(Arc<Semaphore>),
    /// Prepared results, each returned once.
    #[cfg(test)]
    Scripted(std::sync::Mutex<std::collections::VecDeque<Vec<IpAddr>>>),
}

impl NameLookup {
    pub(crate) fn system() -> Self {
        Self::System(Arc::new(Semaphore::new(MAX_LOOKUPS)))
    }

    #[cfg(test)]
    pub(crate) fn scripted(results: &[&[IpAddr]]) -> Self {
        Self::Scripted(std::sync::Mutex::new(results.iter().map(|addresses| addresses.to_vec()).collect()))
    }

    /// Looks a name up once. The caller sets the timeout.
    pub(crate) async fn lookup(&self, name: &DnsName) -> io::Result<Vec<IpAddr>> {
        match self {
            Self::System(permits) => {
                let permit = Arc::clone(permits).acquire_owned().await.map_err(io::Error::other)?;
                let name = name.as_str().to_owned();
                tokio::task::spawn_blocking(move || {
                    let _permit = permit;
                    let found = (name.as_str(), 0).to_socket_addrs()?;
                    Ok(found.map(|address| address.ip().to_canonical()).collect())
                })
                .await?
            }
            #[cfg(test)]
            Self::Scripted(results) => {
                results.lock().unwrap().pop_front().ok_or_else(|| io::ErrorKind::NotFound.into())
            }
        }
    }
}
