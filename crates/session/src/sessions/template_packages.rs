//! The packages of a template, which a session needs before its instance is created.

use std::time::Duration;

use ringfence_config::SessionSettings;
use ringfence_core::{Failure, Kind, Template};

/// Timeout for packages that were installed already, when the instance of a session is replaced or adopted.
pub(super) const REUSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the template with its installed packages. Waits at most `timeout` for an installation, which continues.
pub(super) async fn with_packages(
    template: &Template,
    settings: &SessionSettings,
    timeout: Duration,
) -> Result<Template, Failure> {
    let mut template = template.clone();
    if template.packages.is_empty() {
        return Ok(template);
    }
    let Some(packages) = &settings.template_packages else {
        let message = format!("template {} has packages, which this server cannot install", template.name);
        return Err(Failure::new(Kind::Configuration, message));
    };
    let being_built = |_| {
        let message = format!(
            "template {} is being built: {} are installed when it is first used",
            template.name,
            template.packages.join(", ")
        );
        Failure::new(Kind::Busy, message)
            .hint("retry in a minute; the installation continues")
            .hint(format!("build it in advance with `ringfence template build {}`", template.name))
    };
    let installed = tokio::time::timeout(timeout, packages.installed(&template)).await.map_err(being_built)??;
    template.installed_packages = Some(installed);
    Ok(template)
}

#[cfg(test)]
mod tests {
    use ringfence_core::{Access, Language, TemplatePackages, Volume};

    use super::*;

    fn settings(packages: TemplatePackages) -> SessionSettings {
        SessionSettings { template_packages: Some(packages), ..SessionSettings::default() }
    }

    fn template(packages: &[&str]) -> Template {
        let packages = packages.iter().map(|&name| name.into()).collect();
        Template { packages, ..Template::builtin(Language::Python) }
    }

    #[tokio::test(start_paused = true)]
    async fn caller_waits_until_its_deadline_and_learns_that_the_template_is_being_built() {
        let never = settings(TemplatePackages::new(|_| Box::pin(std::future::pending())));
        let timeout = Duration::from_secs(30);
        let failure = with_packages(&template(&["numpy"]), &never, timeout).await.unwrap_err();
        assert_eq!(failure.kind, Kind::Busy);
        assert!(failure.message.contains("python is being built: numpy"), "{failure}");
        assert!(failure.hints[1].contains("ringfence template build python"), "{failure:?}");
        assert_eq!(with_packages(&template(&[]), &never, timeout).await.unwrap(), template(&[]));
    }

    #[tokio::test]
    async fn installed_packages_are_a_volume_of_the_template() {
        let volume = Volume { host: "/h".into(), guest: "/g".into(), access: Access::ReadOnly, allowed_root: None };
        let found = volume.clone();
        let ready = settings(TemplatePackages::new(move |_| {
            let found = found.clone();
            Box::pin(async { Ok(found) })
        }));
        let built = with_packages(&template(&["numpy"]), &ready, REUSE_TIMEOUT).await.unwrap();
        assert_eq!(built.installed_packages, Some(volume));
    }
}
