//! The specification of a server's sandbox, from the settings in its entry (`box`).

use std::collections::BTreeSet;

use ringfence_backend::interpreter;
use ringfence_core::{Flavor, Language, Network, Root, Spec, Template, Weakness};
use ringfence_egress::{Policy, Rule};
use ringfence_entries::SandboxSettings;

use crate::phase::{Phase, StartFailure};

/// Returns the specification of a sandbox with these settings. It has no volumes and no command yet.
///
/// Without rules its network allows nothing, but refused hosts are reported and can be allowed while it runs.
pub(crate) fn sandbox_spec(
    settings: &SandboxSettings,
    rules: &[Rule],
    accepted_weaknesses: &BTreeSet<Weakness>,
) -> Spec {
    let mut limits = Flavor::small().limits;
    limits.memory_bytes = settings.memory_mb.map_or(limits.memory_bytes, |mib| mib.saturating_mul(1 << 20));
    limits.cpus = settings.cpus.unwrap_or(limits.cpus);
    limits.pids = settings.pids_limit.unwrap_or(limits.pids);
    let flavor = Flavor::new("server", limits);
    let mut spec = Template::builtin(Language::Bash).spec(&flavor, Vec::new());
    spec.command = None;
    spec.accept.clone_from(accepted_weaknesses);
    spec.root = settings.image.clone().map_or(Root::Host, Root::Directory);
    spec.network = Network::Egress { ports: Policy::named_ports(rules) };
    spec
}

/// Mounts interpreters that are outside of the paths that every sandbox sees, and adds them to PATH. A sandbox with an
/// image uses the interpreters of the image instead.
pub(crate) fn add_interpreters(spec: &mut Spec, names: &[&str]) {
    if spec.root != Root::Host {
        return;
    }
    for found in names.iter().filter_map(|name| interpreter::find(name)) {
        if !spec.volumes.iter().any(|volume| volume.guest == found.volume.guest) {
            spec.volumes.push(found.volume);
        }
        let path = spec.environment.entry("PATH".into()).or_default();
        let directory = found.directory.display().to_string();
        if !path.split(':').any(|known| known == directory) {
            *path = format!("{directory}:{path}");
        }
    }
}

/// Parses the `allow` list of an entry into rules of its egress.
pub(crate) fn egress_rules(allow: &[String]) -> Result<Vec<Rule>, StartFailure> {
    let parsed = Policy::parse(allow.iter().map(String::as_str));
    parsed.map(|policy| policy.rules).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        StartFailure::permanent(Phase::SessionCreate, format!("{error}{cause}")).hint(error.hint())
    })
}
