use super::*;

fn request(number: u64, params: &str) -> HostRequest {
    let params = RawValue::from_string(params.to_owned()).unwrap();
    HostRequest { cell: 1, number, method: "m".into(), params }
}

fn calls() -> (OpenCalls, mpsc::Receiver<HostCallEvent>) {
    let (sender, receiver) = mpsc::channel(2 * MAX_OPEN_CALLS);
    let on_event = Arc::new(move |event| sender.try_send(event).unwrap());
    (OpenCalls::new(Language::Python, Some(HostCalls { preface: None, on_event })), receiver)
}

fn send_all(outbox: &mut Outbox) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !outbox.is_empty() {
        let part = outbox.front()[..outbox.front().len().div_ceil(2)].to_vec();
        outbox.advance(part.len());
        bytes.extend(part);
    }
    bytes
}

#[tokio::test]
async fn responses_of_any_size_reach_their_calls() {
    let (mut calls, mut events) = calls();
    let (mut outbox, mut last) = (Outbox::default(), 0);
    for (number, size) in [(1, 10), (2, 1 << 20)] {
        calls.handle_call(request(number, "{}"), &mut last, &mut outbox);
        let Some(HostCallEvent::Call(call)) = events.recv().await else { panic!("no call") };
        let json = format!("\"{}\"", "x".repeat(size));
        call.responder.send(HostResponse::Result(Box::new(json.clone().into_bytes()))).await;
        let (number, response) = calls.next_response().await;
        outbox.add_response(Language::Python, number, response);
        let sent = send_all(&mut outbox);
        assert_eq!(&sent[..4], u32::try_from(sent.len() - 4).unwrap().to_be_bytes());
        assert_eq!(&sent[4..12], ((1 << 63) | number).to_be_bytes());
        assert_eq!(sent[12..], *format!("{{\"result\":{json}}}").as_bytes());
    }
}

#[test]
fn number_is_accepted_once() {
    let (mut calls, mut events) = calls();
    let (mut outbox, mut last) = (Outbox::default(), 0);
    for number in [5, 5, 3, 6] {
        calls.handle_call(request(number, "{}"), &mut last, &mut outbox);
    }
    let kinds: Vec<bool> =
        std::iter::from_fn(|| events.try_recv().ok()).map(|event| matches!(event, HostCallEvent::Forged(_))).collect();
    assert_eq!(kinds, [false, true, true, false]);
    assert!(outbox.is_empty());
}

#[test]
fn open_calls_are_limited_in_number_and_size() {
    let (mut flood, _asked) = calls();
    let (mut outbox, mut last) = (Outbox::default(), 0);
    for number in 1..=MAX_OPEN_CALLS as u64 {
        flood.handle_call(request(number, "{}"), &mut last, &mut outbox);
    }
    assert!(outbox.is_empty());
    flood.handle_call(request(last + 1, "{}"), &mut last, &mut outbox);
    assert!(String::from_utf8_lossy(&send_all(&mut outbox)).contains("too many concurrent calls"));
    let (mut heavy, _asked) = calls();
    let large = format!("\"{}\"", "x".repeat(MAX_OPEN_BYTES / 2));
    heavy.handle_call(request(last + 1, &large), &mut last, &mut outbox);
    assert!(outbox.is_empty());
    heavy.handle_call(request(last + 1, &large), &mut last, &mut outbox);
    assert!(String::from_utf8_lossy(&send_all(&mut outbox)).contains("together are too large"));
    heavy.withdraw(last - 1);
    heavy.handle_call(request(last + 1, &large), &mut last, &mut outbox);
    assert!(outbox.is_empty());
}

#[tokio::test]
async fn open_calls_at_the_end_are_cancelled_and_reported() {
    let (mut calls, mut events) = calls();
    let (mut outbox, mut last) = (Outbox::default(), 0);
    for number in 1..=4 {
        calls.handle_call(request(number, "{}"), &mut last, &mut outbox);
    }
    let mut received = Vec::new();
    while let Ok(HostCallEvent::Call(call)) = events.try_recv() {
        call.note.describe("github", &format!("tool_{}", received.len() + 1));
        received.push(call);
    }
    let tokens: Vec<CancellationToken> = received.iter().map(|call| call.cancel.clone()).collect();
    // The first is withdrawn, the third gets a response, the others are open at the end.
    calls.withdraw(1);
    received.remove(2).responder.send(HostResponse::result(&json!(1))).await;
    calls.next_response().await;
    let notes = calls.finish();
    let mut open: Vec<String> = notes.iter().filter_map(|note| Some(note.target()?.1.to_owned())).collect();
    open.sort();
    assert_eq!(open, ["tool_2", "tool_4"]);
    assert_eq!(tokens.iter().map(CancellationToken::is_cancelled).collect::<Vec<_>>(), [true, true, false, true]);
}

#[test]
fn calls_after_the_timeout_are_refused() {
    let (mut calls, mut events) = calls();
    let (mut outbox, mut last) = (Outbox::default(), 0);
    calls.handle_call(request(1, "{}"), &mut last, &mut outbox);
    calls.cancel_all();
    assert!(outbox.is_empty());
    calls.handle_call(request(2, "{}"), &mut last, &mut outbox);
    let sent = String::from_utf8_lossy(&send_all(&mut outbox)).into_owned();
    assert_eq!(sent.matches("\"kind\":\"cancelled\"").count(), 1, "{sent}");
    let Ok(HostCallEvent::Call(call)) = events.try_recv() else { panic!("no call") };
    assert!(call.cancel.is_cancelled() && events.try_recv().is_err());
    assert_eq!(calls.finish().len(), 1);
}

#[test]
fn calls_are_refused_without_a_handler() {
    let mut calls = OpenCalls::new(Language::Node, None);
    let (mut outbox, mut last) = (Outbox::default(), 0);
    calls.handle_call(request(1, "{}"), &mut last, &mut outbox);
    let sent = send_all(&mut outbox);
    let response: serde_json::Value = serde_json::from_slice(&sent[4..]).unwrap();
    assert_eq!(
        (&response["type"], &response["call"], &response["error"]["kind"]),
        (&json!("answer"), &json!(1), &json!("refused"))
    );
}
