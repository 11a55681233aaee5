use proptest::collection::vec;
use proptest::prelude::{Just, any, prop_assert_eq, prop_oneof, proptest};

use ringfence_core::Language;

use super::*;
use crate::kernel_buffer::KernelBuffer;

fn frame(text: &str) -> Vec<u8> {
    [&u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
}

#[test]
fn messages_of_other_cells_and_malformed_ones_are_skipped() {
    let mut received = Vec::new();
    for text in [
        r#"{"type":"done","id":6,"status":"ok","result":"stale"}"#,
        r#"{"type":"nonsense"}"#,
        "not json",
        r#"{"type":"done","id":7,"status":"ok","result":"42","error":null}"#,
    ] {
        received.extend(frame(text));
    }
    received.extend([0, 0]);
    let mut received = KernelBuffer::from(received);
    let done = Done { result: Some("42".into()), ..Done::default() };
    assert_eq!(next_message(Language::Python, 7, &mut received), Ok(Some(Message::Done(done))));
    assert_eq!(next_message(Language::Python, 7, &mut received), Ok(None));
    assert_eq!(received.unread(), [0, 0], "an incomplete frame stays in the buffer");
}

#[test]
fn stream_is_taken_over_in_the_middle_of_a_frame() {
    let mut received = KernelBuffer::from(br#"lf of a frame "id":7,"status":"ok"}"#.to_vec());
    received.reserve(0).extend(frame(r#"{"type":"display","id":7,"items":[]}"#));
    assert_eq!(skip_past_done(Language::Python, 9, &mut received), Ok(false));
    let done = frame(r#"{"type":"done","id":9,"status":"ok","result":null,"error":null}"#);
    received.reserve(0).extend(&done[..done.len() - 5]);
    assert_eq!(skip_past_done(Language::Python, 9, &mut received), Ok(false), "the message is incomplete");
    received.reserve(0).extend(&done[done.len() - 5..]);
    assert_eq!(skip_past_done(Language::Python, 9, &mut received), Ok(true));
    assert!(received.unread().is_empty());
    let mut received = KernelBuffer::from(b"0\n8 1".to_vec());
    assert_eq!(skip_past_done(Language::Bash, 9, &mut received), Ok(false));
    received.reserve(0).extend(b"30\n9 0\n");
    assert_eq!(skip_past_done(Language::Bash, 9, &mut received), Ok(true));
    assert!(received.unread().is_empty());
}

#[test]
fn oversized_frame_is_an_error() {
    assert!(next_message(Language::Python, 1, &mut vec![0xff; 8].into()).is_err());
    assert!(next_message(Language::Bash, 1, &mut vec![b'x'; 5000].into()).is_err());
    let oversized = [b"\xff\xff\xff\xff{\"type\":\"done\",\"id\":9,", [b' '; 99].as_slice()].concat();
    assert!(skip_past_done(Language::Node, 9, &mut oversized.into()).is_err());
}

#[test]
fn exit_is_an_error_unless_its_code_is_zero() {
    let exit = |message: &str| {
        let done = format!(
            r#"{{"type":"done","id":7,"status":"exited","error":{{"name":"SystemExit","message":{message}}}}}"#
        );
        match next_message(Language::Python, 7, &mut frame(&done).into()) {
            Ok(Some(Message::Done(done))) => (done.exit_code, done.error.map(|error| error.message)),
            unexpected => panic!("{unexpected:?}"),
        }
    };
    assert_eq!(exit("\"0\""), (Some(0), None));
    assert_eq!(exit("\"3\""), (Some(3), Some("3".into())));
    assert_eq!(exit("\"no such file\""), (Some(1), Some("no such file".into())));
    assert_eq!(exit("\"0\",\"code\":1"), (Some(1), Some("0".into())));
    assert_eq!(exit("\"False\",\"code\":0"), (Some(0), None));
}

#[test]
fn too_many_malformed_messages_are_an_error() {
    let mut received = KernelBuffer::from(frame("").repeat(1000));
    assert_eq!(next_message(Language::Python, 1, &mut received), Ok(None));
    received.reserve(0).extend(frame(""));
    assert!(next_message(Language::Python, 1, &mut received).is_err());
    received.reset_ignored();
    assert_eq!(next_message(Language::Python, 1, &mut received), Ok(None));
}

#[test]
fn cell_is_encoded_for_its_kernel() {
    assert_eq!(encode_cell(Language::Python, 7, "ü"), b"\0\0\0\x0a\0\0\0\0\0\0\0\x07\xc3\xbc");
    let encoded = encode_cell(Language::Node, 7, "1");
    assert_eq!(encoded, frame(r#"{"type":"execute","id":7,"code":"1"}"#));
    assert_eq!(encode_rich_cell(Language::Node, 7, "1"), encoded);
    assert_eq!(encode_rich_cell(Language::Python, 7, ""), b"\0\0\0\x08\x10\0\0\0\0\0\0\x07");
}

#[test]
fn call_of_another_cell_is_returned_and_cancel_is_not() {
    let mut received = frame(r#"{"type":"call","id":6,"call":3,"method":"tools/call","params":{"b":1, "a":2}}"#);
    received.extend(frame(r#"{"type":"call","id":7,"call":-1,"method":"x"}"#));
    received.extend(frame(r#"{"type":"cancel","id":6,"call":3}"#));
    received.extend(frame(r#"{"type":"cancel","id":7,"call":4}"#));
    let mut received = KernelBuffer::from(received);
    let Ok(Some(Message::Call(call))) = next_message(Language::Python, 7, &mut received) else { panic!("no call") };
    assert_eq!((call.cell, call.number, call.params.get()), (6, 3, r#"{"b":1, "a":2}"#));
    assert_eq!(next_message(Language::Python, 7, &mut received), Ok(Some(Message::Cancel(4))));
}

#[test]
fn preface_is_encoded_for_its_kernel() {
    assert_eq!(encode_preface(Language::Node, r#"{"servers":[]}"#), frame(r#"{"type":"preface","servers":[]}"#));
    assert_eq!(encode_preface(Language::Python, "{}"), b"\0\0\0\x0a\x40\0\0\0\0\0\0\0{}");
    assert!(encode_preface(Language::Bash, "{}").is_empty());
}

#[test]
fn bash_messages_are_lines() {
    let mut received = KernelBuffer::from(b"ready 5.2\n4 0\n5 3\n".to_vec());
    assert_eq!(next_message(Language::Bash, 5, &mut received), Ok(Some(Message::Ready)));
    let done = Done { exit_code: Some(3), ..Done::default() };
    assert_eq!(next_message(Language::Bash, 5, &mut received), Ok(Some(Message::Done(done))));
    assert_eq!(encode_cell(Language::Bash, 5, "echo ü\0"), "5 7\necho ü".as_bytes());
}

/// Returns all messages of a stream that arrives in pieces, and whether it ends with an error.
fn receive(language: Language, pieces: impl Iterator<Item = Vec<u8>>) -> (Vec<String>, bool) {
    let (mut buffer, mut messages) = (KernelBuffer::default(), Vec::new());
    for piece in pieces {
        buffer.reserve(piece.len()).extend(piece);
        loop {
            match next_message(language, 7, &mut buffer) {
                Ok(Some(message)) => messages.push(format!("{message:?}")),
                Ok(None) => break,
                Err(_) => return (messages, true),
            }
        }
    }
    (messages, false)
}

proptest! {
    #[test]
    fn messages_do_not_depend_on_the_size_of_pieces(
        frames in vec(prop_oneof![
            Just(frame(r#"{"type":"done","id":7,"status":"ok","result":"1"}"#)),
            Just(frame(r#"{"type":"display","id":7,"items":[{"mime":"a/b","data":"x"}]}"#)),
            Just(frame(r#"{"type":"call","id":7,"call":1,"method":"x"}"#)),
            Just(b"7 0\n".to_vec()),
            vec(any::<u8>(), 0..12),
        ], 0..12),
        size in 1_usize..40,
    ) {
        let stream = frames.concat();
        for language in [Language::Python, Language::Node, Language::Bash] {
            let at_once = receive(language, std::iter::once(stream.clone()));
            prop_assert_eq!(receive(language, stream.chunks(size).map(<[u8]>::to_vec)), at_once);
            for id in [7, u64::MAX] {
                let _ = skip_past_done(language, id, &mut stream.clone().into());
            }
        }
    }
}
