//! Streams of hostile servers, for the fuzz target `rpc_front`.

use super::event_parser::{Event, EventParser};

pub use super::connection::fuzzing::{connection, readers};

/// Asserts that the events do not depend on how the stream is split.
pub fn events(bytes: &[u8]) {
    let Some((piece, stream)) = bytes.split_first() else { return };
    let whole = parse(stream, stream.len().max(1));
    assert_eq!(whole, parse(stream, usize::from(*piece).max(1)));
}

fn parse(stream: &[u8], piece: usize) -> Vec<(String, Vec<u8>)> {
    let (mut parser, mut found) = (EventParser::default(), Vec::new());
    for part in stream.chunks(piece) {
        parser.feed(part, |event| match event {
            Event::Message { name, data } => found.push((name.to_owned(), data.bytes().to_vec())),
            Event::TooLarge { .. } => panic!("inputs are smaller than the limit"),
        });
        assert!(parser.buffered_bytes() <= stream.len());
    }
    assert!(parser.last_id().is_none_or(|id| !id.is_empty()));
    found
}
