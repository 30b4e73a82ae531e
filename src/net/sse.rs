//! Decodes a stream of server-sent events (WHATWG HTML, section 9.2.6). Chunks may end anywhere,
//! even inside a character. The memory for an incomplete event is limited.

use reqwest::header::{CONTENT_TYPE, HeaderMap};

use crate::task::text::from_bytes;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SseEvent {
    /// The name of the event; empty if the event has none.
    pub(crate) name: String,
    /// The values of the `data` lines, joined by line feeds.
    pub(crate) data: String,
}

/// Whether the headers of a response declare that its body is a stream of events.
pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let kind = kind.unwrap_or_default().trim_start().to_ascii_lowercase();
    kind.starts_with("text/event-stream")
}

/// The error for an incomplete event that exceeds the decoder's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

#[derive(Debug, Default)]
pub(crate) struct Decoder {
    line: Vec<u8>,
    name: Vec<u8>,
    data: Vec<u8>,
    /// Whether the event has a `data` field, which may be empty.
    has_data: bool,
    /// Whether the last byte was a CR. A following LF then belongs to the same line end.
    after_cr: bool,
    /// Whether the first line is still incomplete. A byte order mark is skipped at the start of the
    /// first line.
    first: bool,
    max_bytes: usize,
}

impl Decoder {
    /// Returns a decoder that holds at most `max_bytes` bytes of an event: its name, its data and
    /// its incomplete line.
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self {
            first: true,
            max_bytes,
            ..Self::default()
        }
    }

    /// Adds bytes of the stream, and returns the events that they complete. An empty line completes
    /// an event.
    ///
    /// # Errors
    /// Fails if an incomplete event exceeds the decoder's limit.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<SseEvent>, TooLong> {
        let mut events = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            if std::mem::take(&mut self.after_cr)
                && let Some(after) = rest.strip_prefix(b"\n")
            {
                rest = after;
                continue;
            }
            let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let (line_part, after) = rest.split_at(end.unwrap_or(rest.len()));
            self.line.extend_from_slice(line_part);
            if self.line.len() + self.name.len() + self.data.len() > self.max_bytes {
                return Err(TooLong);
            }
            let Some((ending, after)) = after.split_first() else {
                break;
            };
            self.after_cr = *ending == b'\r';
            rest = after;
            events.extend(self.end_line());
        }
        Ok(events)
    }

    /// Ends the stream. Returns its last event if the empty line that completes the event is
    /// missing: some endpoints leave this line out.
    pub(crate) fn finish(&mut self) -> Option<SseEvent> {
        // The first call ends an incomplete line, and the second call completes the event.
        self.end_line().or_else(|| self.end_line())
    }

    fn end_line(&mut self) -> Option<SseEvent> {
        let mut line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.first) && line.starts_with(b"\xEF\xBB\xBF") {
            line.drain(..3);
        }
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            let data = std::mem::take(&mut self.data);
            let has_data = std::mem::take(&mut self.has_data);
            return has_data.then(|| SseEvent {
                name: from_bytes(&name),
                data: from_bytes(&data),
            });
        }
        let colon = line
            .iter()
            .position(|byte| *byte == b':')
            .unwrap_or(line.len());
        let (field, value) = line.split_at(colon);
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"event" => self.name = value.to_vec(),
            b"data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
            }
            // `id`, `retry`, comments and unknown fields are ignored.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "\u{FEFF}: hello\r\nevent: a\ndata: é1\ndata:2\n\ndata\r\rretry: 5\nid: 7\n\nevent: b\ndata:  x\r\n\r\ndata: lost";

    fn events(chunks: &[&[u8]]) -> Vec<(String, String)> {
        let mut decoder = Decoder::new(100);
        let events = chunks.iter().flat_map(|chunk| decoder.push(chunk).unwrap());
        events.map(|event| (event.name, event.data)).collect()
    }

    #[test]
    fn events_are_the_same_wherever_the_stream_is_cut() {
        let whole = events(&[STREAM.as_bytes()]);
        let expected = [("a", "é1\n2"), ("", ""), ("b", " x")];
        assert_eq!(
            whole,
            expected.map(|(name, data)| (name.to_owned(), data.to_owned()))
        );
        for cut in 0..STREAM.len() {
            let (before, after) = STREAM.as_bytes().split_at(cut);
            assert_eq!(events(&[before, after]), whole, "{cut}");
        }
        let bytes: Vec<_> = STREAM.as_bytes().chunks(1).collect();
        assert_eq!(events(&bytes), whole);
    }

    #[test]
    fn end_of_the_stream_completes_the_last_event() {
        for (stream, last) in [
            ("data: 1\n\ndata: 2", Some("2")),
            ("data: 1\n\ndata: 2\r\n", Some("2")),
            ("data: 1\n\ndata: 2\n\n", None),
            ("data: 1\n\n: comment", None),
            ("", None),
        ] {
            let mut decoder = Decoder::new(100);
            decoder.push(stream.as_bytes()).unwrap();
            let event = decoder.finish().map(|event| event.data);
            assert_eq!(event.as_deref(), last, "{stream:?}");
        }
    }

    #[test]
    fn decoder_holds_no_more_than_its_limit() {
        let mut decoder = Decoder::new(10);
        assert_eq!(decoder.push(b"data: 1\n\ndata: 2\n\n").unwrap().len(), 2);
        assert_eq!(decoder.push(b"data: 1234567890"), Err(TooLong));
        let mut decoder = Decoder::new(10);
        decoder.push(b"data: 12\ndata: 3").unwrap();
        assert_eq!(decoder.push(b"45678901"), Err(TooLong));
        let mut decoder = Decoder::new(10);
        decoder.push(b"event: 123\n").unwrap();
        assert_eq!(decoder.push(b"data: 12"), Err(TooLong), "the name counts");
    }
}
