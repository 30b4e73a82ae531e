//! HTML as a browser's tokenizer reads it, as far as elements, attributes and text go.

use std::iter::Peekable;
use std::str::Chars;

/// An element, or a comment under the name `!`.
#[derive(Clone, Debug, Default)]
pub struct Element {
    /// In lower case.
    pub name: String,
    /// Names in lower case, values with their entities resolved.
    pub attributes: Vec<(String, String)>,
    /// The content of a script or style, or the text of a comment.
    pub raw: String,
}

/// The start tags of a page in their order, and its text.
#[derive(Debug, Default)]
pub struct Page {
    pub elements: Vec<Element>,
    pub text: String,
}

impl Page {
    pub fn of(html: &str) -> Self {
        let (mut page, mut rest) = (Self::default(), html);
        while let Some((text, from)) = rest.split_once('<') {
            page.text.push_str(&resolved(text));
            let first = from.chars().next().unwrap_or(' ');
            if first.is_ascii_alphabetic() {
                rest = page.open(from);
            } else if first == '/' && from[1..].starts_with(|c: char| c.is_ascii_alphabetic()) {
                rest = from.split_once('>').map_or("", |(_, rest)| rest);
            } else if matches!(first, '!' | '?' | '/') {
                rest = page.skip(from);
            } else {
                page.text.push('<');
                rest = from;
            }
        }
        page.text.push_str(&resolved(rest));
        page
    }

    /// Reads a comment, or a declaration.
    fn skip<'h>(&mut self, from: &'h str) -> &'h str {
        let comment = from.strip_prefix("!--");
        let (raw, rest) = match comment {
            Some(comment) => comment.split_once("-->").unwrap_or((comment, "")),
            None => from.split_once('>').unwrap_or((from, "")),
        };
        let is_doctype = raw.eq_ignore_ascii_case("!doctype html");
        if !is_doctype {
            self.elements.push(Element {
                name: "!".to_owned(),
                raw: raw.to_owned(),
                ..Element::default()
            });
        }
        rest
    }

    /// Reads a start tag, and the content of an element that has no markup in it.
    fn open<'h>(&mut self, from: &'h str) -> &'h str {
        let mut chars = from.chars().peekable();
        let name = word(&mut chars, |c| c.is_whitespace() || matches!(c, '/' | '>'));
        let mut element = Element {
            name,
            ..Element::default()
        };
        while let Some(attribute) = attribute(&mut chars) {
            element.attributes.push(attribute);
        }
        let left: usize = chars.map(char::len_utf8).sum();
        let mut rest = &from[from.len() - left..];
        if matches!(
            element.name.as_str(),
            "script" | "style" | "textarea" | "title"
        ) {
            let end = format!("</{}", element.name);
            let at = rest.to_ascii_lowercase().find(&end).unwrap_or(rest.len());
            if matches!(element.name.as_str(), "textarea" | "title") {
                self.text.push_str(&resolved(&rest[..at]));
            } else {
                rest[..at].clone_into(&mut element.raw);
            }
            rest = &rest[at..];
        }
        self.elements.push(element);
        rest
    }
}

/// The characters up to the first that ends the word, in lower case.
fn word(chars: &mut Peekable<Chars<'_>>, ends: impl Fn(char) -> bool) -> String {
    let mut word = String::new();
    while let Some(c) = chars.next_if(|c| !ends(*c)) {
        word.push(c.to_ascii_lowercase());
    }
    word
}

/// The next attribute of a start tag; `None` at its end, which it reads.
fn attribute(chars: &mut Peekable<Chars<'_>>) -> Option<(String, String)> {
    while chars.next_if(|c| c.is_whitespace() || *c == '/').is_some() {}
    if chars.next_if_eq(&'>').is_some() || chars.peek().is_none() {
        return None;
    }
    let first = chars.next()?.to_ascii_lowercase();
    let ends = |c: char| c.is_whitespace() || matches!(c, '/' | '>' | '=');
    let name = format!("{first}{}", word(chars, ends));
    while chars.next_if(|c| c.is_whitespace()).is_some() {}
    if chars.next_if_eq(&'=').is_none() {
        return Some((name, String::new()));
    }
    while chars.next_if(|c| c.is_whitespace()).is_some() {}
    let quote = chars.next_if(|c| matches!(c, '"' | '\''));
    let mut value = String::new();
    let inside = |c: &char| match quote {
        Some(quote) => *c != quote,
        None => !c.is_whitespace() && *c != '>',
    };
    while let Some(c) = chars.next_if(inside) {
        value.push(c);
    }
    if quote.is_some() {
        chars.next();
    }
    Some((name, resolved(&value)))
}

/// The text with the entities that a page of ours may have resolved.
fn resolved(text: &str) -> String {
    let mut parts = text.split('&');
    let mut all = parts.next().unwrap_or("").to_owned();
    for part in parts {
        let entity = part.split_once(';').and_then(|(name, rest)| {
            let c = match name {
                "lt" => '<',
                "gt" => '>',
                "amp" => '&',
                "quot" => '"',
                "apos" => '\'',
                _ => return numbered(name).map(|c| (c, rest)),
            };
            Some((c, rest))
        });
        if let Some((c, rest)) = entity {
            all.push(c);
            all.push_str(rest);
        } else {
            all.push('&');
            all.push_str(part);
        }
    }
    all
}

fn numbered(name: &str) -> Option<char> {
    let digits = name.strip_prefix('#')?;
    let code = match digits.strip_prefix(['x', 'X']) {
        Some(hex) => u32::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    char::from_u32(code)
}

#[test]
fn page_is_read_as_a_browser_reads_it() {
    let page = Page::of(
        "<!DOCTYPE html><P class=\"a&quot;b\" ID=x data-y>a &lt;b&gt; < c</p><script src='/s'>1 < 2</script><!-- no --><br/>&#x41;",
    );
    let names: Vec<_> = page.elements.iter().map(|e| e.name.as_str()).collect();
    assert_eq!(names, ["p", "script", "!", "br"]);
    let attribute = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let found = [("class", "a\"b"), ("id", "x"), ("data-y", "")];
    assert_eq!(
        page.elements[0].attributes,
        found.map(|(n, v)| attribute(n, v))
    );
    assert_eq!(page.elements[1].raw, "1 < 2");
    assert_eq!(page.text, "a <b> < cA");
}
