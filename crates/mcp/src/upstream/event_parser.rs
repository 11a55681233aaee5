//! An incremental parser for server-sent events. An event over the limit is skipped without being stored.

use std::time::Duration;

use super::error::UpstreamError;
use super::large_message_slots::SizeLimit;
use super::received::ReceivedMessage;

/// Maximum size of event names and ids; longer ones are ignored.
const MAX_FIELD_BYTES: usize = 1024;
/// Number of bytes that are reported of an event over the limit.
const EXCERPT_BYTES: usize = 1024;
const BOM: &[u8] = b"\xef\xbb\xbf";
const DATA: &[u8] = b"data:";

pub(super) enum Event<'a> {
    Message {
        /// `message` unless the server set another name.
        name: &'a str,
        data: ReceivedMessage<'static>,
    },
    /// The event is over the limit and is skipped up to its end. Emitted once, as soon as this is known.
    TooLarge { head: &'a [u8], error: UpstreamError },
}

#[derive(Debug, Default)]
pub(super) struct EventParser {
    /// The current line, without its end.
    line: Vec<u8>,
    data: Option<Vec<u8>>,
    /// The current line is a `data` line, whose bytes go directly to `data`, so that large data is stored only once.
    is_in_data: bool,
    /// The size limit of the current event.
    pub(super) limit: SizeLimit,
    name: String,
    id: Option<String>,
    last_id: Option<String>,
    retry: Option<Duration>,
    is_after_return: bool,
    is_past_start: bool,
    skipping: Skipping,
}

/// Whether the current event is skipped because it is too large.
#[derive(Debug, Default, Clone, Copy)]
enum Skipping {
    #[default]
    No,
    /// The current line has no bytes so far; if it stays blank, it ends the event.
    BlankLine,
    Line,
}

impl EventParser {
    /// The id of the last event that had one. A broken stream is resumed after it.
    pub(super) fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// The delay before a reconnection that the server requested.
    pub(super) fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// Prepares for a new stream: drops the unfinished event, and retains the last id and the delay.
    pub(super) fn reset(&mut self) {
        *self = Self { last_id: self.last_id.take(), retry: self.retry, ..Self::default() };
    }

    /// Parses the next chunk and emits the events that it completes.
    pub(super) fn feed(&mut self, mut chunk: &[u8], mut emit: impl FnMut(Event<'_>)) {
        if self.is_after_return && !chunk.is_empty() {
            self.is_after_return = false;
            chunk = chunk.strip_prefix(b"\n").unwrap_or(chunk);
        }
        while !chunk.is_empty() {
            let Some(end) = chunk.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                return self.append(chunk, &mut emit);
            };
            self.append(&chunk[..end], &mut emit);
            self.end_line(&mut emit);
            let is_return = chunk[end] == b'\r';
            chunk = &chunk[end + 1..];
            if is_return {
                match chunk.strip_prefix(b"\n") {
                    Some(rest) => chunk = rest,
                    None => self.is_after_return = chunk.is_empty(),
                }
            }
        }
    }

    /// The number of bytes stored of the current event.
    pub(super) fn buffered_bytes(&self) -> usize {
        self.line.len() + self.data.as_ref().map_or(0, Vec::len)
    }

    /// Starts to skip the current event if `more` bytes would exceed its limit.
    pub(super) fn check_limit(&mut self, more: usize, emit: &mut impl FnMut(Event<'_>)) {
        if self.buffered_bytes() + more <= self.limit.max_bytes() + MAX_FIELD_BYTES {
            return;
        }
        let head = self.data.as_deref().unwrap_or(&self.line);
        emit(Event::TooLarge { head: &head[..head.len().min(EXCERPT_BYTES)], error: self.limit.error() });
        let is_in_line = more > 0 || self.is_in_data || !self.line.is_empty();
        self.reset();
        self.is_past_start = true;
        self.skipping = if is_in_line { Skipping::Line } else { Skipping::BlankLine };
    }

    fn append(&mut self, part: &[u8], emit: &mut impl FnMut(Event<'_>)) {
        if matches!(self.skipping, Skipping::No) {
            self.check_limit(part.len(), emit);
        }
        match self.skipping {
            Skipping::No => self.append_to_event(part),
            Skipping::BlankLine if !part.is_empty() => self.skipping = Skipping::Line,
            Skipping::BlankLine | Skipping::Line => {}
        }
    }

    fn append_to_event(&mut self, part: &[u8]) {
        if let Some(data) = self.data.as_mut().filter(|_| self.is_in_data) {
            self.limit.reserve(data);
            return data.extend_from_slice(part);
        }
        self.line.extend_from_slice(part);
        if !self.is_past_start && self.line.len() >= BOM.len() {
            self.is_past_start = true;
            if self.line.starts_with(BOM) {
                self.line.drain(..BOM.len());
            }
        }
        // The byte after the colon is needed too, since one space is stripped.
        if self.line.len() > DATA.len() && self.line.starts_with(DATA) {
            let line = std::mem::take(&mut self.line);
            let value = &line[DATA.len()..];
            self.add_data(value.strip_prefix(b" ").unwrap_or(value));
            self.is_in_data = true;
        }
    }

    fn add_data(&mut self, value: &[u8]) {
        match &mut self.data {
            Some(data) => {
                data.push(b'\n');
                data.extend_from_slice(value);
            }
            None => self.data = Some(value.to_vec()),
        }
    }

    fn end_line(&mut self, emit: &mut impl FnMut(Event<'_>)) {
        match self.skipping {
            Skipping::No => {}
            Skipping::BlankLine => return self.skipping = Skipping::No,
            Skipping::Line => return self.skipping = Skipping::BlankLine,
        }
        self.is_past_start = true;
        if std::mem::take(&mut self.is_in_data) {
            return;
        }
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return self.end_event(emit);
        }
        let colon = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
        let (field, value) = (&line[..colon], line.get(colon + 1..).unwrap_or_default());
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => self.add_data(value),
            b"event" => self.name = field_text(value).unwrap_or_default(),
            b"id" if !value.contains(&0) => self.id = field_text(value),
            b"retry" => {
                let millis = field_text(value).and_then(|value| value.parse().ok());
                self.retry = millis.map(Duration::from_millis).or(self.retry);
            }
            _ => {}
        }
    }

    fn end_event(&mut self, emit: &mut impl FnMut(Event<'_>)) {
        let slot = self.limit.take_slot();
        if let Some(id) = self.id.take() {
            self.last_id = Some(id).filter(|id| !id.is_empty());
        }
        let name = std::mem::take(&mut self.name);
        if let Some(mut data) = self.data.take().filter(|data| !data.is_empty()) {
            let name = if name.is_empty() { "message" } else { &name };
            if slot.is_some() {
                data.shrink_to_fit();
            }
            emit(Event::Message { name, data: ReceivedMessage::owned(data, slot) });
        }
    }
}

fn field_text(value: &[u8]) -> Option<String> {
    let value = std::str::from_utf8(value).ok().filter(|value| value.len() <= MAX_FIELD_BYTES)?;
    Some(value.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::upstream::connection::MAX_MESSAGE_BYTES;

    fn events(parser: &mut EventParser, chunks: &[&[u8]]) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for chunk in chunks {
            parser.feed(chunk, |event| match event {
                Event::Message { name, data } => {
                    found.push((name.to_owned(), String::from_utf8(data.bytes().to_vec()).unwrap()));
                }
                Event::TooLarge { .. } => found.push(("too large".to_owned(), String::new())),
            });
        }
        found
    }

    fn message(data: &str) -> (String, String) {
        ("message".to_owned(), data.to_owned())
    }

    #[test]
    fn fields_comments_and_multi_line_data_are_parsed() {
        let stream = "\u{feff}: hello\nevent: endpoint\ndata: /a\n\ndata:x\ndata:  y\nid: 7\nretry: 250\n\nevent: lost\n\n\n\
                      id: 8\ndata\n\nunknown: 1\ndata: {}\n\ndata: unfinished\n";
        let mut parser = EventParser::default();
        let found = events(&mut parser, &[stream.as_bytes()]);
        assert_eq!(found, [("endpoint".to_owned(), "/a".to_owned()), message("x\n y"), message("{}")]);
        assert_eq!((parser.last_id(), parser.retry()), (Some("8"), Some(Duration::from_millis(250))));
    }

    #[test]
    fn endless_event_is_reported_once_and_not_stored() {
        let mut parser = EventParser::default();
        let megabyte = vec![b'x'; 1024 * 1024];
        let mut count = 0;
        parser.feed(b"data: {\"id\":3", |_| count += 1);
        for _ in 0..64 {
            parser.feed(&megabyte, |event| {
                let Event::TooLarge { head, .. } = event else { panic!() };
                assert!(head.starts_with(b"{\"id\":3xx"));
                count += 1;
            });
            assert!(parser.buffered_bytes() <= MAX_MESSAGE_BYTES + MAX_FIELD_BYTES);
        }
        assert_eq!(count, 1);
        assert_eq!((parser.line.capacity(), &parser.data), (0, &None));
        let next = events(&mut parser, &[b"\ndata: still the same\n\ndata: next\n\n"]);
        assert_eq!(next, [message("next")]);
    }

    #[test]
    fn endless_data_lines_are_limited() {
        let mut parser = EventParser::default();
        let mut count = 0;
        let line = [b"data: ".as_slice(), &[b'x'; 1000], b"\n"].concat();
        for _ in 0..20_000 {
            parser.feed(&line, |_| count += 1);
        }
        assert_eq!((count, parser.data), (1, None));
    }

    proptest! {
        #[test]
        fn chunk_borders_and_line_ends_do_not_matter(
            datas in prop::collection::vec("[^\r\n\u{0}]{1,30}", 1..8),
            end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
            cuts in prop::collection::vec(1_usize..7, 1..40),
        ) {
            let stream = datas.iter().fold(String::new(), |stream, data| stream + &format!("id: 1{end}data: {data}{end}: c{end}{end}"));
            let mut rest = stream.as_bytes();
            let mut chunks = Vec::new();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break }
                let (chunk, after) = rest.split_at((*cut).min(rest.len()));
                chunks.push(chunk);
                rest = after;
            }
            let expected: Vec<_> = datas.iter().map(|data| message(data)).collect();
            prop_assert_eq!(events(&mut EventParser::default(), &chunks), expected);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(noise in prop::collection::vec(any::<u8>(), 0..400)) {
            EventParser::default().feed(&noise, |_| {});
        }
    }
}
