//! Converts the placeholders of clients to `${VAR}`. A placeholder that only the client can replace is a reason to skip
//! the server.

use std::path::Path;

use serde_json::Value;

use super::formats::SkipReason;
use super::locations::UserDirectories;

/// Calls `change` for every string in a value, except for keys.
pub(super) fn for_each_text(value: &mut Value, change: &mut dyn FnMut(&mut String)) {
    match value {
        Value::String(text) => change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| for_each_text(item, change)),
        Value::Object(fields) => fields.values_mut().for_each(|field| for_each_text(field, change)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Replaces the delimiters of placeholders: `begin` and `end` by `new_begin` and `new_end`.
pub(super) fn replace_delimiters(text: &str, begin: &str, end: &str, new_begin: &str, new_end: &str) -> String {
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

/// Converts `${{ secrets.NAME }}` and `${{ secrets.ORG/BLOCK/NAME }}` to `${NAME}`.
pub(super) fn convert_secrets(text: &str) -> String {
    let mut converted = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${{") {
        let Some((inner, after)) = after.split_once("}}") else { break };
        let name = inner.trim().rsplit(['.', '/']).next().unwrap_or_default();
        converted.extend([before, "${", name, "}"]);
        rest = after;
    }
    converted + rest
}

/// Converts `$NAME` to `${NAME}` in all strings of an entry.
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

/// Replaces placeholders of directories, and returns an error if only the client can replace a placeholder.
pub(super) fn resolve(
    entry: &mut Value,
    directories: &UserDirectories,
    project: Option<&Path>,
) -> Result<(), SkipReason> {
    let mut problem = None;
    for_each_text(entry, &mut |text| {
        let mut resolved = String::new();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once("${") {
            let Some((inner, after)) = after.split_once('}') else { break };
            resolved += before;
            match resolve_placeholder(inner, directories, project) {
                Ok(value) => resolved += &value,
                Err(reason) => problem = problem.take().or(Some(reason)),
            }
            rest = after;
        }
        *text = resolved + rest;
    });
    problem.map_or(Ok(()), Err)
}

fn resolve_placeholder(
    inner: &str,
    directories: &UserDirectories,
    project: Option<&Path>,
) -> Result<String, SkipReason> {
    let no_project = || {
        SkipReason::new(format!("`${{{}}}` has a value only in a project", inner.escape_debug()))
            .hint("add the server with `ringfence server add` and the full path")
    };
    let file_name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match inner {
        "userHome" => Ok(directories.home.to_string_lossy().into_owned()),
        "workspaceFolder" | "workspaceRoot" => {
            project.map(|path| path.to_string_lossy().into_owned()).ok_or_else(no_project)
        }
        "workspaceFolderBasename" => project.map(file_name).ok_or_else(no_project),
        "pathSeparator" | "/" => Ok("/".into()),
        _ => match inner.split_once(':') {
            None | Some(("env", _)) => Ok(format!("${{{inner}}}")),
            Some((_, default)) if default.starts_with('-') => Ok(format!("${{{inner}}}")),
            Some(("input", name)) => {
                let (name, variable) = (name.escape_debug().to_string(), variable_for(name));
                Err(SkipReason::new(format!("the client prompts the user for `{name}`")).hint(format!(
                    "add the server with `ringfence server add`, write `${{{variable}}}` for this value, and set {variable} \
                     in the environment of ringfence"
                )))
            }
            Some(_) => Err(SkipReason::new(format!("only the client can replace `${{{}}}`", inner.escape_debug()))
                .hint("add the server with `ringfence server add`, with the value itself or a variable")),
        },
    }
}

/// Converts the name of an input to that of a variable: `github-token` to `GITHUB_TOKEN`.
fn variable_for(input: &str) -> String {
    let convert = |char: char| if char.is_ascii_alphanumeric() { char.to_ascii_uppercase() } else { '_' };
    input.chars().map(convert).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn adds_braces_to_dollar_variables() {
        let mut entry = json!(["$A-$B_1", "${A}", "$1 $ $", "a$A", {"x": "$HOME/y"}]);
        brace_dollars(&mut entry);
        assert_eq!(entry, json!(["${A}-${B_1}", "${A}", "$1 $ $", "a${A}", {"x": "${HOME}/y"}]));
    }

    #[test]
    fn converts_secrets_and_other_placeholders_to_variables() {
        assert_eq!(
            convert_secrets("Bearer ${{ secrets.me/block/TOKEN }}!${{secrets.B}} ${{"),
            "Bearer ${TOKEN}!${B} ${{"
        );
        assert_eq!(replace_delimiters("a{env:B}c{env:D", "{env:", "}", "${", "}"), "a${B}c{env:D");
    }
}
