//! Parses scopes. Unknown fields are errors, because they may be intended as restrictions.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_core::AllowedRoot;
use ringfence_egress::Rule;
use rustix::io::Errno;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::run::{ModelIdentity, Run};
use super::{Capability, Confinement, Scope, ScopeError};
use crate::network::NetworkSettings;

/// Maximum size of a name or id.
const MAX_TEXT_BYTES: usize = 256;

const MAX_ROOTS: usize = 64;

const MAX_RULES: usize = 256;

/// Drain timeout unless the scope sets one. A supervisor gives a server ten seconds in all.
const DEFAULT_DRAIN: Duration = Duration::from_secs(8);

/// Maximum drain timeout.
const MAX_DRAIN_SECONDS: f64 = 3600.0;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScopeParams {
    session_id: String,
    run_id: String,
    drain: DrainParams,
    capabilities: Vec<String>,
    allowed_roots: Vec<PathBuf>,
    parallel_worker: Option<bool>,
    worker_namespace: Option<String>,
    worker_artifact_dir: Option<PathBuf>,
    model_identity: Option<ModelIdentity>,
    capability_profile: Option<String>,
    network: Option<NetworkParams>,
}

/// The upper limit of the network of the run's sessions.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkParams {
    #[serde(default)]
    packages: bool,
    #[serde(default)]
    allow: Vec<String>,
}

/// Whether to wait for running calls when the server stops, the maximum time of this wait, or the name of a stage of
/// the run.
#[derive(Deserialize)]
#[serde(untagged, expecting = "drain must be true, false, a number of seconds, or the name of a stage")]
enum DrainParams {
    Switch(bool),
    Seconds(f64),
    Stage(String),
}

pub(super) fn parse(text: &[u8], path: &Path) -> Result<Scope, ScopeError> {
    let malformed = |problem: String| ScopeError::Malformed { path: path.to_owned(), problem };
    let params: ScopeParams = serde_json::from_slice(text).map_err(|error| malformed(error.to_string()))?;
    let (drain_timeout, stage) = drain_timeout(params.drain).map_err(malformed)?;
    let run = Run {
        session_id: params.session_id,
        run_id: params.run_id,
        stage,
        worker_namespace: params.worker_namespace,
        model_identity: params.model_identity,
    };
    check_texts(&run, params.capability_profile.as_deref()).map_err(malformed)?;
    let mut capabilities = BTreeSet::new();
    for name in &params.capabilities {
        let unknown = || ScopeError::UnknownCapability {
            path: path.to_owned(),
            name: name.chars().take(MAX_TEXT_BYTES).collect(),
        };
        capabilities.insert(Capability::from_name(name).ok_or_else(unknown)?);
    }
    if params.allowed_roots.len() > MAX_ROOTS {
        return Err(malformed(format!("allowed_roots has more than {MAX_ROOTS} entries")));
    }
    let roots = params.allowed_roots.iter().map(|root| root_directory(root, path));
    let roots = roots.collect::<Result<Vec<_>, _>>()?;
    let confinement = Confinement::new(roots.clone());
    let artifacts = match &params.worker_artifact_dir {
        Some(given) => {
            check_absolute("worker_artifact_dir", given, path)?;
            let artifacts = with_real_root(given, &params.allowed_roots, &roots);
            confinement.find_root(&artifacts)?;
            Some(
                AllowedRoot::new(artifacts)
                    .map_err(|errno| unusable("worker_artifact_dir", given, path, &errno.into()))?,
            )
        }
        None => None,
    };
    let confinement = match (params.parallel_worker, artifacts) {
        (Some(true), artifacts) => Confinement::of_parallel_worker(roots, artifacts),
        (_, None) => confinement,
        (_, Some(_)) => {
            return Err(malformed("worker_artifact_dir requires parallel_worker = true".into()));
        }
    };
    let network = network(params.network).map_err(malformed)?;
    let digest = Sha256::digest(text);
    let half = |from: usize| u128::from_be_bytes(std::array::from_fn(|index| digest[from + index]));
    let digest = format!("{:032x}{:032x}", half(0), half(16));
    // Short, because it becomes part of socket names.
    let tag = digest.chars().take(16).collect();
    let profile = params.capability_profile;
    Ok(Scope { run, capabilities, confinement, network, drain_timeout, profile, tag, digest })
}

/// Without the field, sessions reach nothing. Nobody but the operator can permit hosts in a scope.
fn network(params: Option<NetworkParams>) -> Result<NetworkSettings, String> {
    let Some(NetworkParams { packages, allow }) = params else { return Ok(NetworkSettings::none()) };
    if allow.len() > MAX_RULES {
        return Err(format!("network.allow has more than {MAX_RULES} entries"));
    }
    let rules = allow.iter().map(|text| text.parse::<Rule>());
    let allow = rules.collect::<Result<_, _>>().map_err(|error| format!("network.allow: {error}; {}", error.hint()))?;
    Ok(NetworkSettings { allow, packages, ..NetworkSettings::none() })
}

fn drain_timeout(given: DrainParams) -> Result<(Duration, Option<String>), String> {
    match given {
        DrainParams::Switch(false) => Ok((Duration::ZERO, None)),
        DrainParams::Switch(true) => Ok((DEFAULT_DRAIN, None)),
        DrainParams::Stage(stage) => Ok((DEFAULT_DRAIN, Some(stage))),
        DrainParams::Seconds(seconds) if (0.0..=MAX_DRAIN_SECONDS).contains(&seconds) => {
            Ok((Duration::from_secs_f64(seconds), None))
        }
        DrainParams::Seconds(seconds) => {
            Err(format!("drain is {seconds}; it must be from 0 to {MAX_DRAIN_SECONDS} seconds"))
        }
    }
}

/// Checks the texts that become part of every audit event and every log line.
fn check_texts(run: &Run, profile: Option<&str>) -> Result<(), String> {
    let required = [("session_id", Some(&*run.session_id)), ("run_id", Some(&*run.run_id))];
    let optional = [("worker_namespace", run.worker_namespace.as_deref()), ("capability_profile", profile)];
    for (field, text) in required.into_iter().chain(optional) {
        if text.is_some_and(str::is_empty) {
            return Err(format!("{field} is empty"));
        }
    }
    // The name of a principal is NAME@NAMESPACE.
    if run.worker_namespace.as_deref().is_some_and(|namespace| namespace.contains('@')) {
        return Err("worker_namespace contains `@`, which separates a principal from its namespace".into());
    }
    let stage = [("drain", run.stage.as_deref())];
    let given = required.into_iter().chain(optional).chain(stage).filter_map(|(field, text)| Some((field, text?)));
    for (field, text) in given.chain(run.model_identity.iter().flat_map(ModelIdentity::texts)) {
        if text.len() > MAX_TEXT_BYTES {
            return Err(format!("{field} is longer than {MAX_TEXT_BYTES} bytes"));
        }
        if text.chars().any(char::is_control) {
            return Err(format!("{field} contains control characters"));
        }
    }
    Ok(())
}

/// Opens a root by its real path. Links in the path are resolved once, here, because the author of the scope is trusted.
fn root_directory(given: &Path, path: &Path) -> Result<AllowedRoot, ScopeError> {
    check_absolute("allowed_roots", given, path)?;
    let failed = |error: std::io::Error| unusable("allowed_roots", given, path, &error);
    let real = given.canonicalize().map_err(failed)?;
    AllowedRoot::new(real).map_err(|errno: Errno| failed(errno.into()))
}

/// Replaces the root of a path with its real path. Links below the root are not resolved, because a guest of an earlier
/// run may have created them; they are refused when the path is opened.
fn with_real_root(given: &Path, roots: &[PathBuf], real: &[AllowedRoot]) -> PathBuf {
    let containing = roots.iter().zip(real).filter_map(|(root, real)| Some((given.strip_prefix(root).ok()?, real)));
    // The innermost root has the shortest path below it.
    match containing.min_by_key(|(below, _)| below.components().count()) {
        Some((below, real)) => real.path().join(below).components().collect(),
        None => given.to_owned(),
    }
}

fn check_absolute(field: &'static str, given: &Path, path: &Path) -> Result<(), ScopeError> {
    if given.is_absolute() {
        return Ok(());
    }
    let problem = format!("{} is not an absolute path", given.display());
    Err(ScopeError::Directory { path: path.to_owned(), field, problem, hint: "write the complete path from `/`" })
}

fn unusable(field: &'static str, given: &Path, path: &Path, error: &std::io::Error) -> ScopeError {
    let hint = match error.kind() {
        std::io::ErrorKind::NotFound => "create the directory first; ringfence does not create it",
        std::io::ErrorKind::NotADirectory => "write the path of a directory",
        _ => "check the path and its permissions",
    };
    ScopeError::Directory {
        path: path.to_owned(),
        field,
        problem: format!("cannot use {}: {error}", given.display()),
        hint,
    }
}
