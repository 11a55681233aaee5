//! Synonyms: words that descriptions of tools and queries use for the same thing.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::stem::stem;

/// The words of a line are synonyms of each other. Only words that are synonyms for any set of servers.
const GROUPS: [&str; 110] = [
    "create add make new insert append generate build",
    "write save store put",
    "delete remove drop erase destroy clear forget purge wipe discard",
    "get read fetch retrieve show view load obtain display print inspect",
    "list show enumerate display",
    "update edit change modify patch replace set adjust alter",
    "search find query lookup locate discover",
    "send post publish broadcast share",
    "create publish post write",
    "run execute exec evaluate invoke",
    "start begin launch",
    "stop end terminate cancel close kill abort",
    "move rename relocate transfer",
    "copy duplicate clone fork",
    "download save export",
    "upload attach import",
    "navigate go visit open browse",
    "click press tap push",
    "type enter fill input",
    "choose select pick option",
    "count number many amount total size",
    "explain analyze diagnose understand why",
    "merge land combine",
    "approve accept reject review",
    "folder directory dir",
    "file disk",
    "repository repo project codebase",
    "issue ticket bug task story",
    "comment reply respond answer note",
    "picture image photo icon logo",
    "screenshot capture snapshot",
    "video recording screencast record",
    "user person people member account who",
    "assign assignee owner responsible",
    "label tag category",
    "record row entry document item",
    "field column property attribute cell",
    "database db",
    "documentation docs manual reference guide tutorial",
    "url link",
    "website site webpage",
    "web internet online google",
    "message chat",
    "error exception failure crash",
    "history log changelog",
    "status state progress check",
    "undo revert reset restore unstage",
    "restart rollout rollback redeploy",
    "container pod",
    "node machine host",
    "maintenance drain cordon",
    "kubernetes k8s cluster",
    "javascript js script",
    "permission access restriction",
    "time clock hour",
    "direction route drive travel journey",
    "distance far",
    "elevation height altitude",
    "coordinates latitude longitude geocode",
    "place location position",
    "nearby near local",
    "notify alert watch monitor",
    "slow performance speed",
    "forward tunnel",
    "replica scale",
    "version revision",
    "ttl expire expiration live",
    "vector embedding",
    "similar nearest related",
    "compare difference diff",
    "transition status done",
    "worklog hour",
    "memory remember",
    "memory heap leak",
    "request call",
    "emulate simulate pretend",
    "mobile device viewport",
    "network connection",
    "paper article publication",
    "cite citation",
    "news current latest recent",
    "content text body",
    "tree hierarchy structure",
    "template boilerplate",
    "configuration setting",
    "reaction react emoji",
    "thread conversation discussion",
    "channel room",
    "dialog popup modal alert prompt",
    "dropdown menu select option",
    "button element",
    "metadata info detail information",
    "pattern glob wildcard",
    "compress zip gzip",
    "backup dump export",
    "statistics stats metrics analytics",
    "report research",
    "chart graph plot",
    "event message entry",
    "calendar meeting appointment schedule",
    "mail email inbox",
    "password credential secret",
    "customer client",
    "invoice bill payment",
    "deploy apply install",
    "stage index",
    "yaml manifest",
    "key field",
    "element member",
    "environment variable env",
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
