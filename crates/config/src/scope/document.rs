//! What stands in a scope, read strictly: what is not known is refused, since it may have been meant to forbid something.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_core::AllowedRoot;
use rustix::io::Errno;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::run::{ModelIdentity, Run};
use super::{Capability, Confinement, Scope, ScopeError};

/// Names and ids of one scope.
const MOST_TEXT_BYTES: usize = 256;

const MOST_ROOTS: usize = 64;

/// How long calls under way are awaited where no time is named: a supervisor gives ten seconds in all.
const USUAL_DRAIN: Duration = Duration::from_secs(8);

/// The longest time that can be named, in seconds.
const LONGEST_DRAIN: f64 = 3600.0;

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
}

/// Whether and how long calls under way are awaited; or the stage of the run, by name.
#[derive(Deserialize)]
#[serde(untagged, expecting = "drain is true, false, a number of seconds, or the name of a stage")]
enum DrainParams {
    Switch(bool),
    Seconds(f64),
    Stage(String),
}

pub(super) fn parse(text: &[u8], path: &Path) -> Result<Scope, ScopeError> {
    let malformed = |problem: String| ScopeError::Malformed { path: path.to_owned(), problem };
    let params: ScopeParams = serde_json::from_slice(text).map_err(|error| malformed(error.to_string()))?;
    let (drain, stage) = drain(params.drain).map_err(malformed)?;
    let run = Run {
        session_id: params.session_id,
        run_id: params.run_id,
        drain: stage,
        worker_namespace: params.worker_namespace,
        model_identity: params.model_identity,
    };
    check_texts(&run, params.capability_profile.as_deref()).map_err(malformed)?;
    let mut capabilities = BTreeSet::new();
    for name in &params.capabilities {
        let unknown = || ScopeError::UnknownCapability {
            path: path.to_owned(),
            name: name.chars().take(MOST_TEXT_BYTES).collect(),
        };
        capabilities.insert(Capability::named(name).ok_or_else(unknown)?);
    }
    if params.allowed_roots.len() > MOST_ROOTS {
        return Err(malformed(format!("more than {MOST_ROOTS} allowed_roots")));
    }
    let roots = params.allowed_roots.iter().map(|root| root_directory(root, path));
    let roots = roots.collect::<Result<Vec<_>, _>>()?;
    let confinement = Confinement::new(roots.clone());
    let artifacts = match &params.worker_artifact_dir {
        Some(given) => {
            check_absolute("worker_artifact_dir", given, path)?;
            let artifacts = beneath_real_root(given, &params.allowed_roots, &roots);
            confinement.find(&artifacts)?;
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
            return Err(malformed("worker_artifact_dir is that of a parallel_worker, which this is not".into()));
        }
    };
    let digest = Sha256::digest(text);
    let half = |from: usize| u128::from_be_bytes(std::array::from_fn(|index| digest[from + index]));
    let digest = format!("{:032x}{:032x}", half(0), half(16));
    // It stands in the names of sockets, which must be short.
    let tag = digest.chars().take(16).collect();
    Ok(Scope { run, capabilities, confinement, drain, profile: params.capability_profile, tag, digest })
}

fn drain(given: DrainParams) -> Result<(Duration, Option<String>), String> {
    match given {
        DrainParams::Switch(false) => Ok((Duration::ZERO, None)),
        DrainParams::Switch(true) => Ok((USUAL_DRAIN, None)),
        DrainParams::Stage(stage) => Ok((USUAL_DRAIN, Some(stage))),
        DrainParams::Seconds(seconds) if (0.0..=LONGEST_DRAIN).contains(&seconds) => {
            Ok((Duration::from_secs_f64(seconds), None))
        }
        DrainParams::Seconds(seconds) => {
            Err(format!("drain is {seconds}, and not between 0 and {LONGEST_DRAIN} seconds"))
        }
    }
}

/// They stand in every event and every line of the log.
fn check_texts(run: &Run, profile: Option<&str>) -> Result<(), String> {
    let named = [("session_id", Some(&*run.session_id)), ("run_id", Some(&*run.run_id))];
    let optional = [("worker_namespace", run.worker_namespace.as_deref()), ("capability_profile", profile)];
    for (field, text) in named.into_iter().chain(optional) {
        if text.is_some_and(str::is_empty) {
            return Err(format!("{field} is empty"));
        }
    }
    // Callers are told apart by NAME@NAMESPACE.
    if run.worker_namespace.as_deref().is_some_and(|namespace| namespace.contains('@')) {
        return Err("worker_namespace has an `@`, which stands between a caller and its namespace".into());
    }
    let drain = [("drain", run.drain.as_deref())];
    let given = named.into_iter().chain(optional).chain(drain).filter_map(|(field, text)| Some((field, text?)));
    for (field, text) in given.chain(run.model_identity.iter().flat_map(ModelIdentity::texts)) {
        if text.len() > MOST_TEXT_BYTES {
            return Err(format!("{field} is longer than {MOST_TEXT_BYTES} bytes"));
        }
        if text.chars().any(char::is_control) {
            return Err(format!("{field} has control characters"));
        }
    }
    Ok(())
}

/// A root by its real path: links in it are resolved once, now, since whoever wrote the scope is trusted.
fn root_directory(given: &Path, path: &Path) -> Result<AllowedRoot, ScopeError> {
    check_absolute("allowed_roots", given, path)?;
    let failed = |why: std::io::Error| unusable("allowed_roots", given, path, &why);
    let real = given.canonicalize().map_err(failed)?;
    AllowedRoot::new(real).map_err(|errno: Errno| failed(errno.into()))
}

/// What lies in a root may have been planted by a guest of an earlier run: only the links of the root itself are
/// resolved, and any other is refused when it is opened.
fn beneath_real_root(given: &Path, roots: &[PathBuf], real: &[AllowedRoot]) -> PathBuf {
    let named = roots.iter().zip(real).filter_map(|(root, real)| Some((given.strip_prefix(root).ok()?, real)));
    // The innermost leaves the least to be resolved.
    match named.min_by_key(|(below, _)| below.components().count()) {
        Some((below, real)) => real.path().join(below).components().collect(),
        None => given.to_owned(),
    }
}

fn check_absolute(field: &'static str, given: &Path, path: &Path) -> Result<(), ScopeError> {
    if given.is_absolute() {
        return Ok(());
    }
    let problem = format!("{} is not an absolute path", given.display());
    Err(ScopeError::Directory { path: path.to_owned(), field, problem, hint: "give the whole path, from `/` on" })
}

fn unusable(field: &'static str, given: &Path, path: &Path, why: &std::io::Error) -> ScopeError {
    let hint = match why.kind() {
        std::io::ErrorKind::NotFound => "make the directory first; it is never created",
        std::io::ErrorKind::NotADirectory => "give a directory",
        _ => "check the path, and who may use it",
    };
    ScopeError::Directory {
        path: path.to_owned(),
        field,
        problem: format!("{} cannot be used: {why}", given.display()),
        hint,
    }
}
