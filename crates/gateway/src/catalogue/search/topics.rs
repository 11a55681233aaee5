//! What well-known products are about, for servers that are named after one and do not describe it: a query for a chat
//! message finds the tools of `slack`.

/// Products, each with the words that describe it.
const TOPICS: [(&str, &str); 48] = [
    ("airtable", "spreadsheet database table row"),
    ("asana", "task project"),
    ("aws", "cloud"),
    ("bitbucket", "repository code git"),
    ("brave", "web internet search"),
    ("calendar", "event meeting appointment"),
    ("chrome", "browser web page website"),
    ("confluence", "wiki page article"),
    ("context7", "documentation library package"),
    ("datadog", "metric monitoring"),
    ("discord", "chat message channel"),
    ("docker", "container image"),
    ("duckduckgo", "web internet search"),
    ("fetch", "web page url link"),
    ("figma", "design mockup"),
    ("filesystem", "file disk local folder"),
    ("firecrawl", "web website scrape"),
    ("git", "repository commit local code"),
    ("github", "repository code git"),
    ("gitlab", "repository code git"),
    ("gmail", "mail email inbox"),
    ("grafana", "dashboard metric monitoring"),
    ("jira", "issue ticket task tracker"),
    ("kubectl", "cluster kubernetes pod"),
    ("kubernetes", "cluster container pod"),
    ("linear", "issue ticket task"),
    ("maps", "map route address place"),
    ("memory", "remember fact know"),
    ("mongodb", "mongo database document"),
    ("mysql", "database sql table"),
    ("notion", "wiki page article"),
    ("outlook", "mail email calendar"),
    ("playwright", "browser web page website"),
    ("postgres", "database sql table"),
    ("puppeteer", "browser web page website"),
    ("redis", "cache store"),
    ("s3", "bucket object storage file"),
    ("salesforce", "customer lead crm"),
    ("sentry", "error exception crash"),
    ("sheets", "spreadsheet row cell"),
    ("slack", "chat message team"),
    ("sqlite", "database sql table"),
    ("stripe", "payment invoice customer"),
    ("tavily", "web internet search"),
    ("telegram", "chat message"),
    ("trello", "task card board"),
    ("whatsapp", "chat message"),
    ("youtube", "video"),
];

/// Returns the words that describe a product, or an empty text.
pub(super) fn topics_of(word: &str) -> &'static str {
    TOPICS.binary_search_by_key(&word, |(product, _)| product).map_or("", |index| TOPICS[index].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_sorted_and_found() {
        assert!(TOPICS.is_sorted());
        for (product, topics) in TOPICS {
            assert_eq!(topics_of(product), topics);
        }
        assert_eq!(topics_of("unknown"), "");
    }
}
