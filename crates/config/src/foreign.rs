//! Variables of the program that code mode takes the place of, which have no counterpart here: followed where they can
//! be, and otherwise answered with a warning.

use super::find::Environment;
use super::keys::{IMAGE, RUNTIME};
use super::origin::Origin;
use super::values::Values;
use ringfence_core::{Language, Templates};

/// Sets the template of `run_python` to what is named as its image, if there is one, and tells what is not followed.
pub(super) fn follow(values: &mut Values, templates: &Templates, environment: &Environment) -> Vec<String> {
    let given = |name: &str| environment.get(name).map(str::trim).filter(|text| !text.is_empty());
    let mut warnings = Vec::new();
    if let Some(image) = given(IMAGE) {
        match templates.find(image) {
            Ok(template) if template.language == Language::Python => {
                let path = vec!["code".into(), "template".into()];
                // Weaker than our own variable, as all other names of it are.
                let stronger = matches!(values.origin(&["code", "template"]), Origin::Variable(_) | Origin::Flag(_));
                if !stronger {
                    values.set(path, image.into(), Origin::Variable(IMAGE.into()));
                }
            }
            Ok(_) => warnings.push(format!("{IMAGE} is ignored: the template `{image}` is not one of Python")),
            Err(_) => warnings.push(format!(
                "{IMAGE} is ignored: container images are not fetched here; name a template of Python, with an image on \
                 disk if need be: [templates.NAME]"
            )),
        }
    }
    if let Some(runtime) = given(RUNTIME)
        && !runtime.eq_ignore_ascii_case("native")
    {
        warnings.push(format!("{RUNTIME} is ignored: sandboxes are native here, and need no container runtime"));
    }
    warnings
}
