//! Synonyms: words that descriptions of tools and queries use for the same thing.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::stem::stem;

/// The words of a line are synonyms of each other. Only words that are synonyms for any set of servers.
const GROUPS: [&str; 58] = [
    "create add make new insert append",
    "delete remove drop erase destroy clear forget",
    "get read fetch retrieve show view load",
    "list show enumerate",
    "update edit change modify patch replace set",
    "search find query lookup locate",
    "send post publish broadcast",
    "run execute exec evaluate invoke",
    "start begin launch",
    "stop end terminate cancel close kill",
    "move rename",
    "copy duplicate clone fork",
    "download save export",
    "upload attach",
    "navigate go visit open browse",
    "click press tap push",
    "count number many amount total size",
    "explain analyze diagnose understand",
    "merge land",
    "folder directory dir",
    "repository repo project",
    "issue ticket bug task",
    "comment reply respond answer note",
    "picture image photo icon",
    "screenshot capture snapshot",
    "user person people member account who",
    "label tag",
    "record row entry document item",
    "field column property attribute cell",
    "database db",
    "documentation docs manual reference guide",
    "url link",
    "website site webpage",
    "web internet online google",
    "message chat",
    "error exception failure crash",
    "history log changelog",
    "status state progress check",
    "container pod",
    "kubernetes k8s cluster",
    "javascript js script",
    "permission access restriction",
    "time clock hour",
    "direction route drive travel",
    "elevation height altitude",
    "place location position",
    "notify alert watch monitor",
    "slow performance speed",
    "forward tunnel",
    "replica scale",
    "version revision",
    "ttl expire expiration",
    "vector embedding",
    "similar nearest related",
    "compare difference diff",
    "transition status done",
    "worklog hour",
    "memory remember",
];

/// Abbreviations with their long forms.
const ABBREVIATIONS: [(&str, &str); 4] =
    [("pr", "pull request"), ("mr", "merge request"), ("ci", "status check"), ("env", "environment")];

static SYNONYMS: LazyLock<HashMap<String, Vec<String>>> = LazyLock::new(|| {
    let mut synonyms: HashMap<String, Vec<String>> = HashMap::new();
    for group in GROUPS {
        let stems: Vec<String> = group.split(' ').map(|word| stem(word).into_owned()).collect();
        for word in &stems {
            let others = stems.iter().filter(|other| *other != word).cloned();
            synonyms.entry(word.clone()).or_default().extend(others);
        }
    }
    synonyms
});

/// Returns the stems of the synonyms of a stem.
pub(super) fn synonyms_of(stem: &str) -> impl Iterator<Item = &'static str> {
    SYNONYMS.get(stem).into_iter().flatten().map(String::as_str)
}

/// Inserts the long form after each abbreviation in a query.
pub(super) fn expand_abbreviations(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_inclusive(|char: char| !char.is_alphanumeric()) {
        out.push_str(word);
        let bare = word.trim_end_matches(|char: char| !char.is_alphanumeric());
        let short = ABBREVIATIONS.iter().find(|(short, _)| bare.trim_end_matches('s').eq_ignore_ascii_case(short));
        if let Some((_, long)) = short {
            out.push(' ');
            out.push_str(long);
            out.push(' ');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_group_are_synonyms_of_each_other() {
        let of = |word: &str| synonyms_of(word).collect::<Vec<_>>();
        assert_eq!(of("folder"), ["directory", "dir"]);
        assert_eq!(of("dir"), ["folder", "directory"]);
        assert!(of("show").contains(&"list") && of("show").contains(&"get"), "the word is in two groups");
        assert_eq!(of("xylophone"), [] as [&str; 0]);
    }

    #[test]
    fn long_forms_follow_abbreviations() {
        assert_eq!(expand_abbreviations("merge PRs, now"), "merge PRs, pull request  now");
        assert_eq!(expand_abbreviations("prune"), "prune");
    }
}
