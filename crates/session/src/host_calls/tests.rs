use super::*;

fn request(number: u64, params: &str) -> HostRequest {
    let params = RawValue::from_string(params.to_owned()).unwrap();
    HostRequest { cell: 1, number, method: "m".into(), params }
}

fn calls() -> (Calls, mpsc::Receiver<Asked>) {
    let (sender, receiver) = mpsc::channel(2 * MOST_OPEN_CALLS);
    let ask = Arc::new(move |asked| sender.try_send(asked).unwrap());
    (Calls::new(Language::Python, Some(HostCalls { preface: None, ask })), receiver)
}

fn take_all(outbox: &mut Outbox) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !outbox.is_empty() {
        let part = outbox.front()[..outbox.front().len().div_ceil(2)].to_vec();
        outbox.advance(part.len());
        bytes.extend(part);
    }
    bytes
}

#[tokio::test]
async fn an_answer_goes_to_its_call_whatever_its_size() {
    let (mut calls, mut asked) = calls();
    let (mut outbox, mut last) = (Outbox::default(), 0);
    for (number, size) in [(1, 10), (2, 1 << 20)] {
        calls.take(request(number, "{}"), &mut last, &mut outbox);
        let Some(Asked::Call(call)) = asked.recv().await else { panic!("no call") };
        let json = format!("\"{}\"", "x".repeat(size));
        call.reply.send(HostResponse::Result(Box::new(json.clone().into_bytes()))).await;
        let (of, answer) = calls.answer().await;
        outbox.answer(Language::Python, of, answer);
        let sent = take_all(&mut outbox);
        assert_eq!(&sent[..4], u32::try_from(sent.len() - 4).unwrap().to_be_bytes());
        assert_eq!(&sent[4..12], ((1 << 63) | number).to_be_bytes());
        assert_eq!(sent[12..], *format!("{{\"result\":{json}}}").as_bytes());
    }
}

#[test]
fn a_number_is_taken_once() {
    let (mut calls, mut asked) = calls();
    let (mut outbox, mut last) = (Outbox::default(), 0);
    for number in [5, 5, 3, 6] {
        calls.take(request(number, "{}"), &mut last, &mut outbox);
    }
    let kinds: Vec<bool> =
        std::iter::from_fn(|| asked.try_recv().ok()).map(|it| matches!(it, Asked::Forged(_))).collect();
    assert_eq!(kinds, [false, true, true, false]);
    assert!(outbox.is_empty());
}

#[test]
fn what_is_open_is_bounded_in_number_and_size() {
    let (mut flood, _asked) = calls();
    let (mut outbox, mut last) = (Outbox::default(), 0);
    for number in 1..=MOST_OPEN_CALLS as u64 {
        flood.take(request(number, "{}"), &mut last, &mut outbox);
    }
    assert!(outbox.is_empty());
    flood.take(request(last + 1, "{}"), &mut last, &mut outbox);
    assert!(String::from_utf8_lossy(&take_all(&mut outbox)).contains("too many calls at once"));
    let (mut heavy, _asked) = calls();
    let large = format!("\"{}\"", "x".repeat(MOST_OPEN_BYTES / 2));
    heavy.take(request(last + 1, &large), &mut last, &mut outbox);
    assert!(outbox.is_empty());
    heavy.take(request(last + 1, &large), &mut last, &mut outbox);
    assert!(String::from_utf8_lossy(&take_all(&mut outbox)).contains("too large together"));
    heavy.withdraw(last - 1);
    heavy.take(request(last + 1, &large), &mut last, &mut outbox);
    assert!(outbox.is_empty());
}

#[tokio::test]
async fn what_is_open_at_the_end_is_cancelled_and_told() {
    let (mut calls, mut asked) = calls();
    let (mut outbox, mut last) = (Outbox::default(), 0);
    for number in 1..=4 {
        calls.take(request(number, "{}"), &mut last, &mut outbox);
    }
    let mut taken = Vec::new();
    while let Ok(Asked::Call(call)) = asked.try_recv() {
        call.note.describe("github", &format!("tool_{}", taken.len() + 1));
        taken.push(call);
    }
    let tokens: Vec<CancellationToken> = taken.iter().map(|call| call.cancel.clone()).collect();
    // Of its own accord; answered; open to the end.
    calls.withdraw(1);
    taken.remove(2).reply.send(HostResponse::result(&json!(1))).await;
    calls.answer().await;
    let mut told: Vec<String> = calls.end().iter().filter_map(|note| Some(note.about()?.1.to_owned())).collect();
    told.sort();
    assert_eq!(told, ["tool_2", "tool_4"]);
    assert_eq!(tokens.iter().map(CancellationToken::is_cancelled).collect::<Vec<_>>(), [true, true, false, true]);
}

#[test]
fn when_its_time_is_up_code_can_ask_no_more() {
    let (mut calls, mut asked) = calls();
    let (mut outbox, mut last) = (Outbox::default(), 0);
    calls.take(request(1, "{}"), &mut last, &mut outbox);
    calls.give_up();
    assert!(outbox.is_empty());
    calls.take(request(2, "{}"), &mut last, &mut outbox);
    let sent = String::from_utf8_lossy(&take_all(&mut outbox)).into_owned();
    assert_eq!(sent.matches("\"kind\":\"cancelled\"").count(), 1, "{sent}");
    let Ok(Asked::Call(call)) = asked.try_recv() else { panic!("no call") };
    assert!(call.cancel.is_cancelled() && asked.try_recv().is_err());
    assert_eq!(calls.end().len(), 1);
}

#[test]
fn without_anybody_to_ask_a_call_is_refused() {
    let mut calls = Calls::new(Language::Node, None);
    let (mut outbox, mut last) = (Outbox::default(), 0);
    calls.take(request(1, "{}"), &mut last, &mut outbox);
    let sent = take_all(&mut outbox);
    let answer: serde_json::Value = serde_json::from_slice(&sent[4..]).unwrap();
    assert_eq!(
        (&answer["type"], &answer["call"], &answer["error"]["kind"]),
        (&json!("answer"), &json!(1), &json!("refused"))
    );
}
