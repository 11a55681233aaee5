use super::*;
use crate::rules::Policy;

struct Fixture {
    gate: Arc<ApprovalGate>,
    policy: Arc<LivePolicy>,
    requests: mpsc::Receiver<ApprovalRequest>,
}

fn fixture() -> Fixture {
    let (approvals, requests) = Approvals::bounded(64);
    let policy = Arc::new(LivePolicy::new(Policy::default()));
    Fixture { gate: Arc::new(ApprovalGate::new(approvals)), policy, requests }
}

impl Fixture {
    /// Starts a connection that waits for approval.
    fn connect(&self, target: &str) -> tokio::task::JoinHandle<Result<String, NotApproved>> {
        let (gate, policy) = (Arc::clone(&self.gate), Arc::clone(&self.policy));
        let target = HostPort::parse(target, None).unwrap();
        tokio::spawn(async move { gate.wait(&policy, &target).await.map(|rule| rule.to_string()) })
    }

    async fn reply(&mut self, approval: Approval) -> String {
        let request = self.requests.recv().await.unwrap();
        request.reply.send(approval).unwrap();
        format!("{}:{}", request.host, request.port.unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn connections_to_one_host_share_one_question() {
    let mut fixture = fixture();
    let waiting: Vec<_> = (0..5).map(|_| fixture.connect("a.test:443")).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fixture.reply(Approval::Once).await, "a.test:443");
    for connection in waiting {
        assert_eq!(connection.await.unwrap().as_deref(), Ok("a.test"));
    }
    assert!(fixture.requests.try_recv().is_err());
    assert!(fixture.policy.snapshot().rules.is_empty(), "`Once` adds no rule");
    let next = fixture.connect("a.test:443");
    fixture.reply(Approval::No).await;
    assert_eq!(next.await.unwrap(), Err(NotApproved::Refused));
}

#[tokio::test(start_paused = true)]
async fn once_does_not_allow_another_port() {
    let mut fixture = fixture();
    let web = fixture.connect("a.test:443");
    tokio::task::yield_now().await;
    let ssh = fixture.connect("a.test:22");
    tokio::task::yield_now().await;
    assert_eq!(fixture.reply(Approval::Once).await, "a.test:443");
    assert!(web.await.unwrap().is_ok());
    assert_eq!(fixture.reply(Approval::No).await, "a.test:22");
    assert_eq!(ssh.await.unwrap(), Err(NotApproved::Refused));
}

#[tokio::test(start_paused = true)]
async fn always_adds_a_rule() {
    let mut fixture = fixture();
    let (web, ssh) = (fixture.connect("a.test:443"), fixture.connect("b.test:22"));
    fixture.reply(Approval::Always).await;
    fixture.reply(Approval::Always).await;
    assert_eq!(web.await.unwrap().as_deref(), Ok("a.test"));
    assert_eq!(ssh.await.unwrap().as_deref(), Ok("b.test:22"));
    let rules: Vec<String> = fixture.policy.snapshot().rules.iter().map(ToString::to_string).collect();
    assert_eq!(rules, ["a.test", "b.test:22"]);
}

#[tokio::test(start_paused = true)]
async fn refused_host_is_not_asked_for_again_soon() {
    let mut fixture = fixture();
    let host = "a.test".parse().unwrap();
    let first = fixture.connect("a.test:443");
    fixture.reply(Approval::No).await;
    assert!(first.await.unwrap().is_err());
    assert!(!fixture.gate.can_ask(&host));
    assert_eq!(fixture.connect("a.test:80").await.unwrap(), Err(NotApproved::Refused));
    assert!(fixture.requests.try_recv().is_err());
    tokio::time::sleep(REFUSAL_MEMORY).await;
    assert!(fixture.gate.can_ask(&host));
}

#[tokio::test(start_paused = true)]
async fn missing_reply_is_a_refusal() {
    let mut fixture = fixture();
    let started = Instant::now();
    let waiting = fixture.connect("a.test:443");
    let request = fixture.requests.recv().await.unwrap();
    assert_eq!(waiting.await.unwrap(), Err(NotApproved::Refused));
    assert_eq!(started.elapsed(), REPLY_TIMEOUT);
    drop(request);

    let waiting = fixture.connect("b.test:443");
    drop(fixture.requests.recv().await.unwrap().reply);
    assert_eq!(waiting.await.unwrap(), Err(NotApproved::NotAsked));

    drop(fixture.requests);
    let target = HostPort::parse("c.test:443", None).unwrap();
    assert_eq!(fixture.gate.wait(&fixture.policy, &target).await.err(), Some(NotApproved::NotAsked));
}

#[tokio::test(start_paused = true)]
async fn waiting_connections_and_questions_are_bounded() {
    let mut fixture = fixture();
    let same: Vec<_> = (0..MAX_WAITING - MAX_QUESTIONS).map(|_| fixture.connect("a.test:443")).collect();
    let others: Vec<_> = (0..2 * MAX_WAITING).map(|n| fixture.connect(&format!("{n}.b.test:443"))).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut open = Vec::new();
    while let Ok(request) = fixture.requests.try_recv() {
        open.push(request);
    }
    assert_eq!(open.len(), MAX_QUESTIONS);
    assert!(fixture.gate.state.lock().waiting <= MAX_WAITING);
    for connection in same.into_iter().chain(others) {
        assert!(connection.await.unwrap().is_err());
    }
    let state = fixture.gate.state.lock();
    assert_eq!((state.waiting, state.questions.len(), state.refused.len()), (0, 0, MAX_QUESTIONS));
}

#[tokio::test(start_paused = true)]
async fn question_of_an_ended_connection_is_asked_again() {
    let mut fixture = fixture();
    let first = fixture.connect("a.test:443");
    let _request = fixture.requests.recv().await.unwrap();
    let second = fixture.connect("a.test:443");
    tokio::task::yield_now().await;
    first.abort();
    fixture.reply(Approval::Once).await;
    assert!(second.await.unwrap().is_ok());
}

#[tokio::test]
async fn hosts_that_cannot_be_public_are_never_asked_for() {
    let fixture = fixture();
    for host in ["localhost", "db", "printer.local", "a.localhost", "127.0.0.1", "169.254.169.254", "[::1]", "10.0.0.1"]
    {
        assert!(!fixture.gate.can_ask(&host.parse().unwrap()), "{host}");
    }
    assert!(fixture.gate.can_ask(&"1.1.1.1".parse().unwrap()));
}

#[test]
fn remembered_refusals_are_bounded() {
    let mut state = State::default();
    for n in 0..2 * MAX_REFUSED {
        state.remember_refusal(format!("{n}.test").parse().unwrap());
    }
    assert_eq!(state.refused.len(), MAX_REFUSED);
    assert!(state.is_refused(&format!("{}.test", 2 * MAX_REFUSED - 1).parse().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn added_rule_ends_the_question() {
    let mut fixture = fixture();
    let waiting = fixture.connect("x.a.test:443");
    let request = fixture.requests.recv().await.unwrap();
    fixture.policy.allow("*.a.test".parse().unwrap());
    assert_eq!(waiting.await.unwrap().as_deref(), Ok("*.a.test"));
    assert!(request.reply.is_closed());
}
