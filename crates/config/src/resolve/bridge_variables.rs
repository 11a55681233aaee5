//! Variables of the MCP bridge that code mode replaces and that correspond to no key. They are applied if possible;
//! otherwise there is a warning.

use ringfence_core::{Language, Templates};

use crate::origin::Origin;
use crate::sources::{Environment, IMAGE_VARIABLE, RUNTIME_VARIABLE};
use crate::values::Values;

/// Sets `code.template` if the image variable names a Python template. Returns warnings about variables that are ignored.
pub(super) fn apply(values: &mut Values, templates: &Templates, environment: &Environment) -> Vec<String> {
    let variable = |name: &str| environment.get(name).map(str::trim).filter(|text| !text.is_empty());
    let mut warnings = Vec::new();
    if let Some(image) = variable(IMAGE_VARIABLE) {
        match templates.find(image) {
            Ok(template) if template.language == Language::Python => {
                let path = vec!["code".into(), "template".into()];
                // The variable of the key itself takes precedence, as over all aliases.
                let is_overridden =
                    matches!(values.origin(&["code", "template"]), Origin::Variable(_) | Origin::Flag(_));
                if !is_overridden {
                    values.set(path, image.into(), Origin::Variable(IMAGE_VARIABLE.into()));
                }
            }
            Ok(_) => {
                warnings.push(format!("{IMAGE_VARIABLE} is ignored: the template `{image}` is not a Python template"));
            }
            Err(_) => warnings.push(format!(
                "{IMAGE_VARIABLE} is ignored: ringfence does not pull container images; set it to the name of a Python \
                 template, which may use an image on disk (image = \"PATH\" in [templates.NAME])"
            )),
        }
    }
    if let Some(runtime) = variable(RUNTIME_VARIABLE)
        && !runtime.eq_ignore_ascii_case("native")
    {
        warnings.push(format!("{RUNTIME_VARIABLE} is ignored: sandboxes need no container runtime"));
    }
    warnings
}
