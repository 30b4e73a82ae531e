//! Writes server-sent events (WHATWG HTML, "Server-sent events"), one block of lines for each
//! event. Invariant: no line end in the data of an event ends the event or begins another.

use std::fmt::Write as _;

use serde::Serialize;

use crate::store::ReadError;

/// Events that are formatted but not sent yet.
#[derive(Debug, Default)]
pub(crate) struct SseBuffer(String);

impl SseBuffer {
    /// Writes the client's reconnection delay, in milliseconds.
    pub(crate) fn retry(&mut self, milliseconds: u32) {
        let _ = write!(self.0, "retry: {milliseconds}\n\n");
    }

    /// Writes a comment line, which keeps an idle connection open.
    pub(crate) fn comment(&mut self) {
        self.0.push_str(":\n\n");
    }

    pub(crate) fn append(&mut self, text: &str) {
        self.0.push_str(text);
    }

    /// Writes an event: its number (if `id` is given), its name, and its data as JSON.
    ///
    /// # Errors
    /// Fails with `Corrupt` if the data cannot be serialized. Then no part of the event is written.
    pub(crate) fn event(
        &mut self,
        id: Option<i64>,
        name: &str,
        data: &impl Serialize,
    ) -> Result<(), ReadError> {
        let data = serde_json::to_string(data)
            .map_err(|error| ReadError::Corrupt(format!("an event: {error}")))?;
        if let Some(id) = id {
            let _ = writeln!(self.0, "id: {id}");
        }
        write_event(&mut self.0, name, &data);
        Ok(())
    }

    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn take(&mut self) -> String {
        std::mem::take(&mut self.0)
    }
}

/// Writes the name and the data of an event. A `data` field is a single line, but JSON that is
/// stored verbatim may have line ends (LF or CR) between two tokens. Therefore, each line of the
/// JSON gets its own `data` field. The client joins the lines with LF. A CR between two tokens thus
/// becomes an LF, and the value of the JSON stays the same.
pub(crate) fn write_event(text: &mut String, name: &str, data: &str) {
    let _ = writeln!(text, "event: {name}");
    for line in data.split(['\n', '\r']) {
        let _ = writeln!(text, "data: {line}");
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::wire::raw_json::RawJson;
    use serde_json::json;

    #[test]
    fn event_is_a_block_of_lines() {
        let mut text = SseBuffer::default();
        text.retry(1000);
        text.event(Some(7), "task.created", &json!({"a": "x\ny"}))
            .unwrap();
        text.comment();
        text.event(None, "caught_up", &json!({"after": 7})).unwrap();
        let expected = "retry: 1000\n\nid: 7\nevent: task.created\ndata: {\"a\":\"x\\ny\"}\n\n:\n\nevent: caught_up\n\
            data: {\"after\":7}\n\n";
        assert_eq!(text.take(), expected);
        assert!(text.is_empty());
    }

    #[test]
    fn line_ends_inside_a_value_end_no_event() {
        let mut text = SseBuffer::default();
        text.event(None, "x", &RawJson::value("{\n\n\"a\":\r\n1.10\r}"))
            .unwrap();
        assert_eq!(
            text.take(),
            "event: x\ndata: {\ndata: \ndata: \"a\":\ndata: \ndata: 1.10\ndata: }\n\n"
        );
    }
}
