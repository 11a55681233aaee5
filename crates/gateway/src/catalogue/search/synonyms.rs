//! Words that those who write tools and those who look for them use for the same thing.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::stem::stem;

/// Each word of a line may stand for the others. Only what holds whichever servers there are.
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

/// Short forms, and what they are short for.
const ABBREVIATIONS: [(&str, &str); 4] =
    [("pr", "pull request"), ("mr", "merge request"), ("ci", "status check"), ("env", "environment")];

static SYNONYMS: LazyLock<HashMap<String, Vec<String>>> = LazyLock::new(|| {
    let mut alike: HashMap<String, Vec<String>> = HashMap::new();
    for group in GROUPS {
        let stems: Vec<String> = group.split(' ').map(|word| stem(word).into_owned()).collect();
        for word in &stems {
            let others = stems.iter().filter(|other| *other != word).cloned();
            alike.entry(word.clone()).or_default().extend(others);
        }
    }
    alike
});

/// The stems of words that may be meant by a word, by its stem.
pub(super) fn synonyms_of(stem: &str) -> impl Iterator<Item = &'static str> {
    SYNONYMS.get(stem).into_iter().flatten().map(String::as_str)
}

/// A question in which short forms are followed by what they are short for.
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
    fn every_word_of_a_group_stands_for_the_others() {
        let of = |word: &str| synonyms_of(word).collect::<Vec<_>>();
        assert_eq!(of("folder"), ["directory", "dir"]);
        assert_eq!(of("dir"), ["folder", "directory"]);
        assert!(of("show").contains(&"list") && of("show").contains(&"get"), "it is in two groups");
        assert_eq!(of("xylophone"), [] as [&str; 0]);
    }

    #[test]
    fn short_forms_are_written_out() {
        assert_eq!(expand_abbreviations("merge PRs, now"), "merge PRs, pull request  now");
        assert_eq!(expand_abbreviations("prune"), "prune");
    }
}
