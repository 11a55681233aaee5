//! Resolves hosts, and refuses private addresses of hosts that only an index names.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::rules::AddressClass;

/// Variables that name a proxy of the operator, which may have any address.
const PROXY_VARIABLES: [&str; 6] = ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];

/// Resolves names. The operator's hosts may have any address; other hosts only those that [`check`] permits.
#[derive(Debug)]
pub(super) struct CheckedResolver {
    /// The hosts of the registries.
    registries: Arc<BTreeSet<String>>,
    /// The hosts of proxies.
    proxies: BTreeSet<String>,
}

impl CheckedResolver {
    pub(super) fn new(registries: &BTreeSet<String>) -> Self {
        let proxy = |name: &&str| {
            let text = std::env::var(name).ok()?;
            let url = if text.contains("://") { text } else { format!("http://{text}") };
            Url::parse(&url).ok()?.host_str().map(str::to_owned)
        };
        Self { registries: Arc::new(registries.clone()), proxies: PROXY_VARIABLES.iter().filter_map(proxy).collect() }
    }
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_owned();
        let is_of_operator = self.registries.contains(&host) || self.proxies.contains(&host);
        let registries = Arc::clone(&self.registries);
        Box::pin(async move {
            let addresses = lookup(&host).await?;
            if !is_of_operator {
                check(&addresses, &registries).await?;
            }
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// Refuses addresses that are not public. Private ones are permitted if a registry has one too.
async fn check(addresses: &[SocketAddr], registries: &BTreeSet<String>) -> io::Result<()> {
    let classes = |addresses: &[SocketAddr]| -> Vec<AddressClass> {
        addresses.iter().map(|address| AddressClass::of(address.ip())).collect()
    };
    let found = classes(addresses);
    if found.iter().any(|class| matches!(class, AddressClass::Metadata | AddressClass::Unusable)) {
        return Err(refused());
    }
    if !found.contains(&AddressClass::Private) {
        return Ok(());
    }
    for registry in registries {
        let registry = lookup(registry.trim_matches(['[', ']'])).await.unwrap_or_default();
        if classes(&registry).contains(&AddressClass::Private) {
            return Ok(());
        }
    }
    Err(refused())
}

async fn lookup(host: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(tokio::net::lookup_host((host, 0)).await?.collect())
}

fn refused() -> io::Error {
    io::Error::other("the index names a host with a private address, but the registry has a public one")
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check_address(address: &str, registry: &str) -> bool {
        let address = SocketAddr::new(address.parse().unwrap(), 0);
        check(&[address], &BTreeSet::from([registry.to_owned()])).await.is_ok()
    }

    #[tokio::test]
    async fn private_hosts_need_a_private_registry() {
        assert!(check_address("1.1.1.1", "8.8.8.8").await);
        assert!(!check_address("10.0.0.1", "8.8.8.8").await);
        assert!(check_address("10.0.0.1", "10.0.0.2").await);
        assert!(check_address("10.0.0.1", "127.0.0.1").await);
        assert!(!check_address("169.254.169.254", "10.0.0.2").await);
        assert!(!check_address("0.0.0.0", "127.0.0.1").await);
    }
}
