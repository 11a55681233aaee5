use proptest::prelude::*;

use super::*;

const FREE: ServiceLimits =
    ServiceLimits { sessions: usize::MAX, sessions_per_principal: None, memory_bytes: None, evict_idle: true };

fn tenant(name: &str, principal: &str, memory_bytes: u64, last_used_ms: u64) -> Tenant {
    Tenant {
        id: SessionId::from_caller(name),
        principal: Principal::named(principal),
        memory_bytes,
        created: 0,
        last_used_ms,
        busy: false,
    }
}

fn applicant(principal: &str, memory_bytes: u64) -> Applicant {
    Applicant { principal: Principal::named(principal), memory_bytes }
}

fn evicted(admission: Admission) -> Vec<String> {
    match admission {
        Admission::Admit => Vec::new(),
        Admission::Evict(ids) => ids.iter().map(ToString::to_string).collect(),
        Admission::Refuse(failure) => panic!("{failure}"),
    }
}

fn refused(admission: Admission) -> Failure {
    let Admission::Refuse(failure) = admission else { panic!("{admission:?}") };
    failure
}

#[test]
fn the_least_recently_used_idle_session_makes_room() {
    let limits = ServiceLimits { sessions: 3, ..FREE };
    let mut tenants = [tenant("old", "a", 1, 1), tenant("older", "b", 1, 0), tenant("new", "a", 1, 9)];
    assert_eq!(evicted(admit(&limits, &tenants[..2], &applicant("a", 1))), [""; 0]);
    assert_eq!(evicted(admit(&limits, &tenants, &applicant("a", 1))), ["older"]);
    tenants[1].busy = true;
    assert_eq!(evicted(admit(&limits, &tenants, &applicant("a", 1))), ["old"]);
    for tenant in &mut tenants {
        tenant.busy = true;
    }
    assert!(refused(admit(&limits, &tenants, &applicant("a", 1))).message.contains("none of them is idle"));
}

#[test]
fn at_ones_own_limit_only_ones_own_sessions_go() {
    let limits = ServiceLimits { sessions_per_principal: Some(1), ..FREE };
    let tenants = [tenant("theirs", "b", 1, 0), tenant("mine", "a", 1, 5)];
    assert_eq!(evicted(admit(&limits, &tenants, &applicant("a", 1))), ["mine"]);
    assert_eq!(evicted(admit(&limits, &tenants, &applicant("c", 1))), [""; 0]);
}

#[test]
fn only_as_many_go_as_are_needed() {
    let limits = ServiceLimits { memory_bytes: Some(10), ..FREE };
    let tenants = [tenant("one", "a", 1, 0), tenant("two", "a", 1, 1), tenant("eight", "a", 8, 2)];
    assert_eq!(evicted(admit(&limits, &tenants, &applicant("a", 2))), ["one", "two"]);
    assert_eq!(evicted(admit(&limits, &tenants, &applicant("a", 8))), ["eight"], "the small ones need not go");
}

#[test]
fn refusals_name_the_rule_and_what_to_do() {
    let limits =
        ServiceLimits { sessions: 2, sessions_per_principal: Some(1), memory_bytes: Some(3 << 30), evict_idle: false };
    let tenants = [tenant("one", "a", 1 << 30, 0), tenant("two", "b", 1 << 30, 0)];
    let refusals = [
        refused(admit(&limits, &tenants, &applicant("c", 1 << 30))),
        refused(admit(&limits, &tenants, &applicant("a", 1 << 30))),
        refused(admit(&limits, &tenants[..1], &applicant("b", 4 << 30))),
        refused(admit(&limits, &tenants[..1], &applicant("b", 5 << 29))),
    ];
    let said = refusals.map(|failure| {
        assert_eq!(failure.kind, Kind::ResourceLimit);
        format!("{} [{}]\n  {}", failure.message, failure.context["rule"], failure.hints.join("\n  "))
    });
    insta::assert_snapshot!(said.join("\n"));
}

#[test]
fn a_session_expires_of_idleness_or_of_age() {
    let (idle, age) = (Duration::from_secs(100), Some(Duration::from_secs(150)));
    assert_eq!(expires(1000, 1000, idle, None), 1100);
    assert_eq!(expires(1000, 1000, idle, age), 1100);
    assert_eq!(expires(1000, 1090, idle, age), 1150);
    assert_eq!(expires(1000, u64::MAX, idle, None), u64::MAX);
}

fn tenants() -> impl Strategy<Value = Vec<Tenant>> {
    let one = (0..3_u8, 0..6_u64, 0..9_u64, any::<bool>());
    proptest::collection::vec(one, 0..12).prop_map(|drawn| {
        let tenant = |(index, (principal, memory_bytes, last_used, busy)): (usize, (u8, u64, u64, bool))| Tenant {
            busy,
            ..tenant(&format!("session-{index}"), &principal.to_string(), memory_bytes, last_used)
        };
        drawn.into_iter().enumerate().map(tenant).collect()
    })
}

fn limits() -> impl Strategy<Value = ServiceLimits> {
    let own = proptest::option::of(1..5_usize);
    (1..12_usize, own, proptest::option::of(1..30_u64), any::<bool>()).prop_map(|(sessions, own, memory, evict)| {
        ServiceLimits { sessions, sessions_per_principal: own, memory_bytes: memory, evict_idle: evict }
    })
}

/// Said once more, in the plainest way.
fn holds(limits: &ServiceLimits, tenants: &[Tenant], applicant: &Applicant) -> bool {
    let own = tenants.iter().filter(|tenant| tenant.principal == applicant.principal).count();
    let memory: u64 = tenants.iter().map(|tenant| tenant.memory_bytes).sum();
    tenants.len() < limits.sessions
        && limits.sessions_per_principal.is_none_or(|most| own < most)
        && limits.memory_bytes.is_none_or(|most| memory + applicant.memory_bytes <= most)
}

proptest! {
    #[test]
    fn no_limit_is_ever_passed(limits in limits(), tenants in tenants(), memory in 0..8_u64) {
        let applicant = applicant("0", memory);
        let gone = match admit(&limits, &tenants, &applicant) {
            Admission::Admit => Vec::new(),
            Admission::Evict(gone) => gone,
            Admission::Refuse(_) => {
                prop_assert!(!holds(&limits, &tenants, &applicant), "what fits is not refused");
                return Ok(());
            }
        };
        let stays = |tenant: &&Tenant| !gone.contains(&tenant.id);
        let left: Vec<Tenant> = tenants.iter().filter(stays).cloned().collect();
        prop_assert!(holds(&limits, &left, &applicant));
        for tenant in tenants.iter().filter(|tenant| gone.contains(&tenant.id)) {
            prop_assert!(limits.evict_idle && !tenant.busy);
            let mut more = left.clone();
            more.push(tenant.clone());
            prop_assert!(!holds(&limits, &more, &applicant), "each that goes was needed");
        }
    }

    #[test]
    fn a_refusal_means_that_not_even_all_idle_ones_would_do(limits in limits(), tenants in tenants(), memory in 0..8_u64) {
        let applicant = applicant("0", memory);
        if let Admission::Refuse(_) = admit(&limits, &tenants, &applicant) {
            let kept: Vec<Tenant> =
                tenants.iter().filter(|tenant| tenant.busy || !limits.evict_idle).cloned().collect();
            prop_assert!(!holds(&limits, &kept, &applicant));
        }
    }
}
