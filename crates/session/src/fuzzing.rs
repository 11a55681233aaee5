//! Entry point of the fuzz target `kernel_messages`.

use std::sync::{Arc, Mutex};

use ringfence_core::Language;
use ringfence_guest::protocol::{encode_frame, next_message, skip_past_done};
use ringfence_guest::{Display, KernelBuffer, MAX_DISPLAY_ITEMS, Message};

use crate::host_calls::{HostCallEvent, HostCalls, MAX_OPEN_CALLS, OpenCalls, Outbox};

/// The cell that the host waits for.
const CELL: u64 = 7;

/// A longer shell line is refused as soon as this much has arrived, so the result would depend on how input is split.
const MAX_BYTES: usize = 4096;

/// As in `ringfence_guest::Display`.
const MAX_DISPLAY_BYTES: usize = 8 << 20;

/// With this bit of the first byte, each line is a frame, and its length is right.
const LINES: u8 = 0x80;

/// Reads what a hostile kernel sends. The first byte selects the language, the second the size of the pieces.
pub fn kernel_messages(data: &[u8]) {
    let [first, piece, bytes @ ..] = data else { return };
    let language = [Language::Python, Language::Node, Language::Bash][usize::from(first & !LINES) % 3];
    let bytes = &bytes[..bytes.len().min(MAX_BYTES)];
    let stream = match first & LINES {
        LINES if language != Language::Bash => {
            bytes.split(|byte| *byte == b'\n').flat_map(|line| encode_frame(&[line])).collect()
        }
        _ => bytes.to_vec(),
    };
    let stream = stream.as_slice();
    let whole = receive(language, stream, stream.len().max(1));
    let in_pieces = receive(language, stream, usize::from(*piece).max(1));
    assert_eq!(whole, in_pieces, "the result depends on the size of the pieces");
    resynchronize(language, stream);
}

/// Handles every message as a session does, and returns them as text.
fn receive(language: Language, stream: &[u8], piece: usize) -> Vec<String> {
    let events = Arc::new(Mutex::new(Vec::new()));
    let on_event = {
        let events = Arc::clone(&events);
        Arc::new(move |event: HostCallEvent| events.lock().expect("one thread").push(event))
    };
    let mut calls = OpenCalls::new(language, Some(HostCalls { preface: None, on_event }));
    let (mut inbox, mut display, mut outbox) = (KernelBuffer::default(), Display::default(), Outbox::default());
    let (mut last_number, mut seen) = (0, Vec::new());
    for part in stream.chunks(piece) {
        inbox.reserve(part.len()).extend_from_slice(part);
        loop {
            let message = match next_message(language, CELL, &mut inbox) {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => {
                    seen.push(format!("error: {error}"));
                    return seen;
                }
            };
            seen.push(format!("{message:?}"));
            match message {
                Message::Display(items) => display.add(items),
                Message::Call(request) => calls.handle_call(request, &mut last_number, &mut outbox),
                Message::Cancel(number) => drop(calls.withdraw(number)),
                Message::Done(_) => inbox.reset_ignored(),
                Message::Ready => {}
            }
        }
    }
    assert!(inbox.unread().len() <= stream.len());
    assert!(display.items.len() <= MAX_DISPLAY_ITEMS);
    let shown = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    assert!(display.items.iter().map(|item| item.mime.len() + shown(&item.data)).sum::<usize>() <= MAX_DISPLAY_BYTES);
    calls.cancel_all();
    assert!(calls.finish().len() <= MAX_OPEN_CALLS);
    let mut numbers = Vec::new();
    for event in events.lock().expect("one thread").iter() {
        if let HostCallEvent::Call(call) = event {
            assert!(call.cancel.is_cancelled());
            numbers.push(format!("{:?}", call.responder));
        }
    }
    numbers.sort();
    assert!(numbers.windows(2).all(|two| two[0] != two[1]), "a number was accepted twice");
    seen
}

/// Finds the result of a cell in a stream that is adopted in the middle.
fn resynchronize(language: Language, stream: &[u8]) {
    let mut inbox = KernelBuffer::from(stream.to_vec());
    while let Ok(true) = skip_past_done(language, CELL, &mut inbox) {
        assert!(stream.ends_with(inbox.unread()));
    }
}
