//! What stands in a scope, read strictly: what is not known is refused, since it may have been meant to forbid something.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_sandbox::Within;
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
    let roots = params.allowed_roots.iter().map(|root| directory("allowed_roots", root, path));
    let roots = roots.collect::<Result<Vec<_>, _>>()?;
    let artifacts = params.worker_artifact_dir.as_deref();
    let artifacts = artifacts.map(|artifacts| directory("worker_artifact_dir", artifacts, path)).transpose()?;
    let confinement = Confinement::new(roots.clone());
    if let Some(artifacts) = &artifacts {
        confinement.find(artifacts.path())?;
    }
    let confinement = match (params.parallel_worker, artifacts) {
        (Some(true), artifacts) => Confinement::of_parallel_worker(roots, artifacts),
        (_, None) => confinement,
        (_, Some(_)) => {
            return Err(malformed("worker_artifact_dir is that of a parallel_worker, which this is not".into()));
        }
    };
    let mut mark = [0; 8];
    mark.copy_from_slice(&Sha256::digest(text)[..8]);
    let tag = format!("{:016x}", u64::from_be_bytes(mark));
    Ok(Scope { run, capabilities, confinement, drain, profile: params.capability_profile, tag })
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

/// A directory by its real path: links in it are resolved once, now, since whoever wrote the scope is trusted.
fn directory(field: &'static str, given: &Path, path: &Path) -> Result<Within, ScopeError> {
    let wrong = |problem: String, hint| ScopeError::Directory { path: path.to_owned(), field, problem, hint };
    if !given.is_absolute() {
        return Err(wrong(format!("{} is not an absolute path", given.display()), "give the whole path, from `/` on"));
    }
    let failed = |why: std::io::Error| {
        let hint = match why.kind() {
            std::io::ErrorKind::NotFound => "make the directory first; it is never created",
            std::io::ErrorKind::NotADirectory => "give a directory",
            _ => "check the path, and who may use it",
        };
        wrong(format!("{} cannot be used: {why}", given.display()), hint)
    };
    let real = given.canonicalize().map_err(failed)?;
    Within::new(real).map_err(|errno: Errno| failed(errno.into()))
}
