use std::collections::BTreeMap;

use super::*;

fn route() -> Route {
    Route { server: "git".into(), uuid: "uuid-git".into(), name: "log".into() }
}

fn authorizer(profile: Profile) -> Authorizer {
    Authorizer::new(Audit::disabled()).with_profile(Arc::new(profile))
}

fn rules(texts: &[&str]) -> Vec<Rule> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn everything_but_managing_servers_is_allowed_without_rules() {
    let authorizer = authorizer(Profile::default());
    let local = Principal::local();
    for action in [Action::RunCommand, Action::UseServers, Action::UseMemory, Action::Other] {
        assert!(authorizer.allows(Subject::principal(&local), action, Object::Endpoint), "{action:?}");
    }
    let manage = |principal: &Principal| {
        authorizer.authorize(Subject::principal(principal), Action::ManageServers, Object::Endpoint)
    };
    assert_eq!(manage(&local).unwrap_err().kind, Kind::Policy);
    assert!(manage(&Principal::operator()).is_ok());
    assert_eq!(authorizer.principal(Principal::local()), Principal::local());
}

#[test]
fn only_the_operator_and_tokens_extend_the_network_of_a_session() {
    let (public, private) =
        (rules(&["api.example.com", "*.example.com:8443"]), rules(&["api.example.com", "db+private"]));
    let (token, local, operator) = (Principal::named("ci"), Principal::local(), Principal::operator());
    let allows = |authorizer: &Authorizer, principal: &Principal, rules: &[Rule]| {
        authorizer.allows(
            Subject::principal(principal),
            Action::ExtendNetwork,
            Object::Rules { new: rules, existing: &[] },
        )
    };
    let asks = authorizer(Profile::default()).with_tokens_may_allow(true);
    assert!(allows(&asks, &operator, &private) && allows(&asks, &token, &public));
    assert!(!allows(&asks, &token, &private), "a token must not reach the networks of the host");
    for address in ["127.0.0.1:8000", "10.0.0.1", "169.254.169.254", "[::1]:80"] {
        assert!(!allows(&asks, &token, &rules(&[address])), "{address}");
    }
    assert!(!allows(&asks, &local, &public), "an agent could send requests without a token");
    let never = authorizer(Profile::default());
    assert!(allows(&never, &operator, &private) && !allows(&never, &token, &public));
}

#[test]
fn only_the_operator_lifts_limits_on_requests() {
    let existing = rules(&["api.example.com method=GET", "*.limited.example:8443 path=/a", "plain.example"]);
    let asks = authorizer(Profile::default()).with_tokens_may_allow(true);
    let allows = |principal: &Principal, rule: &str| {
        let new = rules(&[rule]);
        let object = Object::Rules { new: &new, existing: &existing };
        asks.allows(Subject::principal(principal), Action::ExtendNetwork, object)
    };
    let (token, operator) = (Principal::named("ci"), Principal::operator());
    for rule in [
        "api.example.com",
        "api.example.com:443 method=POST",
        "*.example.com:*",
        "x.limited.example:8443",
        "*.example:8443",
    ] {
        assert!(!allows(&token, rule) && allows(&operator, rule), "{rule}");
    }
    for rule in ["other.example", "api.example.com:22", "api.example.com method=GET", "plain.example:22"] {
        assert!(allows(&token, rule), "{rule}");
    }
}

#[test]
fn servers_and_tools_outside_the_profile_are_refused() {
    let profile = Profile { servers: Some(vec!["git".into()]), deny: vec!["log".into()], ..Profile::default() };
    let (authorizer, local, catalogue) = (authorizer(profile), Principal::local(), Catalogue::default());
    let allows = |object| authorizer.allows(Subject::principal(&local), Action::UseServers, object);
    assert!(allows(Object::Server { name: "git", uuid: "uuid-git" }));
    assert!(!allows(Object::Server { name: "other", uuid: "uuid-other" }));
    let log = route();
    assert!(!allows(Object::Item { kind: PinKind::Tool, route: &log, catalogue: &catalogue }));
    let status = Route { name: "status".into(), ..route() };
    assert!(allows(Object::Item { kind: PinKind::Tool, route: &status, catalogue: &catalogue }));
}

#[test]
fn code_needs_a_grant_for_each_server() {
    let (authorizer, local) = (authorizer(Profile::default()), Principal::local());
    let object = Object::Server { name: "git", uuid: "uuid-git" };
    let grants = SessionGrants::default();
    let code = Subject { grants: Some(&grants), ..Subject::principal(&local) };
    let refusal = authorizer.authorize(code, Action::UseServers, object).unwrap_err();
    assert_eq!(refusal.context, BTreeMap::from([("server".to_owned(), "git".to_owned())]));
    assert!(authorizer.allows(Subject::principal(&local), Action::UseServers, object), "a client needs none");
}
