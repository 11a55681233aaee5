use std::collections::BTreeMap;

use super::*;

fn route() -> Route {
    Route { server: "git".into(), uuid: "uuid-git".into(), name: "log".into() }
}

fn authorizer(profile: Profile) -> Authorizer {
    Authorizer::new(Audit::disabled()).with_profile(Arc::new(profile))
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
