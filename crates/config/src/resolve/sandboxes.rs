//! Converts `[flavors.NAME]` and `[templates.NAME]`.

mod requirement;

use std::path::{Path, PathBuf};

use ringfence_core::{Flavor, Flavors, Language, Limits, Root, Template, Templates};
use ringfence_images::SAVE_HINT;

use crate::document::{Config, FlavorConfig, TemplateConfig};
use crate::error::ConfigError;
use crate::values::Values;

/// Defaults of a new flavor.
const DEFAULT_PIDS: u32 = 256;
const DEFAULT_OPEN_FILES: u32 = 1024;

/// Maximum number of packages of a template, without their dependencies.
const MAX_PACKAGES: usize = 100;

pub(super) fn flavors(config: &Config, values: &Values) -> Result<Flavors, ConfigError> {
    let flavors = config.flavors.iter().map(|(name, config)| flavor(name, config, values));
    flavors.collect::<Result<_, _>>().map(Flavors::new)
}

fn flavor(name: &str, config: &FlavorConfig, values: &Values) -> Result<Flavor, ConfigError> {
    let missing = |key: &str| ConfigError::Invalid {
        origin: values.origin(&["flavors", name]),
        problem: format!("flavors.{name} has no `{key}`"),
        hint: Some("a flavor needs cpus and memory, for example cpus = 2.0 and memory = \"2G\"".into()),
    };
    let limits = Limits {
        cpus: config.cpus.ok_or_else(|| missing("cpus"))?,
        memory_bytes: config.memory.ok_or_else(|| missing("memory"))?.0,
        pids: config.pids.unwrap_or(DEFAULT_PIDS),
        open_files: config.open_files.unwrap_or(DEFAULT_OPEN_FILES),
    };
    let mut flavor = Flavor::new(name, limits);
    flavor.workspace.bytes = config.workspace.map_or(flavor.workspace.bytes, |size| size.0);
    flavor.workspace.inodes = config.workspace_inodes.unwrap_or(flavor.workspace.inodes);
    Ok(flavor)
}

pub(super) fn templates(config: &Config, values: &Values) -> Result<Templates, ConfigError> {
    let templates = config.templates.iter().map(|(name, config)| template(name, config, values));
    templates.collect::<Result<_, _>>().map(Templates::new)
}

fn template(name: &str, config: &TemplateConfig, values: &Values) -> Result<Template, ConfigError> {
    let language = config.language.ok_or_else(|| ConfigError::Invalid {
        origin: values.origin(&["templates", name]),
        problem: format!("templates.{name} has no `language`"),
        hint: Some("set language = \"python\", \"node\" or \"bash\"".into()),
    })?;
    let image = image(name, config, values)?;
    let root = match (&image, &config.root) {
        // Replaced when the image is unpacked.
        (Some(image), _) => Root::Directory(image.clone()),
        (None, None) => Root::Host,
        (None, Some(root)) => Root::Directory(root_directory(name, root, values)?),
    };
    let packages = packages(name, config, values)?;
    let (name, environment) = (name.into(), config.env.clone());
    Ok(Template { name, language: language.into(), root, image, environment, packages, installed_packages: None })
}

/// Returns the requirements of a template's packages. Those of a built-in template do not apply to another root file
/// system or language that the user sets.
fn packages(name: &str, config: &TemplateConfig, values: &Values) -> Result<Vec<String>, ConfigError> {
    let origin = values.origin(&["templates", name, "packages"]);
    let invalid = |problem: &str, hint: &str| ConfigError::Invalid {
        origin: origin.clone(),
        problem: format!("templates.{name}.packages {problem}"),
        hint: Some(hint.into()),
    };
    let refusal = if config.packages.is_empty() {
        return Ok(Vec::new());
    } else if config.language.map(Language::from) != Some(Language::Python) {
        Some(("is set, but the language is not python", "packages are installed with pip: remove them"))
    } else if config.image.is_some() || config.root.is_some() {
        let hint = "install the packages in the image or root file system, and remove `packages`";
        Some(("cannot be combined with `image` or `root`", hint))
    } else if config.packages.len() > MAX_PACKAGES {
        Some(("has more than 100 entries", "name only what code imports; dependencies are installed too"))
    } else {
        None
    };
    match refusal {
        Some(_) if !values.is_set(&format!("templates.{name}.packages")) => Ok(Vec::new()),
        Some((problem, hint)) => Err(invalid(problem, hint)),
        None => {
            let parse = |text: &String| {
                let hint = "write a name and versions, such as \"pandas\", \"pandas[excel]\" or \"pandas>=2,<3\"";
                requirement::parse(text).ok_or_else(|| invalid(&format!("has an invalid entry: {text:?}"), hint))
            };
            config.packages.iter().map(parse).collect()
        }
    }
}

fn root_directory(name: &str, root: &Path, values: &Values) -> Result<PathBuf, ConfigError> {
    let origin = values.origin(&["templates", name, "root"]);
    let root = origin.resolve_path(root);
    let invalid = |problem: String, hint: &str| ConfigError::Invalid { origin, problem, hint: Some(hint.into()) };
    if !root.is_dir() {
        let problem = format!("templates.{name}.root is not a directory: {}", root.display());
        return Err(invalid(problem, "set it to a directory that contains a root file system"));
    }
    // Links are resolved only once.
    let root = root.canonicalize().unwrap_or(root);
    if root.parent().is_none() {
        let problem = format!("templates.{name}.root is the root directory of the host: sandboxes would see all files");
        return Err(invalid(problem, "set it to a directory that contains another root file system"));
    }
    Ok(root)
}

/// Returns the path of an image, which exists. Its contents are checked when it is unpacked.
fn image(name: &str, config: &TemplateConfig, values: &Values) -> Result<Option<PathBuf>, ConfigError> {
    let Some(image) = &config.image else { return Ok(None) };
    let origin = values.origin(&["templates", name, "image"]);
    let path = origin.resolve_path(image);
    let invalid = |problem: String, hint: &str| ConfigError::Invalid { origin, problem, hint: Some(hint.into()) };
    if config.root.is_some() {
        let problem = format!("templates.{name} has both `root` and `image`");
        return Err(invalid(problem, "set only one of them"));
    }
    if !(path.is_file() || path.is_dir()) {
        let problem = format!("templates.{name}.image is neither a file nor a directory: {}", path.display());
        return Err(invalid(problem, SAVE_HINT));
    }
    // Links are resolved only once.
    Ok(Some(path.canonicalize().unwrap_or(path)))
}
