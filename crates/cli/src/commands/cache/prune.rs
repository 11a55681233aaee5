//! `ringfence cache prune`.
#![allow(clippy::doc_markdown)] // the doc comments of arguments are the text of `--help`

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ringfence_core::bytes;
use ringfence_egress::{PackageCache, PruneLimits};
use serde_json::json;

use super::{directory, unreadable};
use crate::configuration::load;
use crate::failure::Failure;
use crate::output::{print_json, status};

/// Remove packages of the package mirror from the cache.
///
/// Without options, the least recently used packages are removed until the cache has the size packages.max_size, and
/// incomplete downloads of servers that were killed. Servers may be running. The packages of hosted servers and
/// templates, and unpacked images, are not removed.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Remove all packages
    #[arg(long, conflicts_with = "older_than")]
    all: bool,
    /// Remove packages that were not used for this time (12h, 30d)
    #[arg(long, value_name = "DURATION", value_parser = age)]
    older_than: Option<Duration>,
    /// The configuration file, if it sets packages.max_size
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let configuration = load(arguments.config.clone(), Vec::new())?;
    let max_bytes = Some(if arguments.all { 0 } else { configuration.packages.max_bytes });
    let cache = PackageCache::in_directory(&directory()?);
    let limits = PruneLimits { max_bytes, older_than: arguments.older_than };
    let pruned = cache.prune(limits).map_err(|error| unreadable(&error))?;
    if arguments.json {
        return print_json(&json!({"entries": pruned.entries, "bytes": pruned.bytes}));
    }
    status(&format!("removed {} entries, {}", pruned.entries, bytes::format(pruned.bytes)));
    Ok(ExitCode::SUCCESS)
}

fn age(text: &str) -> Result<Duration, String> {
    const UNITS: [(char, u64); 4] = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    let parsed = UNITS.iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(*unit)?.parse().ok()?;
        number.checked_mul(*seconds).map(Duration::from_secs)
    });
    parsed.ok_or_else(|| format!("`{text}` is not a duration, such as 30m, 12h or 7d"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_units() {
        assert_eq!(age("7d"), Ok(Duration::from_secs(7 * 86_400)));
        for text in ["7", "d", "-1d", "1w", "99999999999999999999d"] {
            assert!(age(text).is_err(), "{text}");
        }
    }
}
