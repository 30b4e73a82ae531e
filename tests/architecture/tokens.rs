//! Reads just enough Rust to find the rooms (top-level modules) that a file names. Drops comments
//! and literals, follows inline modules, and reads every path that begins at the crate's root or
//! leads to the root with `super`.

use std::iter::Peekable;
use std::str::Chars;

/// The crate's name in paths of the package's own binary.
const CRATE: &str = "holdpoint";

/// A token of Rust: a word, `::`, or a single other character.
#[derive(Debug, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    pub line: usize,
}

impl Token {
    fn is_name(&self) -> bool {
        self.text
            .starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// The module that a file defines. For example, `src/engine/drive.rs` defines `engine::drive`.
#[derive(Debug)]
pub struct Place {
    pub module: Vec<String>,
}

impl Place {
    pub fn of_file(path: &str) -> Self {
        let inside = path
            .strip_prefix("src/")
            .or_else(|| path.strip_prefix("tests/"))
            .unwrap_or(path);
        let mut module: Vec<String> = inside
            .trim_end_matches(".rs")
            .split('/')
            .map(str::to_owned)
            .collect();
        let last = module.last().map(String::as_str);
        if last == Some("mod") || (module.len() == 1 && matches!(last, Some("lib" | "main"))) {
            module.pop();
        }
        Self { module }
    }
}

/// Returns (line, room) for every path that names a room right after the crate's root. The room is
/// `*` if the path imports the root itself, because the code can then reach any room.
pub fn reached_rooms(place: &Place, text: &str) -> Vec<(usize, String)> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    let mut module = place.module.clone();
    let mut braces: Vec<bool> = Vec::new(); // for each open brace: whether it is an inline module's
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            "mod" if text_at(&tokens, at + 2) == "{" => {
                module.push(text_at(&tokens, at + 1).to_owned());
                braces.push(true);
                at += 3;
                continue;
            }
            "{" => braces.push(false),
            "}" if braces.pop() == Some(true) => {
                module.pop();
            }
            "crate" | "super" | "self" | CRATE
                if text_at(&tokens, at + 1) == "::" && !continues_a_path(&tokens, at) =>
            {
                at = follow(&tokens, at, &module, &mut found);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Reads the path or group at the index `at`, and resolves it as part of the module `base`. Adds
/// each room that the path or group names to `found`. Returns the index of the token after it.
fn follow(
    tokens: &[Token],
    mut at: usize,
    base: &[String],
    found: &mut Vec<(usize, String)>,
) -> usize {
    let mut base = base.to_vec();
    let mut is_root = base.is_empty();
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            "::" => {}
            "crate" | CRATE => {
                base.clear();
                is_root = true;
            }
            "super" => {
                base.pop();
                is_root = base.is_empty();
            }
            "self" if text_at(tokens, at + 1) == "::" => {}
            "self" | "*" if is_root => {
                found.push((token.line, "*".to_owned()));
                return at + 1;
            }
            "{" => return follow_group(tokens, at + 1, &base, found),
            _ if token.is_name() && is_root => {
                found.push((token.line, token.text.clone()));
                return skip_tree(tokens, at + 1);
            }
            _ => return skip_tree(tokens, at),
        }
        at += 1;
    }
    at
}

/// Reads the rest of a group such as `{a::b, {c}, d}` after its opening brace. Returns the index of
/// the token after the group.
fn follow_group(
    tokens: &[Token],
    mut at: usize,
    base: &[String],
    found: &mut Vec<(usize, String)>,
) -> usize {
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            "}" => return at + 1,
            "," => at += 1,
            _ => {
                let end = follow(tokens, at, base, found);
                // Skips tokens that cannot belong to a path or group, such as an alias.
                at = end.max(at + 1);
                while !matches!(text_at(tokens, at), "," | "}" | "") {
                    at += 1;
                }
            }
        }
    }
    at
}

/// Skips the rest of a path or group whose beginning has been read. Returns the index of the next
/// token.
fn skip_tree(tokens: &[Token], mut at: usize) -> usize {
    while text_at(tokens, at) == "::"
        || tokens.get(at).is_some_and(Token::is_name) && text_at(tokens, at - 1) == "::"
    {
        at += 1;
    }
    if text_at(tokens, at) == "{" && text_at(tokens, at - 1) == "::" {
        let mut depth = 0_usize;
        while let Some(token) = tokens.get(at) {
            match token.text.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            at += 1;
            if depth == 0 {
                break;
            }
        }
    }
    at
}

/// Returns whether a name and `::` come before the word at `at`, so that the word continues a path.
/// A leading `::` begins a path.
fn continues_a_path(tokens: &[Token], at: usize) -> bool {
    at >= 2
        && text_at(tokens, at - 1) == "::"
        && tokens
            .get(at - 2)
            .is_some_and(|token| token.is_name() && token.text != "use")
}

fn text_at(tokens: &[Token], at: usize) -> &str {
    tokens.get(at).map_or("", |token| token.text.as_str())
}

/// Returns the tokens of a source without comments, strings, characters, lifetimes and white space.
pub fn tokens(text: &str) -> Vec<Token> {
    let mut reader = Reader {
        chars: text.chars().peekable(),
        line: 1,
    };
    let mut tokens = Vec::new();
    while let Some(c) = reader.next() {
        let line = reader.line;
        match c {
            '/' if reader.take_if('/') => reader.skip_line(),
            '/' if reader.take_if('*') => reader.skip_comment(),
            '"' => reader.skip_string(),
            '\'' => reader.skip_character_or_lifetime(),
            ':' if reader.take_if(':') => tokens.push(Token {
                text: "::".to_owned(),
                line,
            }),
            _ if c.is_alphanumeric() || c == '_' => {
                let word = reader.word(c);
                let raw = matches!(word.as_str(), "r" | "br" | "cr");
                if !(raw && reader.skip_raw_string()) {
                    tokens.push(Token { text: word, line });
                }
            }
            _ if c.is_whitespace() => {}
            _ => tokens.push(Token {
                text: c.to_string(),
                line,
            }),
        }
    }
    tokens
}

struct Reader<'a> {
    chars: Peekable<Chars<'a>>,
    line: usize,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.chars.next();
        self.line += usize::from(c == Some('\n'));
        c
    }

    fn take_if(&mut self, wanted: char) -> bool {
        let there = self.chars.peek() == Some(&wanted);
        if there {
            self.next();
        }
        there
    }

    fn word(&mut self, first: char) -> String {
        let mut word = String::from(first);
        while let Some(c) = self
            .chars
            .peek()
            .copied()
            .filter(|c| c.is_alphanumeric() || *c == '_')
        {
            word.push(c);
            self.next();
        }
        word
    }

    fn skip_line(&mut self) {
        while self.next().is_some_and(|c| c != '\n') {}
    }

    fn skip_comment(&mut self) {
        let mut depth = 1;
        while depth > 0 {
            match self.next() {
                Some('/') if self.take_if('*') => depth += 1,
                Some('*') if self.take_if('/') => depth -= 1,
                Some(_) => {}
                None => return,
            }
        }
    }

    fn skip_string(&mut self) {
        loop {
            match self.next() {
                Some('\\') => {
                    self.next();
                }
                Some('"') | None => return,
                Some(_) => {}
            }
        }
    }

    /// Skips the raw string after the `r` that was just read. Returns false if no raw string
    /// follows, as in the name `r#type`.
    fn skip_raw_string(&mut self) -> bool {
        let mut ahead = self.chars.clone();
        let hashes = ahead.by_ref().take_while(|c| *c == '#').count();
        if self.chars.clone().nth(hashes) != Some('"') {
            return false;
        }
        for _ in 0..=hashes {
            self.next();
        }
        while let Some(c) = self.next() {
            if c == '"'
                && self
                    .chars
                    .clone()
                    .take(hashes)
                    .filter(|c| *c == '#')
                    .count()
                    == hashes
            {
                for _ in 0..hashes {
                    self.next();
                }
                break;
            }
        }
        true
    }

    fn skip_character_or_lifetime(&mut self) {
        if self.take_if('\\') {
            self.next();
            while self.next().is_some_and(|c| c != '\'') {}
        } else if self.chars.clone().nth(1) == Some('\'') {
            self.next();
            self.next();
        } else if let Some(first) = self.next() {
            self.word(first);
        }
    }
}
