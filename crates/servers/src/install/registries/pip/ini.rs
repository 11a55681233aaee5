//! Parser for pip's configuration files, which have the format of Python's `RawConfigParser`.

/// The section whose values all other sections inherit.
const DEFAULT: &str = "DEFAULT";

/// Returns a `(section, key, value)` tuple for each entry, in file order. The lines of a value are separated by line
/// feeds.
pub(super) fn parse(text: &str) -> Result<Vec<(String, String, String)>, String> {
    let mut entries: Vec<(String, String, String)> = Vec::new();
    let mut sections: Vec<String> = Vec::new();
    let mut section: Option<String> = None;
    // The indentation of the last entry, if the next line may continue its value.
    let mut open: Option<usize> = None;
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.starts_with(['#', ';']) {
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        if trimmed.is_empty() || open.is_some_and(|key_indent| indent > key_indent) {
            if let (Some(_), Some((_, _, value))) = (open, entries.last_mut()) {
                value.push('\n');
                value.push_str(trimmed);
            }
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.rfind(']').map(|end| &rest[..end])) {
            sections.push(name.to_owned());
            section = Some(name.to_owned());
            open = None;
            continue;
        }
        let section = section.clone().ok_or_else(|| format!("line {} is outside of a section", number + 1))?;
        let (key, value) =
            trimmed.split_once(['=', ':']).ok_or_else(|| format!("line {} has no `=` or `:`", number + 1))?;
        entries.push((section, key.trim().to_owned(), value.trim().to_owned()));
        open = Some(indent);
    }
    for (_, _, value) in &mut entries {
        value.truncate(value.trim_end().len());
    }
    let defaults: Vec<_> = entries.iter().filter(|(section, ..)| section == DEFAULT).cloned().collect();
    // Inherited entries come first, because later entries of a section override earlier ones.
    let inherited = sections
        .iter()
        .filter(|name| *name != DEFAULT)
        .flat_map(|name| defaults.iter().map(move |(_, key, value)| (name.clone(), key.clone(), value.clone())));
    Ok(inherited.chain(entries.iter().filter(|(section, ..)| section != DEFAULT).cloned()).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Vec<(String, String, String)> {
        parse(text).unwrap()
    }

    fn entry(section: &str, key: &str, value: &str) -> (String, String, String) {
        (section.into(), key.into(), value.into())
    }

    #[test]
    fn parses_sections_comments_delimiters_and_continued_values() {
        let text = "# one\n; two\n[global]\nindex-url = https://a.example/simple?x=y:z ; kept\n\
                    find-links =\n    /one\n    # left out\n\n    /two\n[install]\ncert: /ca.pem\n  key = of cert\n";
        assert_eq!(
            parsed(text),
            [
                entry("global", "index-url", "https://a.example/simple?x=y:z ; kept"),
                entry("global", "find-links", "\n/one\n\n/two"),
                entry("install", "cert", "/ca.pem\nkey = of cert"),
            ]
        );
    }

    #[test]
    fn all_sections_inherit_the_default_section() {
        let text = "[DEFAULT]\na = 1\nb = 2\n[global]\nb = 3\n";
        assert_eq!(parsed(text), [entry("global", "a", "1"), entry("global", "b", "2"), entry("global", "b", "3")]);
        assert_eq!(parsed("[DEFAULT]\na = 1\n"), []);
    }

    #[test]
    fn lines_that_python_refuses_are_errors() {
        assert!(parse("index-url = x\n").is_err());
        assert!(parse("[global]\nindex-url\n").is_err());
    }

    proptest! {
        #[test]
        fn accepts_or_refuses_any_text(text in "(?s).{0,200}") {
            let _ = parse(&text);
        }

        #[test]
        fn value_of_one_line_is_unchanged(key in "[a-z][a-z-]{0,20}", value in "[!-~][ -~]{0,60}[!-~]") {
            let text = format!("[global]\n{key} = {value}\n");
            prop_assert_eq!(parse(&text).unwrap(), vec![entry("global", &key, &value)]);
        }
    }
}
