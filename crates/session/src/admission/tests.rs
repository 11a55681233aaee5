use proptest::prelude::*;

use super::*;

const UNLIMITED: ServiceLimits =
    ServiceLimits { sessions: usize::MAX, sessions_per_principal: None, memory_bytes: None, evict_idle: true };

fn session(name: &str, principal: &str, memory_bytes: u64, last_used_ms: u64) -> LiveSession {
    LiveSession {
        id: SessionId::from_caller(name),
        principal: Principal::named(principal),
        memory_bytes,
        created: 0,
        last_used_ms,
        is_busy: false,
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
fn least_recently_used_idle_session_is_evicted() {
    let limits = ServiceLimits { sessions: 3, ..UNLIMITED };
    let mut sessions = [session("old", "a", 1, 1), session("older", "b", 1, 0), session("new", "a", 1, 9)];
    assert_eq!(evicted(admit(&limits, &sessions[..2], &applicant("a", 1))), [""; 0]);
    assert_eq!(evicted(admit(&limits, &sessions, &applicant("a", 1))), ["older"]);
    sessions[1].is_busy = true;
    assert_eq!(evicted(admit(&limits, &sessions, &applicant("a", 1))), ["old"]);
    for session in &mut sessions {
        session.is_busy = true;
    }
    assert!(refused(admit(&limits, &sessions, &applicant("a", 1))).message.contains("none of them is idle"));
}

#[test]
fn own_limit_evicts_only_own_sessions() {
    let limits = ServiceLimits { sessions_per_principal: Some(1), ..UNLIMITED };
    let sessions = [session("theirs", "b", 1, 0), session("mine", "a", 1, 5)];
    assert_eq!(evicted(admit(&limits, &sessions, &applicant("a", 1))), ["mine"]);
    assert_eq!(evicted(admit(&limits, &sessions, &applicant("c", 1))), [""; 0]);
}

#[test]
fn no_more_sessions_than_necessary_are_evicted() {
    let limits = ServiceLimits { memory_bytes: Some(10), ..UNLIMITED };
    let sessions = [session("one", "a", 1, 0), session("two", "a", 1, 1), session("eight", "a", 8, 2)];
    assert_eq!(evicted(admit(&limits, &sessions, &applicant("a", 2))), ["one", "two"]);
    assert_eq!(
        evicted(admit(&limits, &sessions, &applicant("a", 8))),
        ["eight"],
        "the small sessions need not be evicted"
    );
}

#[test]
fn refusals_name_the_rule_and_the_next_step() {
    let limits =
        ServiceLimits { sessions: 2, sessions_per_principal: Some(1), memory_bytes: Some(3 << 30), evict_idle: false };
    let sessions = [session("one", "a", 1 << 30, 0), session("two", "b", 1 << 30, 0)];
    let refusals = [
        refused(admit(&limits, &sessions, &applicant("c", 1 << 30))),
        refused(admit(&limits, &sessions, &applicant("a", 1 << 30))),
        refused(admit(&limits, &sessions[..1], &applicant("b", 4 << 30))),
        refused(admit(&limits, &sessions[..1], &applicant("b", 5 << 29))),
    ];
    let texts = refusals.map(|failure| {
        assert_eq!(failure.kind, Kind::ResourceLimit);
        format!("{} [{}]\n  {}", failure.message, failure.context["rule"], failure.hints.join("\n  "))
    });
    insta::assert_snapshot!(texts.join("\n"));
}

#[test]
fn session_expires_by_idle_timeout_or_age() {
    let (idle, age) = (Duration::from_secs(100), Some(Duration::from_secs(150)));
    assert_eq!(expires(1000, 1000, idle, None), 1100);
    assert_eq!(expires(1000, 1000, idle, age), 1100);
    assert_eq!(expires(1000, 1090, idle, age), 1150);
    assert_eq!(expires(1000, u64::MAX, idle, None), u64::MAX);
}

fn sessions() -> impl Strategy<Value = Vec<LiveSession>> {
    let drawn = (0..3_u8, 0..6_u64, 0..9_u64, any::<bool>());
    proptest::collection::vec(drawn, 0..12).prop_map(|drawn| {
        let session =
            |(index, (principal, memory_bytes, last_used, is_busy)): (usize, (u8, u64, u64, bool))| LiveSession {
                is_busy,
                ..session(&format!("session-{index}"), &principal.to_string(), memory_bytes, last_used)
            };
        drawn.into_iter().enumerate().map(session).collect()
    })
}

fn limits() -> impl Strategy<Value = ServiceLimits> {
    let own = proptest::option::of(1..5_usize);
    (1..12_usize, own, proptest::option::of(1..30_u64), any::<bool>()).prop_map(|(sessions, own, memory, evict)| {
        ServiceLimits { sessions, sessions_per_principal: own, memory_bytes: memory, evict_idle: evict }
    })
}

/// Whether the limits allow the applicant beside the sessions: a second, simple implementation.
fn fits(limits: &ServiceLimits, sessions: &[LiveSession], applicant: &Applicant) -> bool {
    let own = sessions.iter().filter(|session| session.principal == applicant.principal).count();
    let memory: u64 = sessions.iter().map(|session| session.memory_bytes).sum();
    sessions.len() < limits.sessions
        && limits.sessions_per_principal.is_none_or(|limit| own < limit)
        && limits.memory_bytes.is_none_or(|limit| memory + applicant.memory_bytes <= limit)
}

proptest! {
    #[test]
    fn no_limit_is_ever_exceeded(limits in limits(), sessions in sessions(), memory in 0..8_u64) {
        let applicant = applicant("0", memory);
        let evicted = match admit(&limits, &sessions, &applicant) {
            Admission::Admit => Vec::new(),
            Admission::Evict(evicted) => evicted,
            Admission::Refuse(_) => {
                prop_assert!(!fits(&limits, &sessions, &applicant), "a session that fits is not refused");
                return Ok(());
            }
        };
        let remains = |session: &&LiveSession| !evicted.contains(&session.id);
        let left: Vec<LiveSession> = sessions.iter().filter(remains).cloned().collect();
        prop_assert!(fits(&limits, &left, &applicant));
        for session in sessions.iter().filter(|session| evicted.contains(&session.id)) {
            prop_assert!(limits.evict_idle && !session.is_busy);
            let mut with_evicted = left.clone();
            with_evicted.push(session.clone());
            prop_assert!(!fits(&limits, &with_evicted, &applicant), "each eviction was necessary");
        }
    }

    #[test]
    fn refused_session_would_not_fit_without_all_idle_sessions(limits in limits(), sessions in sessions(), memory in 0..8_u64) {
        let applicant = applicant("0", memory);
        if let Admission::Refuse(_) = admit(&limits, &sessions, &applicant) {
            let remaining: Vec<LiveSession> =
                sessions.iter().filter(|session| session.is_busy || !limits.evict_idle).cloned().collect();
            prop_assert!(!fits(&limits, &remaining, &applicant));
        }
    }
}
