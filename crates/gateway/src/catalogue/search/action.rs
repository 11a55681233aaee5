//! What a tool does and what a query asks for: to read, create, change or delete something. Of tools about the same
//! thing, those that do what the query asks for rank first.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::stem::stem;
use super::words::for_each_word;

/// The number of words at the start of a query among which its verb is searched.
const MAX_QUERY_WORDS: usize = 8;

/// The number of words at the start of a description among which its verb is searched.
const MAX_DESCRIPTION_WORDS: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Read,
    Create,
    Change,
    Delete,
}

/// Question words ask to read.
const WORDS: [(Action, &str); 4] = [
    (
        Action::Read,
        "get list show read fetch retrieve view find search lookup see check describe explain count inspect look print \
         display browse who what which when why where whose download export query enumerate analyze",
    ),
    (
        Action::Create,
        "create add make new insert append write publish open file put post record register upload attach leave start \
         submit draft send store save build invite",
    ),
    (
        Action::Change,
        "update edit change modify patch rename replace set move mark assign transition restrict reset adjust",
    ),
    (
        Action::Delete,
        "delete remove drop erase destroy forget purge clear uninstall cancel close stop disconnect unsubscribe discard \
         wipe revoke undo",
    ),
];

static ACTIONS: LazyLock<HashMap<String, Action>> = LazyLock::new(|| {
    let verbs = WORDS.iter().flat_map(|(action, verbs)| verbs.split_whitespace().map(|verb| (verb, *action)));
    verbs.map(|(verb, action)| (stem(verb).into_owned(), action)).collect()
});

impl Action {
    /// Returns what a query asks for: the action of its first verb.
    pub(super) fn of_query(query: &str) -> Option<Self> {
        Self::of_first_verb(query, MAX_QUERY_WORDS)
    }

    /// Returns what a tool does, by the first verb of its name, or else of its description.
    pub(super) fn of_tool(name: &str, description: &str) -> Option<Self> {
        Self::of_first_verb(name, usize::MAX).or_else(|| Self::of_first_verb(description, MAX_DESCRIPTION_WORDS))
    }

    fn of_first_verb(text: &str, max_words: usize) -> Option<Self> {
        let (mut found, mut count) = (None, 0);
        for_each_word(text, |_, stem| {
            if found.is_none() && count < max_words {
                found = ACTIONS.get(stem).copied();
            }
            count += 1;
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_verb_of_a_query_decides() {
        for (query, expected) in [
            ("delete the list of users", Some(Action::Delete)),
            ("please, creating a label", Some(Action::Create)),
            ("which files were changed", Some(Action::Read)),
            ("Rename it", Some(Action::Change)),
            ("one two three four five six seven eight delete", None),
            ("", None),
        ] {
            assert_eq!(Action::of_query(query), expected, "{query}");
        }
    }

    #[test]
    fn name_of_a_tool_decides_before_its_description() {
        assert_eq!(Action::of_tool("jira_deleteIssue", "Creates nothing"), Some(Action::Delete));
        assert_eq!(Action::of_tool("llen", "Get the length"), Some(Action::Read));
        assert_eq!(Action::of_tool("llen", "Length of the list to remove"), None);
        assert_eq!(Action::of_tool("", ""), None);
    }
}
