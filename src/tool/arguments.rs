//! Reads and checks a call's arguments, before the policy judges the call.
//!
//! Invariant: all JSON parsers read an accepted text alike. [`parse`] refuses texts that two
//! parsers could read differently: texts with repeated member names, names that differ only in case
//! or Unicode form, numbers that lose digits as a double, unpaired surrogates or U+0000. The tool's
//! schema refuses members that the tool does not declare.
//!
//! A blank text counts as `{}`, because some models send a blank text for a tool without arguments.
//! A schema with required members still refuses such a text.

use std::collections::BTreeMap;

use serde_json::{Map, Number, Value};

use super::names::folded;
use super::schema::{CompiledSchema, SchemaViolations};
use crate::task::decimal::decimal;
use crate::task::text::{cut, pointer};

pub(crate) const MAX_BYTES: usize = 256 * 1024;
/// The maximum nesting depth of objects and lists, the outermost included.
pub(crate) const MAX_DEPTH: usize = 32;

/// Reads an argument text and checks the arguments against the tool's schema.
///
/// # Errors
/// Fails if [`parse`] refuses the text or the arguments do not fit the schema. The error lists the
/// places that do not fit, each with the unmet expectation. The error never contains a value.
pub(crate) fn read(text: &str, schema: &CompiledSchema) -> Result<Value, SchemaViolations> {
    let value = if text.trim_matches([' ', '\t', '\n', '\r']).is_empty() {
        Value::Object(Map::new())
    } else {
        parse(text)?
    };
    if !value.is_object() {
        return Err(SchemaViolations::single("", "must be a JSON object"));
    }
    schema.check(&value)?;
    Ok(value)
}

/// Parses a JSON text (RFC 8259). Refuses the texts that the documentation of this module lists,
/// and texts that are longer than [`MAX_BYTES`] or nest deeper than [`MAX_DEPTH`].
///
/// # Errors
/// Fails if the text is not JSON or is refused. The error names the first place that is wrong.
pub(crate) fn parse(text: &str) -> Result<Value, SchemaViolations> {
    if text.len() > MAX_BYTES {
        return Err(SchemaViolations::single(
            "",
            format!("must not be longer than {} KiB", MAX_BYTES / 1024),
        ));
    }
    let mut reader = Reader {
        text,
        at: 0,
        place: Vec::new(),
    };
    reader.skip_whitespace();
    let value = reader.value(0)?;
    reader.skip_whitespace();
    if reader.peek().is_some() {
        reader.fail("there is text after the end of the JSON value")
    } else {
        Ok(value)
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    /// The member names and list indexes on the path to the current value.
    place: Vec<String>,
}

impl<'t> Reader<'t> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn take(&mut self, expected: u8) -> bool {
        let found = self.peek() == Some(expected);
        if found {
            self.at += 1;
        }
        found
    }

    fn skip_whitespace(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn fail<T>(&self, detail: &str) -> Result<T, SchemaViolations> {
        let place = self
            .place
            .iter()
            .fold(String::new(), |place, step| pointer(&place, step));
        Err(SchemaViolations::single(cut(&place, 120), detail))
    }

    fn value(&mut self, depth: usize) -> Result<Value, SchemaViolations> {
        match self.peek() {
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.list(depth + 1),
            Some(b'"') => self.string().map(Value::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => self.literal(),
            None => self.fail("the text ends in the middle of the JSON value"),
        }
    }

    fn literal(&mut self) -> Result<Value, SchemaViolations> {
        for (word, value) in [
            ("true", Value::Bool(true)),
            ("false", Value::Bool(false)),
            ("null", Value::Null),
        ] {
            let after = self
                .rest()
                .strip_prefix(word)
                .map(|after| after.as_bytes().first());
            if after.is_some_and(|next| {
                !next.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
            }) {
                self.at += word.len();
                return Ok(value);
            }
        }
        self.fail("must be a JSON value")
    }

    fn check_depth(&self, depth: usize) -> Result<(), SchemaViolations> {
        if depth > MAX_DEPTH {
            self.fail(&format!("must not nest deeper than {MAX_DEPTH}"))
        } else {
            Ok(())
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, SchemaViolations> {
        self.check_depth(depth)?;
        self.at += 1;
        let mut members = Map::new();
        let mut seen: BTreeMap<String, String> = BTreeMap::new();
        self.skip_whitespace();
        if self.take(b'}') {
            return Ok(Value::Object(members));
        }
        loop {
            self.skip_whitespace();
            if self.peek() != Some(b'"') {
                return self.fail("a member's name in double quotes is missing");
            }
            let name = self.string()?;
            self.place.push(name.clone());
            if let Some(twin) = seen.insert(folded(&name), name.clone()) {
                return self.fail(if twin == name {
                    "there are two members of this name"
                } else {
                    "there is another member whose name differs only in case or Unicode form"
                });
            }
            self.skip_whitespace();
            if !self.take(b':') {
                return self.fail("a colon is missing after the member's name");
            }
            self.skip_whitespace();
            let value = self.value(depth)?;
            self.place.pop();
            members.insert(name, value);
            self.skip_whitespace();
            if self.take(b'}') {
                return Ok(Value::Object(members));
            }
            if !self.take(b',') {
                return self.fail("a comma or the end of the object is missing");
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, SchemaViolations> {
        self.check_depth(depth)?;
        self.at += 1;
        let mut elements = Vec::new();
        self.skip_whitespace();
        if self.take(b']') {
            return Ok(Value::Array(elements));
        }
        loop {
            self.place.push(elements.len().to_string());
            self.skip_whitespace();
            elements.push(self.value(depth)?);
            self.place.pop();
            self.skip_whitespace();
            if self.take(b']') {
                return Ok(Value::Array(elements));
            }
            if !self.take(b',') {
                return self.fail("a comma or the end of the list is missing");
            }
        }
    }

    fn string(&mut self) -> Result<String, SchemaViolations> {
        self.at += 1;
        let mut string = String::new();
        loop {
            let rest = self.rest();
            let plain = rest
                .find(|c: char| c == '"' || c == '\\' || c < ' ')
                .unwrap_or(rest.len());
            string.push_str(rest.get(..plain).unwrap_or_default());
            self.at += plain;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(string);
                }
                Some(b'\\') => string.push(self.escape()?),
                Some(_) => return self.fail("a control character in a string must be escaped"),
                None => return self.fail("the text ends in the middle of a string"),
            }
        }
    }

    fn escape(&mut self) -> Result<char, SchemaViolations> {
        self.at += 1;
        let Some(kind) = self.peek() else {
            return self.fail("the text ends in the middle of a string");
        };
        self.at += 1;
        Ok(match kind {
            b'"' | b'\\' | b'/' => char::from(kind),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.code_point(),
            _ => return self.fail("there is an escape that JSON does not know"),
        })
    }

    fn code_point(&mut self) -> Result<char, SchemaViolations> {
        let first = self.four_digits()?;
        let code = match first {
            0 => return self.fail("U+0000 is not allowed"),
            0xD800..=0xDBFF => {
                let second = if self.take(b'\\') && self.take(b'u') {
                    self.four_digits()?
                } else {
                    0
                };
                if !(0xDC00..=0xDFFF).contains(&second) {
                    return self.fail("there is a lone surrogate");
                }
                0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00)
            }
            other => other,
        };
        match char::from_u32(code) {
            Some(c) => Ok(c),
            None => self.fail("there is a lone surrogate"),
        }
    }

    fn four_digits(&mut self) -> Result<u32, SchemaViolations> {
        let digits = self
            .rest()
            .get(..4)
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) {
            Some(code) => {
                self.at += 4;
                Ok(code)
            }
            None => self.fail("there is a \\u escape without four hexadecimal digits"),
        }
    }

    fn digits(&mut self) -> Result<(), SchemaViolations> {
        let from = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == from {
            self.fail("is not a JSON number")
        } else {
            Ok(())
        }
    }

    fn number(&mut self) -> Result<Value, SchemaViolations> {
        let from = self.at;
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        let integer_end = self.at;
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            if !self.take(b'+') {
                self.take(b'-');
            }
            self.digits()?;
        }
        if self.peek().is_some_and(|next| {
            next.is_ascii_alphanumeric() || matches!(next, b'.' | b'+' | b'-' | b'_')
        }) {
            return self.fail("is not a JSON number");
        }
        let text = self.text.get(from..self.at).unwrap_or_default();
        match lossless_number(text, self.at == integer_end) {
            Some(number) => Ok(Value::Number(number)),
            None => {
                self.fail("the number has more digits or a greater exponent than a double can hold")
            }
        }
    }
}

/// Returns the number, or `None` if a double cannot hold it without loss. A 64-bit integer must
/// equal its double. Any other number must equal the shortest decimal number with the same double.
/// `0.10` is accepted, because it equals this shortest number, `0.1`. A number with more
/// significant digits than its double keeps is refused.
fn lossless_number(text: &str, is_integer: bool) -> Option<Number> {
    let double: f64 = text.parse().ok()?;
    if !double.is_finite() {
        return None;
    }
    if is_integer
        && text != "-0"
        && let Ok(integer) = text.parse::<i128>()
    {
        if let Ok(fits) = i64::try_from(integer) {
            return is_exact(double, integer).then(|| Number::from(fits));
        }
        if let Ok(fits) = u64::try_from(integer) {
            return is_exact(double, integer).then(|| Number::from(fits));
        }
    }
    (decimal(text)? == decimal(&format!("{double:e}"))?)
        .then(|| Number::from_f64(double))
        .flatten()
}

fn is_exact(double: f64, integer: i128) -> bool {
    // `{:.0}` writes every digit of a double that has no fraction.
    format!("{double:.0}").parse() == Ok(integer)
}

#[cfg(test)]
mod tests;
