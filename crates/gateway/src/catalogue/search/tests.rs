//! The results of queries, their order, and unusual queries.

use std::time::Instant;

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn tool(name: &str, description: &str) -> Value {
    json!({"name": name, "description": description})
}

/// Returns the names of the tools of one server that a query finds.
fn found(tools: &[Value], query: &str) -> Vec<String> {
    let index = Index::new(&[SearchableServer { name: "srv", description: "", tools }]);
    let name = |hit: Hit| tools[hit.tool]["name"].as_str().unwrap().to_owned();
    index.search(query, 20).into_iter().map(name).collect()
}

#[test]
fn best_tool_comes_first_and_not_every_word_must_match() {
    let tools = [
        tool("delete_branch", "Deletes a branch of a repository"),
        tool("create_issue", "Opens an issue in a repository"),
        tool("createPullRequest", "Opens a pull request"),
    ];
    assert_eq!(found(&tools, "creating issues, quickly please")[0], "create_issue");
    assert_eq!(found(&tools, "pull-requests")[0], "createPullRequest");
    assert_eq!(found(&tools, "branch"), ["delete_branch"]);
}

#[test]
fn tool_that_does_what_the_query_asks_for_comes_first() {
    let tools = [tool("get_labels", "Labels of pages"), tool("drop_x_labels", "Labels of some other pages")];
    assert_eq!(found(&tools, "show labels of pages"), ["get_labels", "drop_x_labels"]);
    assert_eq!(found(&tools, "undo labels of pages")[0], "drop_x_labels");
}

#[test]
fn similar_meaning_decides_between_tools_with_the_same_words() {
    let tools = [tool("a", "Shows a mountain of the town"), tool("b", "Shows a hospital of the town")];
    assert_eq!(found(&tools, "physicians in town"), ["b", "a"]);
    assert_eq!(found(&tools, "physicians"), [] as [&str; 0], "no word matches");
}

#[test]
fn server_is_found_by_what_its_product_is_about() {
    let [slack, other] = [[tool("slack_add", "Adds a reaction")], [tool("add", "Adds a reaction")]];
    let servers = [
        SearchableServer { name: "a", description: "", tools: &other },
        SearchableServer { name: "b", description: "", tools: &slack },
    ];
    let hits = Index::new(&servers).search("reaction in a chat", 5);
    assert_eq!(hits.iter().map(|hit| hit.server).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn parameters_and_servers_are_searched_too() {
    let zone = json!({"name": "now", "inputSchema": {"properties": {"timezone": {"description": "an IANA name"}}}});
    let tools = [tool("echo", "Says it again"), zone];
    assert_eq!(found(&tools, "timezone"), ["now"]);
    assert_eq!(found(&tools, "iana"), ["now"]);
    let servers = [
        SearchableServer { name: "github", description: "", tools: &[tool("search", "Finds code")] },
        SearchableServer {
            name: "x",
            description: "Tracks tickets of customers",
            tools: &[tool("search", "Finds code")],
        },
    ];
    let index = Index::new(&servers);
    assert_eq!(index.search("github code", 5)[0].server, 0);
    assert_eq!(index.search("customers", 5).iter().map(|hit| hit.server).collect::<Vec<_>>(), [1]);
}

#[test]
fn one_typing_error_is_corrected_in_words_of_four_letters() {
    let tools = [tool("commit", "Records changes"), tool("branch", "Lists branches"), tool("tag", "Names a version")];
    for query in ["comit", "commmit", "cmomit", "cammit", "COMIT"] {
        assert_eq!(found(&tools, query), ["commit"], "{query}");
    }
    assert_eq!(found(&tools, "brnach"), ["branch"]);
    assert_eq!(found(&tools, "tga"), [] as [&str; 0], "too short");
    assert_eq!(found(&tools, "cmmoit"), [] as [&str; 0], "two errors");
}

#[test]
fn known_word_is_not_corrected() {
    let tools = [tool("read_mail", "Mail"), tool("read_main", "Main")];
    assert_eq!(found(&tools, "mail"), ["read_mail"]);
}

#[test]
fn prefix_matches_the_word() {
    let tools = [tool("find", "Users that are assignable"), tool("get", "Users that are away")];
    assert_eq!(found(&tools, "assign"), ["find"]);
    assert_eq!(found(&tools, "ass"), [] as [&str; 0]);
}

#[test]
fn tools_with_the_same_score_are_sorted_by_name() {
    let [one, two] = [[tool("b", "same"), tool("a", "same")], [tool("d", "same"), tool("c", "same")]];
    let servers = [
        SearchableServer { name: "z", description: "", tools: &one },
        SearchableServer { name: "y", description: "", tools: &two },
    ];
    let found = Index::new(&servers).search("same", 10);
    let positions: Vec<(usize, usize)> = found.iter().map(|hit| (hit.server, hit.tool)).collect();
    assert_eq!(positions, [(1, 1), (1, 0), (0, 1), (0, 0)]);
    assert_eq!(Index::new(&servers).search("same", 3), found[..3]);
}

#[test]
fn empty_query_or_index_finds_nothing() {
    let tools = [tool("a", "Reads files")];
    for query in ["", " ", "?!", "\0\u{202e}", "日本語", "zzzzzz"] {
        assert_eq!(found(&tools, query), [] as [&str; 0], "{query:?}");
    }
    assert_eq!(found(&[], "files"), [] as [&str; 0]);
    assert_eq!(found(&tools, "files").len(), 1);
    let index = Index::new(&[SearchableServer { name: "srv", description: "", tools: &tools }]);
    assert!(index.search("files", 0).is_empty());
}

#[test]
fn stop_words_count_only_alone() {
    let tools = [tool("a", "what it does for you"), tool("b", "reads files")];
    assert_eq!(found(&tools, "what does it do to files"), ["b"]);
    assert_eq!(found(&tools, "what for"), ["a"]);
}

#[test]
fn long_query_is_cut() {
    let tools = [tool("a", "last"), tool("b", "first")];
    let start = Instant::now();
    assert_eq!(found(&tools, &format!("first {} last", "é ".repeat(4 << 20))), ["b"]);
    assert!(start.elapsed().as_secs() < 5);
}

#[test]
fn server_with_very_many_tools_does_not_hide_others() {
    let many: Vec<Value> = (0..MAX_TOOLS_PER_SERVER + 10).map(|number| tool(&format!("t{number}"), "floods")).collect();
    let few = [tool("read", "rare floods")];
    let servers = [
        SearchableServer { name: "a", description: "", tools: &many },
        SearchableServer { name: "b", description: "", tools: &few },
    ];
    let index = Index::new(&servers);
    assert_eq!(index.tools.len(), MAX_TOOLS_PER_SERVER + 1);
    assert_eq!(index.search("rare", 5)[0].server, 1);
}

proptest! {
    #[test]
    fn any_text_can_be_searched(name in "\\PC{0,20}", description in "\\PC{0,200}", query in "\\PC{0,60}|[a-z ]{0,60}") {
        let tools = [json!({"name": name, "description": description}), json!([description]), json!(null)];
        let index = Index::new(&[SearchableServer { name: &name, description: &query, tools: &tools }]);
        for hit in index.search(&query, 5) {
            prop_assert!(hit.score.is_finite() && hit.score > 0.0 && hit.tool < 3);
        }
    }
}
