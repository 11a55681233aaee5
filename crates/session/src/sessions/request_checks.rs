//! Checks requests before they have an effect.

use std::path::Path;
use std::time::Duration;

use ringfence_backend::interpreter;
use ringfence_config::{CODE_FLAVOR, SessionSettings};
use ringfence_core::{Failure, Flavor, Kind, Language, PATH, Root, SessionId, Template, bytes};
use ringfence_egress::Rule;

use super::Sessions;
use crate::api::SessionOptions;
use crate::session::SessionDescriptor;

/// Maximum size of code. Interpreters accept twice as much, because escapes make it longer.
const MAX_CODE_BYTES: usize = 8 << 20;

/// Maximum size of a shell command. It is one argument, which Linux limits to 128 KiB, and a part of a frame of the init.
const MAX_COMMAND_BYTES: usize = 96 << 10;

/// Maximum number of allowed hosts in the descriptions of tools.
const MAX_SHOWN_HOSTS: usize = 3;

/// Maximum number of packages of a template that the description of a tool names.
const MAX_SHOWN_PACKAGES: usize = 8;

/// The session of a request.
pub(super) struct SessionRequest {
    pub(super) template: Option<String>,
    pub(super) flavor: Option<String>,
    pub(super) session_id: Option<SessionId>,
    pub(super) timeout: Option<Duration>,
}

impl Sessions {
    /// The templates and flavors that callers may request.
    pub fn options(&self) -> SessionOptions {
        options(&self.0.settings, has_interpreter)
    }

    /// The longest timeout that a call may request.
    pub fn max_timeout(&self) -> Duration {
        self.0.settings.max_timeout
    }

    /// Maximum size of the text of a response for a model.
    pub fn max_result_text(&self) -> usize {
        self.0.settings.max_result_text
    }
}

/// Leaves out templates whose interpreter this host lacks or whose packages it cannot install, and flavors that exceed
/// the memory of all sessions together. The defaults stay, since calls use them anyway.
fn options(settings: &SessionSettings, has_interpreter: impl Fn(&Template) -> bool) -> SessionOptions {
    let SessionSettings { default_template, default_flavor, .. } = settings;
    let can_install = |template: &Template| template.packages.is_empty() || settings.template_packages.is_some();
    let is_usable = |template: &&Template| {
        *template.name == **default_template || has_interpreter(template) && can_install(template)
    };
    let templates: Vec<&Template> = settings.templates.iter().filter(is_usable).collect();
    let fits = |flavor: &&Flavor| {
        let fits = settings.max_total_memory_bytes.is_none_or(|max| flavor.limits.memory_bytes <= max);
        &*flavor.name != CODE_FLAVOR && (fits || *flavor.name == **default_flavor)
    };
    let packages = templates.iter().filter(|template| !template.packages.is_empty());
    let packages: Vec<String> =
        packages.map(|template| format!("{} has {}", template.name, list_packages(template))).collect();
    let is_offered = |language: &Language| templates.iter().any(|template| template.language == *language);
    let languages: Vec<&str> = Language::ALL.into_iter().filter(is_offered).map(language_title).collect();
    SessionOptions {
        templates: templates.iter().map(|template| template.name.to_string()).collect(),
        default_template: default_template.clone(),
        languages: languages.join(", "),
        packages: packages.join("; "),
        flavors: settings.flavors.iter().filter(fits).map(|flavor| flavor.name.to_string()).collect(),
        default_flavor: default_flavor.clone(),
        network: describe_network(settings.network.packages, &settings.network.rules(default_template)),
    }
}

fn language_title(language: Language) -> &'static str {
    match language {
        Language::Python => "Python",
        Language::Node => "JavaScript (Node.js)",
        Language::Bash => "bash",
    }
}

/// Whether sandboxes of a template have its interpreter. Only the host's own root is examined: a separate root file
/// system was checked when the server started.
fn has_interpreter(template: &Template) -> bool {
    let program = template.language.interpreter();
    template.root != Root::Host
        || PATH.split(':').any(|directory| Path::new(directory).join(program).exists())
        || interpreter::find(program).is_some()
}

/// Describes what sessions may reach, in few words, because they occupy a part of every agent's context.
fn describe_network(packages: bool, rules: &[Rule]) -> String {
    let hosts = rules.iter().take(MAX_SHOWN_HOSTS).map(ToString::to_string);
    let mut reachable: Vec<String> =
        packages.then(|| "package registries (pip, npm)".to_owned()).into_iter().chain(hosts).collect();
    if rules.len() > MAX_SHOWN_HOSTS {
        reachable.push(format!("{} more", rules.len() - MAX_SHOWN_HOSTS));
    }
    if reachable.is_empty() { "No network.".to_owned() } else { format!("Network: {} only.", reachable.join(", ")) }
}

/// Lists the packages of a template, without their versions.
fn list_packages(template: &Template) -> String {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let end = |package: &str| package.find(|letter| !is_of_name(letter)).unwrap_or(package.len());
    let names = template.packages.iter().take(MAX_SHOWN_PACKAGES).map(|package| &package[..end(package)]);
    let more = (template.packages.len() > MAX_SHOWN_PACKAGES).then_some("…");
    names.chain(more).collect::<Vec<_>>().join(" ")
}

/// Finds the template and the flavor of a new session.
pub(super) fn find_options<'a>(
    settings: &'a SessionSettings,
    request: &SessionRequest,
) -> Result<(&'a Template, &'a Flavor), Failure> {
    let template = request.template.as_deref().unwrap_or(&settings.default_template);
    let flavor = request.flavor.as_deref().unwrap_or(&settings.default_flavor);
    let template = settings.templates.find(template).map_err(|error| unknown_name(&error))?;
    Ok((template, settings.flavors.find(flavor).map_err(|error| unknown_name(&error))?))
}

/// Returns notices about a template or flavor that differs from that of the existing session. Unknown names are errors.
pub(super) fn ignored_options(
    settings: &SessionSettings,
    request: &SessionRequest,
    session: &SessionDescriptor,
) -> Result<Vec<String>, Failure> {
    let mut ignored = Vec::new();
    if request.template.is_none() && request.flavor.is_none() {
        return Ok(ignored);
    }
    let (template, flavor) = find_options(settings, request)?;
    for (option, is_requested, requested, actual) in [
        ("template", request.template.is_some(), &template.name, &session.template.name),
        ("flavor", request.flavor.is_some(), &flavor.name, &session.flavor.name),
    ] {
        if is_requested && requested != actual {
            ignored.push(format!(
                "{option} `{requested}` is ignored: this session has `{actual}`; session_id \"new\" creates another"
            ));
        }
    }
    Ok(ignored)
}

pub(super) fn unknown_name(error: &dyn std::error::Error) -> Failure {
    Failure::new(Kind::Validation, error.to_string())
        .hint("use one of those, or omit it for the default")
        .hint("or ask an administrator to add it to the configuration")
}

/// Returns the timeout of a call: the requested one, or the default.
pub(super) fn check_timeout(settings: &SessionSettings, requested: Option<Duration>) -> Result<Duration, Failure> {
    let limit = settings.max_timeout;
    match requested {
        None => Ok(settings.timeout.min(limit)),
        Some(timeout) if !timeout.is_zero() && timeout <= limit => Ok(timeout),
        Some(timeout) => {
            let (seconds, limit) = (timeout.as_secs_f64(), limit.as_secs());
            let message = format!("a timeout of {seconds} s is not between 0 and {limit} s");
            Err(Failure::new(Kind::Validation, message)
                .with("rule", "sessions.max_timeout_s")
                .hint("use a shorter timeout, or ask an administrator to raise sessions.max_timeout_s"))
        }
    }
}

pub(super) fn check_code(code: &str) -> Result<(), Failure> {
    if code.trim().is_empty() {
        return Err(Failure::new(Kind::Validation, "code is empty").hint("send the code to run"));
    }
    check_length("code", code, MAX_CODE_BYTES)
        .map_err(|failure| failure.hint("write data and programs to files with write_file, and run those"))
}

pub(super) fn check_command(command: &str) -> Result<(), Failure> {
    if command.trim().is_empty() {
        return Err(Failure::new(Kind::Validation, "command is empty").hint("send the shell command to run"));
    }
    if command.contains('\0') {
        return Err(Failure::new(Kind::Validation, "command contains a NUL character, which no argument can have")
            .hint("write binary data with write_file"));
    }
    check_length("command", command, MAX_COMMAND_BYTES).map_err(|failure| {
        failure.hint("write it to a file with write_file and run that, or use the bash template of execute_code")
    })
}

fn check_length(field: &str, text: &str, limit: usize) -> Result<(), Failure> {
    if text.len() <= limit {
        return Ok(());
    }
    let message = format!("{field} has {} bytes, more than the limit of {}", text.len(), bytes::format(limit as u64));
    Err(Failure::new(Kind::Validation, message).with("field", field))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_is_described_in_one_short_sentence() {
        let rules: Vec<Rule> = ["a.example", "*.b.example:8443", "c+private", "d.example", "e.example"]
            .map(|text| text.parse().unwrap())
            .into();
        assert_eq!(describe_network(true, &[]), "Network: package registries (pip, npm) only.");
        assert_eq!(describe_network(false, &rules[..1]), "Network: a.example only.");
        assert_eq!(
            describe_network(true, &rules),
            "Network: package registries (pip, npm), a.example, *.b.example:8443, c+private, 2 more only."
        );
        assert_eq!(describe_network(false, &[]), "No network.");
    }

    #[test]
    fn packages_of_a_template_are_listed_without_versions_and_not_all_of_them() {
        let mut template = Template::builtin(Language::Python);
        assert_eq!(list_packages(&template), "");
        template.packages = vec!["numpy".into(), "pandas==2.*".into(), "scikit-learn[alldeps]>=1.5".into()];
        assert_eq!(list_packages(&template), "numpy pandas scikit-learn");
        template.packages = vec!["a".into(); MAX_SHOWN_PACKAGES + 1];
        assert_eq!(list_packages(&template), "a a a a a a a a …");
    }

    #[test]
    fn only_templates_and_flavors_that_work_are_offered() {
        let settings = SessionSettings::default();
        let all = options(&settings, |_| true);
        assert_eq!(all.templates, ["python", "node", "bash"], "no packages can be installed for `data`");
        assert_eq!((all.flavors.join(" ").as_str(), all.packages.as_str()), ("small medium large", ""));
        let without_node = options(&settings, |template| template.language != Language::Node);
        assert_eq!(without_node.templates, ["python", "bash"]);
        assert_eq!(without_node.languages, "Python, bash");
        assert_eq!(options(&settings, |_| false).templates, ["python"], "the default stays");
        let packages = ringfence_core::TemplatePackages::new(|_| Box::pin(std::future::pending()));
        let settings =
            SessionSettings { template_packages: Some(packages), max_total_memory_bytes: Some(2 << 30), ..settings };
        let limited = options(&settings, |_| true);
        assert_eq!(limited.flavors, ["small", "medium"]);
        assert_eq!(limited.templates.last().map(String::as_str), Some("data"));
        assert_eq!(limited.packages, "data has numpy pandas matplotlib pillow requests openpyxl");
    }
}
