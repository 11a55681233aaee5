//! The dependencies that must be installed before a server can run, and the command that then starts it.

use std::path::{Path, PathBuf};

use super::Plan;
use super::host_paths::{interpreter_name, split_virtualenv};
use super::manifests::ManifestDirectory;
use super::package_runner::{RunnerCommand, npm_package_name};
use crate::phase::{Phase, StartFailure};
use ringfence_entries::StdioSettings;

/// One installation. Each has a separate directory in the package cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Dependency {
    NpmPackages {
        packages: Vec<String>,
    },
    PipPackages {
        requirements: Vec<String>,
    },
    /// A project that is installed from its manifests: `root` is their directory on the host, `guest` inside.
    PythonProject {
        root: ManifestDirectory,
        guest: PathBuf,
        requirements: Vec<String>,
    },
    NodeProject {
        root: ManifestDirectory,
        guest: PathBuf,
    },
}

/// A package ecosystem, with its interpreter and registries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ecosystem {
    Npm,
    Python,
}

impl Dependency {
    pub(crate) fn ecosystem(&self) -> Ecosystem {
        match self {
            Self::NpmPackages { .. } | Self::NodeProject { .. } => Ecosystem::Npm,
            Self::PipPackages { .. } | Self::PythonProject { .. } => Ecosystem::Python,
        }
    }

    pub(crate) fn is_project(&self) -> bool {
        matches!(self, Self::PythonProject { .. } | Self::NodeProject { .. })
    }
}

/// The program to run after the dependencies are installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Program {
    /// A path, or a name on the PATH.
    Named(String),
    /// The default program of this npm package.
    OfNpmPackage(String),
}

/// The command that starts a server, with its dependencies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaunchCommand {
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) program: Program,
    pub(crate) args: Vec<String>,
    pub(crate) workdir: PathBuf,
}

/// Manifests of a Python project, in order of precedence.
pub(crate) const PYTHON_MANIFESTS: [&str; 4] = ["pyproject.toml", "setup.py", "setup.cfg", "requirements.txt"];
pub(crate) const NODE_MANIFESTS: [&str; 3] = ["package.json", "package-lock.json", "npm-shrinkwrap.json"];

/// npm packages that run the code of the project in the working directory.
const CODE_RUNNERS: [&str; 3] = ["tsx", "ts-node", "nodemon"];

impl LaunchCommand {
    /// Determines the dependencies and the command of a plan. Reads manifests; may block.
    pub(crate) fn of(plan: &Plan, settings: &StdioSettings) -> Result<Self, StartFailure> {
        let command = RunnerCommand::parse(&plan.command, &plan.args).map_err(|error| {
            StartFailure::permanent(Phase::DepInstall, error.to_string())
                .hint("write only the package and its arguments, such as `npx -y PACKAGE ARGS` or `uvx --from PACKAGE COMMAND ARGS`")
        })?;
        let mut workdir = plan.workdir.clone();
        let (dependencies, program, args) = match command {
            Some(RunnerCommand::Npm { packages, program, args }) => {
                let main_package =
                    packages.first().map(|package| npm_package_name(package).to_owned()).unwrap_or_default();
                let program = program.map_or_else(|| Program::OfNpmPackage(main_package.clone()), Program::Named);
                let mut dependencies = vec![Dependency::NpmPackages { packages }];
                if CODE_RUNNERS.contains(&main_package.as_str()) {
                    dependencies.extend(node_project(plan));
                }
                (dependencies, program, args)
            }
            Some(RunnerCommand::Python { requirements, program, args }) => {
                (vec![Dependency::PipPackages { requirements }], Program::Named(program), args)
            }
            Some(RunnerCommand::InProject { requirements, directory, command, args }) => {
                if let Some(directory) = directory.map(PathBuf::from).filter(|directory| directory.is_absolute()) {
                    workdir = directory;
                }
                let dependencies = match python_project(plan, &requirements) {
                    Some(project) => vec![project],
                    None if requirements.is_empty() => Vec::new(),
                    None => vec![Dependency::PipPackages { requirements }],
                };
                (dependencies, Program::Named(command), args)
            }
            None => (project_dependencies(plan, settings), Program::Named(plan.command.clone()), plan.args.clone()),
        };
        Ok(Self { dependencies, program, args, workdir })
    }
}

/// Returns the dependencies of the project that contains the server's code. A directory that the server only works on
/// is not such a project, even if it has manifests.
fn project_dependencies(plan: &Plan, settings: &StdioSettings) -> Vec<Dependency> {
    let is_directory_given = settings.cwd.is_some() || settings.sandbox_settings.host_path.is_some();
    let runs_script = || {
        let script = settings.args.iter().find(|argument| !argument.starts_with('-'));
        script.is_some_and(|script| Path::new(script).is_file())
    };
    let command = Path::new(&settings.command);
    match interpreter_name(&settings.command) {
        _ if split_virtualenv(command).is_some() => python_project(plan, &[]).into_iter().collect(),
        Some("python3") if is_directory_given || runs_script() => python_project(plan, &[]).into_iter().collect(),
        Some("node" | "npm" | "bun" | "deno") if is_directory_given || runs_script() => {
            node_project(plan).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

fn python_project(plan: &Plan, requirements: &[String]) -> Option<Dependency> {
    let (root, guest) = manifest_directory(plan, &PYTHON_MANIFESTS)?;
    Some(Dependency::PythonProject { root, guest, requirements: requirements.to_vec() })
}

fn node_project(plan: &Plan) -> Option<Dependency> {
    let (root, guest) = manifest_directory(plan, &NODE_MANIFESTS[..1])?;
    Some(Dependency::NodeProject { root, guest })
}

/// Finds a directory with one of these manifests: the working directory, else the top of the project. Returns its
/// paths on the host and inside.
fn manifest_directory(plan: &Plan, manifests: &[&str]) -> Option<(ManifestDirectory, PathBuf)> {
    let project = plan.project.as_ref()?;
    let below = plan.workdir.strip_prefix(&project.guest).unwrap_or(Path::new(""));
    let has_manifest = |root: &ManifestDirectory| manifests.iter().any(|name| root.has_file(name));
    [below, Path::new("")].into_iter().find_map(|below| {
        // Collecting the components normalizes the path, which `AllowedRoot` needs.
        let path = project.host.join(below).components().collect();
        let root = ManifestDirectory::new(path, project.allowed_root.clone());
        has_manifest(&root).then(|| (root, project.guest.join(below)))
    })
}
