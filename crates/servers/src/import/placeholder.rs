//! What clients write in place of values: made `${VAR}` where that can be, and a reason otherwise.

use std::path::Path;

use serde_json::Value;

use super::places::Places;
use super::shapes::Reason;

/// Every text in a value, keys aside.
pub(super) fn for_each_text(value: &mut Value, change: &mut dyn FnMut(&mut String)) {
    match value {
        Value::String(text) => change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| for_each_text(item, change)),
        Value::Object(fields) => fields.values_mut().for_each(|field| for_each_text(field, change)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Puts what stands between two marks between two others.
pub(super) fn replace(text: &str, begin: &str, end: &str, new_begin: &str, new_end: &str) -> String {
    let mut replaced = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(begin) {
        let Some((inner, after)) = after.split_once(end) else { break };
        replaced += before;
        replaced.extend([new_begin, inner.trim(), new_end]);
        rest = after;
    }
    replaced + rest
}

/// `${{ secrets.NAME }}`, and `${{ secrets.ORG/BLOCK/NAME }}`.
pub(super) fn secrets(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${{") {
        let Some((inner, after)) = after.split_once("}}") else { break };
        let name = inner.trim().rsplit(['.', '/']).next().unwrap_or_default();
        plain.extend([before, "${", name, "}"]);
        rest = after;
    }
    plain + rest
}

/// `$NAME` becomes `${NAME}`, in all texts of an entry.
pub(super) fn brace_dollars(entry: &mut Value) {
    for_each_text(entry, &mut |text| {
        let mut braced = String::new();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once('$') {
            braced += before;
            let end = after.find(|char: char| !(char.is_ascii_alphanumeric() || char == '_')).unwrap_or(after.len());
            let is_name = end > 0 && !after.starts_with(|first: char| first.is_ascii_digit());
            if is_name {
                braced.extend(["${", &after[..end], "}"]);
                rest = &after[end..];
            } else {
                braced.push('$');
                rest = after;
            }
        }
        *text = braced + rest;
    });
}

/// Replaces what is known of the place, and refuses what only the client could fill in.
pub(super) fn settle(entry: &mut Value, places: &Places, project: Option<&Path>) -> Result<(), Reason> {
    let mut problem = None;
    for_each_text(entry, &mut |text| {
        let mut settled = String::new();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once("${") {
            let Some((inner, after)) = after.split_once('}') else { break };
            settled += before;
            match meaning(inner, places, project) {
                Ok(value) => settled += &value,
                Err(reason) => problem = problem.take().or(Some(reason)),
            }
            rest = after;
        }
        *text = settled + rest;
    });
    problem.map_or(Ok(()), Err)
}

fn meaning(inner: &str, places: &Places, project: Option<&Path>) -> Result<String, Reason> {
    let outside = || {
        Reason::new(format!("`${{{}}}` means something only within a project", inner.escape_debug()))
            .hint("add it with `ringfence server add`, and write the path out")
    };
    let file_name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match inner {
        "userHome" => Ok(places.home.to_string_lossy().into_owned()),
        "workspaceFolder" | "workspaceRoot" => {
            project.map(|path| path.to_string_lossy().into_owned()).ok_or_else(outside)
        }
        "workspaceFolderBasename" => project.map(file_name).ok_or_else(outside),
        "pathSeparator" | "/" => Ok("/".into()),
        _ => match inner.split_once(':') {
            None | Some(("env", _)) => Ok(format!("${{{inner}}}")),
            Some((_, default)) if default.starts_with('-') => Ok(format!("${{{inner}}}")),
            Some(("input", name)) => {
                let (name, variable) = (name.escape_debug().to_string(), variable_for(name));
                Err(Reason::new(format!("it asks a person for `{name}` when it starts")).hint(format!(
                    "add it with `ringfence server add`, with `${{{variable}}}` in its place, and set {variable} where \
                     ringfence is started"
                )))
            }
            Some(_) => Err(Reason::new(format!("only the client can fill in `${{{}}}`", inner.escape_debug()))
                .hint("add it with `ringfence server add`, and write the value out or use a variable")),
        },
    }
}

/// `github-token` as a name of a variable.
fn variable_for(input: &str) -> String {
    let plain = |char: char| if char.is_ascii_alphanumeric() { char.to_ascii_uppercase() } else { '_' };
    input.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dollars_get_braces_where_a_name_follows() {
        let mut entry = json!(["$A-$B_1", "${A}", "$1 $ $", "a$A", {"x": "$HOME/y"}]);
        brace_dollars(&mut entry);
        assert_eq!(entry, json!(["${A}-${B_1}", "${A}", "$1 $ $", "a${A}", {"x": "${HOME}/y"}]));
    }

    #[test]
    fn secrets_and_other_marks_become_variables() {
        assert_eq!(secrets("Bearer ${{ secrets.me/block/TOKEN }}!${{secrets.B}} ${{"), "Bearer ${TOKEN}!${B} ${{");
        assert_eq!(replace("a{env:B}c{env:D", "{env:", "}", "${", "}"), "a${B}c{env:D");
    }
}
