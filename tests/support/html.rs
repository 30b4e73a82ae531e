//! Reads the elements, the attributes and the text of a page as a browser's tokenizer does.

/// An element, or a comment. A comment has the name `!`.
#[derive(Clone, Debug, Default)]
pub struct Element {
    pub name: String,
    /// The names in lower case, and the values with their entities resolved.
    pub attributes: Vec<(String, String)>,
    /// The content of a script or style, or the text of a comment.
    pub raw: String,
}

/// The start tags and the comments of a page in their order, and the text of the page.
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

    /// Reads a comment, or a declaration, which a browser treats as a comment. Adds an element
    /// named `!` to the page, except for the doctype. Returns the rest of the page.
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

    /// Reads a start tag. Also reads the content of an element in which a browser reads no tags,
    /// such as a script. Returns the rest of the page.
    fn open<'h>(&mut self, from: &'h str) -> &'h str {
        let mut rest = from;
        let name = take(&mut rest, |c| !c.is_whitespace() && !matches!(c, '/' | '>'));
        let mut element = Element {
            name: name.to_ascii_lowercase(),
            ..Element::default()
        };
        while let Some(attribute) = attribute(&mut rest) {
            element.attributes.push(attribute);
        }
        if matches!(
            element.name.as_str(),
            "script" | "style" | "textarea" | "title"
        ) {
            let ends = |at: &usize| {
                let end = rest.get(at + 2..at + 2 + element.name.len());
                end.is_some_and(|end| end.eq_ignore_ascii_case(&element.name))
            };
            let mut closing = rest.match_indices("</").map(|(at, _)| at);
            let at = closing.find(ends).unwrap_or(rest.len());
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

/// Removes the longest prefix of `rest` in which every character satisfies `inside`, and returns
/// this prefix.
fn take<'h>(rest: &mut &'h str, inside: impl Fn(char) -> bool) -> &'h str {
    let end = rest.find(|c| !inside(c)).unwrap_or(rest.len());
    let (taken, left) = rest.split_at(end);
    *rest = left;
    taken
}

/// Reads the next attribute of a start tag, or the end of the tag. Returns `None` for the end.
fn attribute(rest: &mut &str) -> Option<(String, String)> {
    take(rest, |c| c.is_whitespace() || c == '/');
    let first = rest.chars().next()?;
    let (head, left) = rest.split_at(first.len_utf8());
    *rest = left;
    if first == '>' {
        return None;
    }
    let tail = take(rest, |c| {
        !c.is_whitespace() && !matches!(c, '/' | '>' | '=')
    });
    let name = format!("{head}{tail}").to_ascii_lowercase();
    take(rest, char::is_whitespace);
    let Some(left) = rest.strip_prefix('=') else {
        return Some((name, String::new()));
    };
    *rest = left;
    take(rest, char::is_whitespace);
    let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''));
    let Some(quote) = quote else {
        let value = take(rest, |c| !c.is_whitespace() && c != '>');
        return Some((name, resolved(value)));
    };
    *rest = &rest[1..];
    let value = take(rest, |c| c != quote);
    *rest = rest.get(1..).unwrap_or_default();
    Some((name, resolved(value)))
}

/// Resolves the entities in a text. Knows only the entities that the service's pages may contain.
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
