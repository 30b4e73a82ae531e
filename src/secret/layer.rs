//! Computes the unescaped forms of a text. The redactor searches these forms for secrets. Each form
//! maps its bytes back to the original text.
//!
//! Invariant: each level of unescaping decodes one syntax: JSON by RFC 8259, percent-encoding by
//! RFC 3986, or form fields. It undoes all escapes of this syntax in the whole text, and copies all
//! other characters. So the redactor finds a secret even if only some of its characters are
//! escaped.

use std::borrow::Cow;

/// The maximum number of nested escapes that are undone. A percent-encoded value in a JSON string
/// in a JSON string, for example, needs three unescapings.
const MAX_DEPTH: usize = 3;

/// A text at one level of unescaping.
#[derive(Default)]
pub(super) struct Layer<'p> {
    parent: Option<&'p Layer<'p>>,
    /// The text at this level; it may be invalid UTF-8.
    pub bytes: Cow<'p, [u8]>,
    /// The parts of `bytes`, each with its position in the parent layer, ascending. Empty for the
    /// outermost layer.
    runs: Vec<Run>,
    /// The offset in the parent where this layer's text ends. It is less than the parent's length
    /// if the layer ends before an incomplete escape.
    parent_end: usize,
    /// Whether this layer is a copy of the parent without its line ends. In such a layer, the
    /// redactor finds base64 that is wrapped in lines.
    pub joined: bool,
}

/// A range of a layer's bytes: a copy of bytes of the parent layer, or the decoded form of one
/// escape in the parent layer. The range begins at `start` in this layer and at `parent_start` in
/// the parent.
struct Run {
    start: usize,
    parent_start: usize,
    /// The length in bytes of the escape in the parent; 0 for a copy.
    escape_len: usize,
}

/// The result of parsing an escape at the start of a text.
enum Escape {
    /// A complete escape, and its length in bytes.
    Complete(Unescaped, usize),
    /// The beginning of an escape that the end of the text cuts off.
    Incomplete,
    None,
}

enum Unescaped {
    Byte(u8),
    Char(char),
}

#[derive(Clone, Copy)]
pub(super) struct UnescapeOptions {
    /// Whether the text may be form-encoded, with `+` for a space.
    pub decode_forms: bool,
    /// Whether more text will follow. If so, each layer ends before an incomplete escape.
    pub more_follows: bool,
}

/// Calls `visit` with the text itself, and with the result of each sequence of up to [`MAX_DEPTH`]
/// unescapings. Also calls `visit` with each of these texts without its line ends.
pub(super) fn for_each_layer(
    text: &str,
    options: UnescapeOptions,
    visit: &mut dyn FnMut(&Layer<'_>),
) {
    let whole = Layer {
        bytes: Cow::Borrowed(text.as_bytes()),
        ..Layer::default()
    };
    visit_layers(&whole, MAX_DEPTH, options, visit);
}

fn visit_layers(
    layer: &Layer<'_>,
    depth: usize,
    options: UnescapeOptions,
    visit: &mut dyn FnMut(&Layer<'_>),
) {
    visit(layer);
    if let Some(joined) = layer.joined() {
        visit(&joined);
    }
    let Some(depth) = depth.checked_sub(1) else {
        return;
    };
    let child = |mark: &[u8], escape: fn(&[u8]) -> Escape| {
        layer.unescaped(mark, escape, options.more_follows)
    };
    for next in [child(b"\\", json), child(b"%", percent)]
        .into_iter()
        .flatten()
    {
        visit_layers(&next, depth, options, visit);
    }
    if options.decode_forms
        && layer.bytes.contains(&b'+')
        && let Some(next) = child(b"%+", form)
    {
        visit_layers(&next, depth, options, visit);
    }
}

impl Layer<'_> {
    /// Returns the offset in the outermost text where the byte at offset `at` of this layer begins.
    pub(super) fn start(&self, at: usize) -> usize {
        let Some(parent) = self.parent else { return at };
        match self.run(at).filter(|_| at < self.bytes.len()) {
            Some(run) if run.escape_len > 0 => parent.start(run.parent_start),
            Some(run) => parent.start(run.parent_start + (at - run.start)),
            None => parent.start(self.parent_end),
        }
    }

    /// Returns the offset in the outermost text where the first `at` bytes of this layer end.
    pub(super) fn end(&self, at: usize) -> usize {
        let (Some(parent), Some(last)) = (self.parent, at.checked_sub(1)) else {
            return at;
        };
        match self.run(last) {
            Some(run) if run.escape_len > 0 => parent.end(run.parent_start + run.escape_len),
            Some(run) => parent.end(run.parent_start + (at - run.start)),
            None => 0,
        }
    }

    /// Returns the escapes of the parent layer that this layer has decoded, each as its range in
    /// the outermost text.
    pub(super) fn escapes(&self) -> impl Iterator<Item = (usize, usize)> {
        let parent = self.parent;
        let whole = move |run: &Run| {
            parent.map(|parent| {
                (
                    parent.start(run.parent_start),
                    parent.end(run.parent_start + run.escape_len),
                )
            })
        };
        self.runs
            .iter()
            .filter(|run| run.escape_len > 0)
            .filter_map(whole)
    }

    fn run(&self, at: usize) -> Option<&Run> {
        self.runs.get(
            self.runs
                .partition_point(|run| run.start <= at)
                .checked_sub(1)?,
        )
    }

    /// Returns this layer without its line ends; `None` if the layer has no line ends.
    fn joined(&self) -> Option<Layer<'_>> {
        let is_line_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
        if !self.bytes.iter().any(is_line_end) {
            return None;
        }
        let lines = self.bytes.split(is_line_end);
        let mut joined = Layer {
            parent: Some(self),
            parent_end: self.bytes.len(),
            joined: true,
            ..Layer::default()
        };
        let mut parent_start = 0;
        for line in lines {
            joined.copy(parent_start, line);
            parent_start += line.len() + 1;
        }
        Some(joined)
    }

    /// Returns this layer with its escapes undone; `None` if there is no escape to undo. An escape
    /// starts with a byte of `marks`, and `escape` parses it. `more_follows` is
    /// [`UnescapeOptions::more_follows`].
    fn unescaped(
        &self,
        marks: &[u8],
        escape: fn(&[u8]) -> Escape,
        more_follows: bool,
    ) -> Option<Layer<'_>> {
        let mut child = Layer {
            parent: Some(self),
            parent_end: self.bytes.len(),
            ..Layer::default()
        };
        let (mut copied, mut search_from) = (0, 0);
        let after = |at: usize| self.bytes.get(at..).unwrap_or_default();
        while let Some(at) = after(search_from)
            .iter()
            .position(|byte| marks.contains(byte))
            .map(|found| search_from + found)
        {
            match escape(after(at)) {
                Escape::Complete(decoded, escape_len) => {
                    child.copy(copied, self.bytes.get(copied..at).unwrap_or_default());
                    child.escape(at, escape_len, &decoded);
                    (copied, search_from) = (at + escape_len, at + escape_len);
                }
                Escape::Incomplete if more_follows => {
                    child.copy(copied, self.bytes.get(copied..at).unwrap_or_default());
                    child.parent_end = at;
                    return Some(child);
                }
                Escape::Incomplete | Escape::None => search_from = at + 1,
            }
        }
        if copied == 0 {
            return None;
        }
        child.copy(copied, after(copied));
        Some(child)
    }

    fn copy(&mut self, parent_start: usize, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.append(parent_start, 0, bytes);
        }
    }

    fn escape(&mut self, parent_start: usize, escape_len: usize, decoded: &Unescaped) {
        match decoded {
            Unescaped::Byte(byte) => self.append(parent_start, escape_len, &[*byte]),
            Unescaped::Char(c) => {
                self.append(
                    parent_start,
                    escape_len,
                    c.encode_utf8(&mut [0; 4]).as_bytes(),
                );
            }
        }
    }

    fn append(&mut self, parent_start: usize, escape_len: usize, bytes: &[u8]) {
        self.runs.push(Run {
            start: self.bytes.len(),
            parent_start,
            escape_len,
        });
        self.bytes.to_mut().extend_from_slice(bytes);
    }
}

/// Parses a percent-encoded byte (RFC 3986).
fn percent(text: &[u8]) -> Escape {
    match text {
        [b'%', high, low, ..] => match (hex(*high), hex(*low)) {
            (Some(high), Some(low)) => Escape::Complete(Unescaped::Byte(high * 16 + low), 3),
            _ => Escape::None,
        },
        [b'%'] => Escape::Incomplete,
        [b'%', digit] if hex(*digit).is_some() => Escape::Incomplete,
        _ => Escape::None,
    }
}

/// Parses an escape of a form field: `+` for a space, or a percent-encoded byte.
fn form(text: &[u8]) -> Escape {
    if text.starts_with(b"+") {
        Escape::Complete(Unescaped::Byte(b' '), 1)
    } else {
        percent(text)
    }
}

/// Parses an escape of a JSON string (RFC 8259). A lone surrogate is no escape.
fn json(text: &[u8]) -> Escape {
    let short = |byte| Escape::Complete(Unescaped::Byte(byte), 2);
    match text {
        [b'\\'] => Escape::Incomplete,
        [b'\\', b'u', digits @ ..] => match unit(digits) {
            Ok(Some(first @ 0xD800..=0xDBFF)) => pair(first, digits.get(4..).unwrap_or_default()),
            Ok(Some(unit)) => char::from_u32(unit)
                .map_or(Escape::None, |c| Escape::Complete(Unescaped::Char(c), 6)),
            Ok(None) => Escape::Incomplete,
            Err(()) => Escape::None,
        },
        [b'\\', b'"', ..] => short(b'"'),
        [b'\\', b'\\', ..] => short(b'\\'),
        [b'\\', b'/', ..] => short(b'/'),
        [b'\\', b'b', ..] => short(8),
        [b'\\', b'f', ..] => short(12),
        [b'\\', b'n', ..] => short(b'\n'),
        [b'\\', b'r', ..] => short(b'\r'),
        [b'\\', b't', ..] => short(b'\t'),
        _ => Escape::None,
    }
}

/// Parses the second escape of a surrogate pair. `rest` begins with this escape. `first` is the
/// code unit that the first escape encodes.
fn pair(first: u32, rest: &[u8]) -> Escape {
    match rest {
        [] | [b'\\'] => Escape::Incomplete,
        [b'\\', b'u', digits @ ..] => match unit(digits) {
            Ok(Some(second @ 0xDC00..=0xDFFF)) => {
                let c = char::from_u32(0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00));
                c.map_or(Escape::None, |c| Escape::Complete(Unescaped::Char(c), 12))
            }
            Ok(None) => Escape::Incomplete,
            Ok(Some(_)) | Err(()) => Escape::None,
        },
        _ => Escape::None,
    }
}

/// Parses four hexadecimal digits. Returns `None` if the text ends before the fourth digit, and an
/// error if a digit is not hexadecimal.
fn unit(text: &[u8]) -> Result<Option<u32>, ()> {
    let digits = text.get(..4).unwrap_or(text);
    let number = digits
        .iter()
        .try_fold(0, |number, digit| {
            Some(number * 16 + u32::from(hex(*digit)?))
        })
        .ok_or(())?;
    Ok((digits.len() == 4).then_some(number))
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}
