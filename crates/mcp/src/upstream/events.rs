//! Server-sent events, as they come in pieces. Bounded: an event that is too large is skipped, not held.

use std::time::Duration;

use super::error::UpstreamError;
use super::large_message_slots::Room;
use super::raw::Received;

/// Names and ids beyond this are not believed.
const MAX_FIELD_BYTES: usize = 1024;
/// Of an event that is too large, so much is kept of its beginning.
const KEPT_BYTES: usize = 1024;
const BOM: &[u8] = b"\xef\xbb\xbf";
const DATA: &[u8] = b"data:";

pub(super) enum Event<'a> {
    Message {
        /// `message` unless the server said otherwise.
        name: &'a str,
        data: Received<'static>,
    },
    /// It is over the bound and will be skipped up to its end. Told once, when that is known.
    TooLarge { head: &'a [u8], why: UpstreamError },
}

#[derive(Debug, Default)]
pub(super) struct Parser {
    /// A line that has not ended.
    line: Vec<u8>,
    data: Option<Vec<u8>>,
    /// The line is one of data, and what comes of it goes there at once: the largest part is not held twice.
    is_in_data: bool,
    /// How large the event may become.
    pub(super) room: Room,
    name: String,
    id: Option<String>,
    last_id: Option<String>,
    retry: Option<Duration>,
    after_return: bool,
    is_past_start: bool,
    skipping: Skipping,
}

/// Whether the event is too large, so that only its end matters.
#[derive(Debug, Default, Clone, Copy)]
enum Skipping {
    #[default]
    No,
    /// In a line that has no bytes so far: if it ends so, the event does.
    BlankLine,
    Line,
}

impl Parser {
    /// The id of the last event that had one: where a broken stream is taken up again.
    pub(super) fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// How long the server wants us to wait before that.
    pub(super) fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// Begins a new stream: what was unfinished is forgotten, the place is not.
    pub(super) fn restart(&mut self) {
        *self = Self { last_id: self.last_id.take(), retry: self.retry, ..Self::default() };
    }

    /// Takes the next piece and tells the events that it ends.
    pub(super) fn feed(&mut self, mut chunk: &[u8], mut tell: impl FnMut(Event<'_>)) {
        if self.after_return && !chunk.is_empty() {
            self.after_return = false;
            chunk = chunk.strip_prefix(b"\n").unwrap_or(chunk);
        }
        while !chunk.is_empty() {
            let Some(end) = chunk.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                return self.keep(chunk, &mut tell);
            };
            self.keep(&chunk[..end], &mut tell);
            self.end_line(&mut tell);
            let is_return = chunk[end] == b'\r';
            chunk = &chunk[end + 1..];
            if is_return {
                match chunk.strip_prefix(b"\n") {
                    Some(rest) => chunk = rest,
                    None => self.after_return = chunk.is_empty(),
                }
            }
        }
    }

    /// How much of the event is held.
    pub(super) fn held(&self) -> usize {
        self.line.len() + self.data.as_ref().map_or(0, Vec::len)
    }

    /// Gives an event up that is larger, with so much more, than there is room for.
    pub(super) fn fit(&mut self, more: usize, tell: &mut impl FnMut(Event<'_>)) {
        if self.held() + more <= self.room.limit() + MAX_FIELD_BYTES {
            return;
        }
        let head = self.data.as_deref().unwrap_or(&self.line);
        tell(Event::TooLarge { head: &head[..head.len().min(KEPT_BYTES)], why: self.room.excess() });
        let is_in_line = more > 0 || self.is_in_data || !self.line.is_empty();
        self.restart();
        self.is_past_start = true;
        self.skipping = if is_in_line { Skipping::Line } else { Skipping::BlankLine };
    }

    fn keep(&mut self, part: &[u8], tell: &mut impl FnMut(Event<'_>)) {
        if matches!(self.skipping, Skipping::No) {
            self.fit(part.len(), tell);
        }
        match self.skipping {
            Skipping::No => self.take(part),
            Skipping::BlankLine if !part.is_empty() => self.skipping = Skipping::Line,
            Skipping::BlankLine | Skipping::Line => {}
        }
    }

    fn take(&mut self, part: &[u8]) {
        if let Some(data) = self.data.as_mut().filter(|_| self.is_in_data) {
            self.room.prepare(data);
            return data.extend_from_slice(part);
        }
        self.line.extend_from_slice(part);
        if !self.is_past_start && self.line.len() >= BOM.len() {
            self.is_past_start = true;
            if self.line.starts_with(BOM) {
                self.line.drain(..BOM.len());
            }
        }
        // One byte more tells whether a space follows.
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

    fn end_line(&mut self, tell: &mut impl FnMut(Event<'_>)) {
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
            return self.end_event(tell);
        }
        let colon = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
        let (field, value) = (&line[..colon], line.get(colon + 1..).unwrap_or_default());
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => self.add_data(value),
            b"event" => self.name = text(value).unwrap_or_default(),
            b"id" if !value.contains(&0) => self.id = text(value),
            b"retry" => {
                let millis = text(value).and_then(|value| value.parse().ok());
                self.retry = millis.map(Duration::from_millis).or(self.retry);
            }
            _ => {}
        }
    }

    fn end_event(&mut self, tell: &mut impl FnMut(Event<'_>)) {
        let slot = self.room.leave();
        if let Some(id) = self.id.take() {
            self.last_id = Some(id).filter(|id| !id.is_empty());
        }
        let name = std::mem::take(&mut self.name);
        if let Some(mut data) = self.data.take().filter(|data| !data.is_empty()) {
            let name = if name.is_empty() { "message" } else { &name };
            if slot.is_some() {
                data.shrink_to_fit();
            }
            tell(Event::Message { name, data: Received::own(data, slot) });
        }
    }
}

fn text(value: &[u8]) -> Option<String> {
    let value = std::str::from_utf8(value).ok().filter(|value| value.len() <= MAX_FIELD_BYTES)?;
    Some(value.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::upstream::rpc::MAX_MESSAGE_BYTES;

    fn events(parser: &mut Parser, chunks: &[&[u8]]) -> Vec<(String, String)> {
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
    fn fields_comments_and_several_lines_of_data() {
        let stream = "\u{feff}: hello\nevent: endpoint\ndata: /a\n\ndata:x\ndata:  y\nid: 7\nretry: 250\n\nevent: lost\n\n\n\
                      id: 8\ndata\n\nunknown: 1\ndata: {}\n\ndata: unfinished\n";
        let mut parser = Parser::default();
        let found = events(&mut parser, &[stream.as_bytes()]);
        assert_eq!(found, [("endpoint".to_owned(), "/a".to_owned()), message("x\n y"), message("{}")]);
        assert_eq!((parser.last_id(), parser.retry()), (Some("8"), Some(Duration::from_millis(250))));
    }

    #[test]
    fn an_event_without_end_is_told_once_and_not_held() {
        let mut parser = Parser::default();
        let megabyte = vec![b'x'; 1024 * 1024];
        let mut told = 0;
        parser.feed(b"data: {\"id\":3", |_| told += 1);
        for _ in 0..64 {
            parser.feed(&megabyte, |event| {
                let Event::TooLarge { head, .. } = event else { panic!() };
                assert!(head.starts_with(b"{\"id\":3xx"));
                told += 1;
            });
            assert!(parser.held() <= MAX_MESSAGE_BYTES + MAX_FIELD_BYTES);
        }
        assert_eq!(told, 1);
        assert_eq!((parser.line.capacity(), &parser.data), (0, &None));
        let next = events(&mut parser, &[b"\ndata: still the same\n\ndata: next\n\n"]);
        assert_eq!(next, [message("next")]);
    }

    #[test]
    fn endless_lines_of_data_are_bounded_too() {
        let mut parser = Parser::default();
        let mut told = 0;
        let line = [b"data: ".as_slice(), &[b'x'; 1000], b"\n"].concat();
        for _ in 0..20_000 {
            parser.feed(&line, |_| told += 1);
        }
        assert_eq!((told, parser.data), (1, None));
    }

    proptest! {
        #[test]
        fn pieces_and_line_ends_do_not_matter(
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
            prop_assert_eq!(events(&mut Parser::default(), &chunks), expected);
        }

        #[test]
        fn noise_is_no_harm(noise in prop::collection::vec(any::<u8>(), 0..400)) {
            Parser::default().feed(&noise, |_| {});
        }
    }
}
