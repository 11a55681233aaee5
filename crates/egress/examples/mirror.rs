//! Serves the package mirror on a port of loopback until standard input ends, to try package managers and to measure them.
//!
//! ```text
//! cargo run --release -p ringfence-egress --example mirror -- CACHE_DIRECTORY PYTHON_INDEX NPM_REGISTRY [PORT]
//! ```
//! It prints the URL of the mirror. Certificate authorities come from the system and from `SSL_CERT_FILE`.
#![allow(clippy::print_stdout)]

use std::io::Read as _;
use std::net::TcpListener;

use ringfence_egress::{DecisionLog, Mirror, MirrorSettings, NpmRegistries, PythonIndexes, RegistrySource};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |name: &str| arguments.next().ok_or_else(|| format!("missing argument: {name}"));
    let cache = next("CACHE_DIRECTORY")?;
    let (python, npm) = (next("PYTHON_INDEX")?, next("NPM_REGISTRY")?);
    let port: u16 = next("PORT").map_or(Ok(0), |port| port.parse())?;
    let certificates: Vec<Vec<u8>> =
        std::env::var_os("SSL_CERT_FILE").map(std::fs::read).transpose()?.into_iter().collect();
    let registries = RegistrySource::known(
        PythonIndexes { urls: vec![python], certificates: certificates.clone() },
        NpmRegistries { url: npm, certificates, ..NpmRegistries::default() },
    );
    let mirror = Mirror::new(MirrorSettings { cache_directory: cache.into(), max_bytes: 10 << 30, registries });
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!("http://{}", listener.local_addr()?);
    let (log, mut decisions) = DecisionLog::bounded(1024);
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.spawn(async move { mirror.serve(listener, log).await });
    runtime.spawn(async move {
        while let Some(decision) = decisions.recv().await {
            println!("{}: {}", decision.package.unwrap_or_default(), decision.reason);
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
