//! The offer of a profile: the catalogues of its servers combined, and the server behind each name.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ringfence_entries::{Profile, TOOL_SEPARATOR, tool_prefix};
use serde_json::{Value, json};

use super::{Catalogue, Withheld, name_of};

/// A server with its current catalogue.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) withheld: Withheld,
}

impl Member {
    fn route(&self, item: &Value) -> Route {
        Route { server: self.name.clone(), uuid: self.uuid.clone(), name: name_of(item).to_owned() }
    }
}

/// The server and the item behind a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) server: String,
    pub(crate) uuid: String,
    /// The name that the server uses.
    pub(crate) name: String,
}

/// The combined lists of a profile, with the servers behind their items. The lists only show what is offered; `authorize`
/// decides about each use.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) tools: Vec<Value>,
    pub(crate) prompts: Vec<Value>,
    pub(crate) resources: Vec<Value>,
    pub(crate) templates: Vec<Value>,
    tool_routes: HashMap<String, (Route, usize)>,
    prompt_routes: HashMap<String, Route>,
    resource_routes: HashMap<String, String>,
    template_routes: Vec<(String, String)>,
    withheld_tools: HashMap<String, Route>,
    withheld_prompts: HashMap<String, Route>,
    /// URIs of withheld resources, with their servers.
    withheld_resources: HashMap<String, String>,
    withheld_templates: Vec<(String, String)>,
    /// Servers that have resources.
    servers_with_resources: Vec<String>,
    /// Items that are not offered because an earlier one has the same name.
    pub(crate) collisions: Vec<String>,
}

impl View {
    /// Combines the catalogues of the members. `reserved` are the names of the built-in tools.
    pub(crate) fn new(profile: &Profile, members: &[Member], reserved: &HashSet<&str>) -> Self {
        let mut view = Self::default();
        for member in members.iter().filter(|member| profile.has_server(&member.name, &member.uuid)) {
            view.add(profile, member, reserved);
        }
        view
    }

    fn add(&mut self, profile: &Profile, member: &Member, reserved: &HashSet<&str>) {
        let server = &member.name;
        let catalogue = &member.catalogue;
        let offered_name = |item: &Value| {
            let name = name_of(item);
            if profile.prefix { format!("{}{TOOL_SEPARATOR}{name}", tool_prefix(server)) } else { name.to_owned() }
        };
        for tool in catalogue.tools.iter().filter(|tool| profile.has_tool(server, name_of(tool))) {
            let (name, route) = (offered_name(tool), member.route(tool));
            if member.withheld.tools.contains(&route.name) {
                self.withheld_tools.insert(name, route);
            } else if reserved.contains(name.as_str()) || self.tool_routes.contains_key(&name) {
                self.collisions.push(format!("tool {name} of {server}"));
            } else {
                self.tools.push(with_name(tool, &name));
                self.tool_routes.insert(name, (route, self.tools.len() - 1));
            }
        }
        for prompt in &catalogue.prompts {
            let (name, route) = (offered_name(prompt), member.route(prompt));
            if member.withheld.prompts.contains(&route.name) {
                self.withheld_prompts.insert(name, route);
            } else if self.prompt_routes.contains_key(&name) {
                self.collisions.push(format!("prompt {name} of {server}"));
            } else {
                self.prompts.push(with_name(prompt, &name));
                self.prompt_routes.insert(name, route);
            }
        }
        for resource in &catalogue.resources {
            let uri = resource["uri"].as_str().unwrap_or_default();
            if member.withheld.resources.contains(uri) {
                self.withheld_resources.insert(uri.to_owned(), server.clone());
            } else if self.resource_routes.contains_key(uri) {
                self.collisions.push(format!("resource {uri} of {server}"));
            } else {
                self.resource_routes.insert(uri.to_owned(), server.clone());
                self.resources.push(resource.clone());
            }
        }
        for template in &catalogue.templates {
            let pattern = template["uriTemplate"].as_str().unwrap_or_default();
            if member.withheld.resource_templates.contains(pattern) {
                self.withheld_templates.push((pattern.to_owned(), server.clone()));
            } else if self.template_routes.iter().any(|(taken, _)| taken == pattern) {
                self.collisions.push(format!("resource template {pattern} of {server}"));
            } else {
                self.template_routes.push((pattern.to_owned(), server.clone()));
                self.templates.push(template.clone());
            }
        }
        if !catalogue.resources.is_empty() || !catalogue.templates.is_empty() {
            self.servers_with_resources.push(server.clone());
        }
    }

    pub(crate) fn tool(&self, name: &str) -> Option<&Route> {
        self.tool_routes.get(name).map(|(route, _)| route)
    }

    pub(crate) fn input_schema(&self, tool: &str) -> Option<&Value> {
        let (_, index) = self.tool_routes.get(tool)?;
        self.tools[*index].get("inputSchema")
    }

    pub(crate) fn withheld_tool(&self, name: &str) -> Option<&Route> {
        self.withheld_tools.get(name)
    }

    pub(crate) fn prompt(&self, name: &str) -> Option<&Route> {
        self.prompt_routes.get(name)
    }

    pub(crate) fn withheld_prompt(&self, name: &str) -> Option<&Route> {
        self.withheld_prompts.get(name)
    }

    /// The server of a withheld resource: one that is listed, or one that matches only a withheld template.
    pub(crate) fn withheld_resource(&self, uri: &str) -> Option<&str> {
        if self.resource_routes.contains_key(uri) {
            return None;
        }
        let find =
            |templates: &'_ [(String, String)]| templates.iter().position(|(template, _)| uri_matches(template, uri));
        let by_template = || match (find(&self.template_routes), find(&self.withheld_templates)) {
            (None, Some(index)) => Some(self.withheld_templates[index].1.as_str()),
            _ => None,
        };
        self.withheld_resources.get(uri).map(String::as_str).or_else(by_template)
    }

    /// The server of a resource: one that lists it, one with a matching template, or the only one with resources.
    pub(crate) fn resource(&self, uri: &str) -> Option<&str> {
        let listed = self.resource_routes.get(uri).map(String::as_str);
        let matching = || {
            let found = self.template_routes.iter().find(|(template, _)| uri_matches(template, uri));
            found.map(|(_, server)| server.as_str())
        };
        let only = || match self.servers_with_resources.as_slice() {
            [server] => Some(server.as_str()),
            _ => None,
        };
        listed.or_else(matching).or_else(only)
    }
}

fn with_name(item: &Value, name: &str) -> Value {
    let mut item = item.clone();
    item["name"] = json!(name);
    item
}

/// Whether a URI matches a template such as `file:///{path}`.
pub(crate) fn uri_matches(template: &str, uri: &str) -> bool {
    let mut rest = uri;
    let mut literal = template;
    let mut is_anchored = true;
    loop {
        let (text, after) = match literal.split_once('{') {
            Some((text, after)) => (text, Some(after)),
            None => (literal, None),
        };
        if is_anchored {
            let Some(stripped) = rest.strip_prefix(text) else { return false };
            rest = stripped;
        } else if after.is_none() {
            return rest.ends_with(text) && (text.is_empty() || rest.len() >= text.len());
        } else {
            let Some(at) = rest.find(text) else { return false };
            rest = &rest[at + text.len()..];
        }
        match after.and_then(|after| after.split_once('}')) {
            Some((_, after)) => literal = after,
            None => return rest.is_empty(),
        }
        is_anchored = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, tools: &[&str]) -> Member {
        let tools = tools.iter().map(|tool| json!({"name": tool, "x-extra": [1, {"z": 1, "a": 2}]})).collect();
        let catalogue = Catalogue {
            tools,
            resources: vec![json!({"uri": format!("{name}://r"), "name": "r"})],
            templates: vec![json!({"uriTemplate": format!("{name}://t/{{id}}/x"), "name": "t"})],
            prompts: vec![json!({"name": "p"})],
            ..Catalogue::default()
        };
        Member {
            name: name.into(),
            uuid: format!("uuid-{name}"),
            catalogue: Arc::new(catalogue),
            withheld: Withheld::default(),
        }
    }

    #[test]
    fn tools_have_the_prefix_of_their_server_and_are_otherwise_unchanged() {
        let view = View::new(&Profile::default(), &[member("my git", &["log"])], &HashSet::new());
        assert_eq!(view.tools[0].to_string(), r#"{"name":"my_git__log","x-extra":[1,{"z":1,"a":2}]}"#);
        assert_eq!(
            view.tool("my_git__log"),
            Some(&Route { server: "my git".into(), uuid: "uuid-my git".into(), name: "log".into() })
        );
        assert_eq!(view.prompt("my_git__p").unwrap().name, "p");
    }

    #[test]
    fn name_collision_is_reported_and_the_first_item_wins() {
        let profile = Profile { prefix: false, ..Profile::default() };
        let members = [member("a", &["x", "read_file"]), member("b", &["x"])];
        let view = View::new(&profile, &members, &HashSet::from(["read_file"]));
        assert_eq!(view.tool("x").unwrap().server, "a");
        assert!(view.tool("read_file").is_none());
        assert_eq!(view.collisions, ["tool read_file of a", "tool x of b", "prompt p of b"]);
    }

    #[test]
    fn withheld_tools_are_not_offered() {
        let mut changed = member("a", &["x", "y"]);
        changed.withheld.tools.insert("x".into());
        let view = View::new(&Profile::default(), &[changed], &HashSet::new());
        assert_eq!(view.tools.len(), 1);
        assert!(view.tool("a__x").is_none() && view.withheld_tool("a__x").is_some());
        assert!(view.prompt("a__p").is_some() && view.withheld_resource("a://r").is_none());
    }

    #[test]
    fn withheld_prompts_and_resources_are_not_offered() {
        let mut changed = member("a", &["x"]);
        changed.withheld.prompts.insert("p".into());
        changed.withheld.resources.insert("a://r".into());
        changed
            .withheld
            .resource_templates
            .insert(changed.catalogue.templates[0]["uriTemplate"].as_str().unwrap().into());
        let view = View::new(&Profile::default(), &[changed], &HashSet::new());
        assert_eq!((view.tools.len(), view.prompts.len(), view.resources.len(), view.templates.len()), (1, 0, 0, 0));
        assert!(view.prompt("a__p").is_none() && view.withheld_prompt("a__p").is_some());
        assert_eq!(view.withheld_resource("a://r"), Some("a"));
        assert_eq!(view.withheld_resource("a://t/7/x"), Some("a"));
        assert_eq!(view.withheld_resource("a://other"), None);
    }

    #[test]
    fn resources_are_routed_to_their_server() {
        let view = View::new(&Profile::default(), &[member("a", &[]), member("b", &[])], &HashSet::new());
        assert_eq!(view.resource("b://r"), Some("b"));
        assert_eq!(view.resource("b://t/7/x"), Some("b"));
        assert_eq!(view.resource("c://r"), None);
        let single = View::new(&Profile::default(), &[member("a", &[])], &HashSet::new());
        assert_eq!(single.resource("c://r"), Some("a"));
    }

    #[test]
    fn uris_match_templates() {
        for (template, uri, expected) in [
            ("a://{x}", "a://anything", true),
            ("a://{x}/data", "a://1/data", true),
            ("a://{x}/data", "a://1/dat", false),
            ("a://{x}/b/{y}", "a://1/b/2", true),
            ("a://{x}/b/{y}", "a://1/c/2", false),
            ("a://x", "a://x", true),
            ("a://x", "a://xy", false),
            ("a://{x", "a://1", false),
        ] {
            assert_eq!(uri_matches(template, uri), expected, "{template} {uri}");
        }
    }
}
