//! What a server needs installed before it can run, and the command that runs it then.

use std::path::{Path, PathBuf};

use super::host_path::{interpreter_name, unwrap_virtualenv};
use super::manifests::Manifests;
use super::phase::{Phase, StartFailure};
use super::plan::Plan;
use super::registries::Kind;
use super::tool::{Tool, npm_name};
use ringfence_entries::StdioSettings;

/// One thing to install, into a place of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Need {
    Npm {
        packages: Vec<String>,
    },
    Pip {
        requirements: Vec<String>,
    },
    /// A project that is installed from its own manifests; `root` is where they are on the host, `guest` inside.
    PythonProject {
        root: Manifests,
        guest: PathBuf,
        requirements: Vec<String>,
    },
    NodeProject {
        root: Manifests,
        guest: PathBuf,
    },
}

impl Need {
    /// Whose registries it is installed from.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Npm { .. } | Self::NodeProject { .. } => Kind::Npm,
            Self::Pip { .. } | Self::PythonProject { .. } => Kind::Python,
        }
    }
}

/// The program to run once all is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Program {
    /// By its path, or found on the PATH.
    Named(String),
    /// What this npm package is made for.
    OfNpm(String),
}

/// All that a plan comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) wanted: Vec<Need>,
    pub(crate) program: Program,
    pub(crate) args: Vec<String>,
    pub(crate) workdir: PathBuf,
}

/// Manifests of a Python project, in the order in which they count.
pub(crate) const PYTHON_MANIFESTS: [&str; 4] = ["pyproject.toml", "setup.py", "setup.cfg", "requirements.txt"];
pub(crate) const NODE_MANIFESTS: [&str; 3] = ["package.json", "package-lock.json", "npm-shrinkwrap.json"];

/// npm packages that run a project's own code.
const RUNNERS: [&str; 3] = ["tsx", "ts-node", "nodemon"];

impl Needs {
    /// Looks at the project's manifests; may block.
    pub(crate) fn of(plan: &Plan, settings: &StdioSettings) -> Result<Self, StartFailure> {
        let tool = Tool::read(&plan.command, &plan.args).map_err(|error| {
            StartFailure::lasting(Phase::DepInstall, error.to_string())
                .hint("write the entry with the package and its arguments alone, such as `npx -y PACKAGE ARGS` or `uvx --from PACKAGE COMMAND ARGS`")
        })?;
        let mut workdir = plan.workdir.clone();
        let (wanted, program, args) = match tool {
            Some(Tool::Npm { packages, program, args }) => {
                let made_for = packages.first().map(|package| npm_name(package).to_owned()).unwrap_or_default();
                let program = program.map_or_else(|| Program::OfNpm(made_for.clone()), Program::Named);
                let mut needs = vec![Need::Npm { packages }];
                if RUNNERS.contains(&made_for.as_str()) {
                    needs.extend(node_project(plan));
                }
                (needs, program, args)
            }
            Some(Tool::Python { requirements, program, args }) => {
                (vec![Need::Pip { requirements }], Program::Named(program), args)
            }
            Some(Tool::InProject { requirements, directory, command, args }) => {
                if let Some(directory) = directory.map(PathBuf::from).filter(|directory| directory.is_absolute()) {
                    workdir = directory;
                }
                let needs = match python_project(plan, &requirements) {
                    Some(need) => vec![need],
                    None if requirements.is_empty() => Vec::new(),
                    None => vec![Need::Pip { requirements }],
                };
                (needs, Program::Named(command), args)
            }
            None => (own_needs(plan, settings), Program::Named(plan.command.clone()), plan.args.clone()),
        };
        Ok(Self { wanted, program, args, workdir })
    }
}

/// What the code of the server's own project needs. A directory that is only worked on is no such project, whatever
/// manifests it has.
fn own_needs(plan: &Plan, settings: &StdioSettings) -> Vec<Need> {
    let is_given = settings.cwd.is_some() || settings.sandbox_settings.host_path.is_some();
    let runs_script = || {
        let script = settings.args.iter().find(|argument| !argument.starts_with('-'));
        script.is_some_and(|script| Path::new(script).is_file())
    };
    let command = Path::new(&settings.command);
    match interpreter_name(&settings.command) {
        _ if unwrap_virtualenv(command).is_some() => python_project(plan, &[]).into_iter().collect(),
        Some("python3") if is_given || runs_script() => python_project(plan, &[]).into_iter().collect(),
        Some("node" | "npm" | "bun" | "deno") if is_given || runs_script() => node_project(plan).into_iter().collect(),
        _ => Vec::new(),
    }
}

fn python_project(plan: &Plan, requirements: &[String]) -> Option<Need> {
    let (root, guest) = manifest_directory(plan, &PYTHON_MANIFESTS)?;
    Some(Need::PythonProject { root, guest, requirements: requirements.to_vec() })
}

fn node_project(plan: &Plan) -> Option<Need> {
    let (root, guest) = manifest_directory(plan, &NODE_MANIFESTS[..1])?;
    Some(Need::NodeProject { root, guest })
}

/// The working directory's, or that of the project.
fn manifest_directory(plan: &Plan, manifests: &[&str]) -> Option<(Manifests, PathBuf)> {
    let project = plan.project.as_ref()?;
    let below = plan.workdir.strip_prefix(&project.guest).unwrap_or(Path::new(""));
    let has_one = |root: &Manifests| manifests.iter().any(|name| root.has(name));
    [below, Path::new("")].into_iter().find_map(|below| {
        // Plain, as it is looked for beneath what it is bound to.
        let root = Manifests::new(project.host.join(below).components().collect(), project.within.clone());
        has_one(&root).then(|| (root, project.guest.join(below)))
    })
}
