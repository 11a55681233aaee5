//! The file format of pip, which is that of Python's `RawConfigParser`.

/// The section whose values all other sections have too.
const DEFAULT: &str = "DEFAULT";

/// Section, key and value, in order; values of several lines have line feeds between them.
pub(super) fn parse(text: &str) -> Result<Vec<(String, String, String)>, String> {
    let mut entries: Vec<(String, String, String)> = Vec::new();
    let mut sections: Vec<String> = Vec::new();
    let mut section: Option<String> = None;
    // Whether the last entry may be continued, and how far it is indented.
    let mut open: Option<usize> = None;
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.starts_with(['#', ';']) {
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        if trimmed.is_empty() || open.is_some_and(|of_key| indent > of_key) {
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
        let section = section.clone().ok_or_else(|| format!("line {} is in no section", number + 1))?;
        let (key, value) = trimmed.split_once(['=', ':']).ok_or_else(|| format!("line {} has no `=`", number + 1))?;
        entries.push((section, key.trim().to_owned(), value.trim().to_owned()));
        open = Some(indent);
    }
    for (_, _, value) in &mut entries {
        value.truncate(value.trim_end().len());
    }
    let defaults: Vec<_> = entries.iter().filter(|(section, ..)| section == DEFAULT).cloned().collect();
    // Before the sections' own, which count more.
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
    fn sections_comments_delimiters_and_continued_values() {
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
    fn the_default_section_is_part_of_every_other() {
        let text = "[DEFAULT]\na = 1\nb = 2\n[global]\nb = 3\n";
        assert_eq!(parsed(text), [entry("global", "a", "1"), entry("global", "b", "2"), entry("global", "b", "3")]);
        assert_eq!(parsed("[DEFAULT]\na = 1\n"), []);
    }

    #[test]
    fn what_python_refuses_is_refused() {
        assert!(parse("index-url = x\n").is_err());
        assert!(parse("[global]\nindex-url\n").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(?s).{0,200}") {
            let _ = parse(&text);
        }

        #[test]
        fn any_value_of_one_line_is_read_as_it_is(key in "[a-z][a-z-]{0,20}", value in "[!-~][ -~]{0,60}[!-~]") {
            let text = format!("[global]\n{key} = {value}\n");
            prop_assert_eq!(parse(&text).unwrap(), vec![entry("global", &key, &value)]);
        }
    }
}
