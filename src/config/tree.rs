//! A YAML document as a tree. Each node has its origin, which gives the position of a reported
//! mistake. Invariant: a message may quote a key, but no value.

use std::collections::BTreeMap;

use granit_parser::{Event, Parser, ScalarStyle, Span, Tag};
use serde_json::{Number, Value};

use crate::world::Mistakes;

/// The maximum number of nodes of a document, with its aliases expanded.
const MAX_NODES: usize = 200_000;
/// The maximum depth to which lists and maps nest.
const MAX_DEPTH: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A position in the file. Line and column count from 1; the column counts characters.
    File { line: usize, column: usize },
    /// The environment variable of this name.
    Variable(String),
    /// The command line flag of this name.
    Flag(&'static str),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub origin: Origin,
    pub kind: Kind,
    /// Whether a mistake was reported for this node. A broken node is not read as a setting.
    pub broken: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// An empty value, or `null`.
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    /// The entries in the order of the document.
    Map(Vec<MapEntry>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct MapEntry {
    pub key: String,
    /// The origin of the key. `node` has the origin of the value.
    pub origin: Origin,
    pub node: Node,
}

impl Node {
    #[must_use]
    pub fn new(origin: Origin, kind: Kind) -> Self {
        Self {
            origin,
            kind,
            broken: false,
        }
    }

    /// Returns the entries of a map; empty for other kinds.
    #[must_use]
    pub fn entries(&self) -> &[MapEntry] {
        if let Kind::Map(entries) = &self.kind {
            entries
        } else {
            &[]
        }
    }

    /// Returns the elements of a list; empty for other kinds.
    #[must_use]
    pub fn elements(&self) -> &[Node] {
        if let Kind::List(elements) = &self.kind {
            elements
        } else {
            &[]
        }
    }

    /// Returns the text of a text node; `None` for other kinds.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        if let Kind::Text(text) = &self.kind {
            Some(text)
        } else {
            None
        }
    }

    /// Returns the child at a step, which is a key of a map or an index of a list.
    #[must_use]
    pub fn get(&self, step: &str) -> Option<&Node> {
        match &self.kind {
            Kind::Map(entries) => entries
                .iter()
                .find(|entry| entry.key == step)
                .map(|entry| &entry.node),
            Kind::List(elements) => elements.get(step.parse::<usize>().ok()?),
            Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::Text(_) => None,
        }
    }

    pub fn get_mut(&mut self, step: &str) -> Option<&mut Node> {
        match &mut self.kind {
            Kind::Map(entries) => entries
                .iter_mut()
                .find(|entry| entry.key == step)
                .map(|entry| &mut entry.node),
            Kind::List(elements) => elements.get_mut(step.parse::<usize>().ok()?),
            Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::Text(_) => None,
        }
    }

    /// Returns the children of a list or map, each with the step that leads to it.
    pub fn children_mut(&mut self) -> Vec<(String, &mut Node)> {
        match &mut self.kind {
            Kind::Map(entries) => entries
                .iter_mut()
                .map(|entry| (entry.key.clone(), &mut entry.node))
                .collect(),
            Kind::List(elements) => elements
                .iter_mut()
                .enumerate()
                .map(|(index, element)| (index.to_string(), element))
                .collect(),
            Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::Text(_) => Vec::new(),
        }
    }

    #[must_use]
    pub fn at<S: AsRef<str>>(&self, path: &[S]) -> Option<&Node> {
        path.iter()
            .try_fold(self, |node, step| node.get(step.as_ref()))
    }

    /// Whether a mistake was reported for the node at a path or for a node above it.
    #[must_use]
    pub fn is_broken_on_path<S: AsRef<str>>(&self, path: &[S]) -> bool {
        self.broken
            || path.split_first().is_some_and(|(step, rest)| {
                self.get(step.as_ref())
                    .is_some_and(|next| next.is_broken_on_path(rest))
            })
    }

    /// Returns the origin of the deepest node that exists on a path. If this node
    /// comes from the file and is the value of a key, returns the origin of the key instead.
    #[must_use]
    pub fn origin_of<S: AsRef<str>>(&self, path: &[S]) -> &Origin {
        let mut origin = &self.origin;
        let mut node = self;
        for step in path {
            let step = step.as_ref();
            let Some(next) = node.get(step) else { break };
            let key = node
                .entries()
                .iter()
                .find(|entry| entry.key == step)
                .map(|entry| &entry.origin);
            let is_from_file = matches!(next.origin, Origin::File { .. });
            origin = key.filter(|_| is_from_file).unwrap_or(&next.origin);
            node = next;
        }
        origin
    }

    #[must_use]
    pub fn noun(&self) -> &'static str {
        match &self.kind {
            Kind::Null => "nothing",
            Kind::Bool(_) => "true or false",
            Kind::Number(_) => "a number",
            Kind::Text(_) => "text",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a map",
        }
    }

    #[must_use]
    pub fn to_json(&self) -> Value {
        match &self.kind {
            Kind::Null => Value::Null,
            Kind::Bool(value) => Value::Bool(*value),
            Kind::Number(number) => Value::Number(number.clone()),
            Kind::Text(text) => Value::String(text.clone()),
            Kind::List(elements) => elements.iter().map(Self::to_json).collect(),
            Kind::Map(entries) => entries
                .iter()
                .map(|entry| (entry.key.clone(), entry.node.to_json()))
                .collect(),
        }
    }
}

/// A list or map whose end the parser has not reached.
struct OpenCollection {
    /// The list or map so far.
    node: Node,
    /// The number of the anchor of the list or map; 0 if there is no anchor.
    anchor: usize,
    /// In a map: the key whose value comes next.
    key: Option<(String, Origin)>,
}

impl OpenCollection {
    /// Whether the next node is a key of this map.
    fn awaits_key(&self) -> bool {
        matches!(self.node.kind, Kind::Map(_)) && self.key.is_none()
    }
}

/// The state while the tree is built from the parser's events. `anchors` maps the number of an
/// anchor to its node and the size of the node. `nodes` counts all nodes so far.
struct Builder<'m> {
    origin: Option<Origin>,
    open: Vec<OpenCollection>,
    anchors: BTreeMap<usize, (Node, usize)>,
    root: Option<Node>,
    documents: usize,
    nodes: usize,
    mistakes: &'m mut Mistakes,
}

/// Parses one YAML document. An empty document gives [`Kind::Null`]. If `origin` is given, every
/// node gets this origin. If a key is repeated, its first value counts, and the repetitions are
/// reported. Reports a mistake and returns `None` if the text is not YAML, has several documents,
/// has a list or map as a key, has an alias inside its own anchor, is too large or nests too
/// deeply.
pub fn parse(text: &str, origin: Option<Origin>, mistakes: &mut Mistakes) -> Option<Node> {
    let mut builder = Builder {
        origin,
        open: Vec::new(),
        anchors: BTreeMap::new(),
        root: None,
        documents: 0,
        nodes: 0,
        mistakes,
    };
    for event in Parser::new_from_str(text) {
        let (event, span) = match event {
            Ok(both) => both,
            Err(error) => {
                let mark = error.marker();
                let place = format!("@{}:{}", mark.line(), mark.col() + 1);
                builder.mistakes.add(
                    &[&place],
                    "this is not YAML: a value, a quote or an indentation is wrong here",
                );
                return None;
            }
        };
        let handled = builder.handle_event(event, &span);
        if handled.is_none() && builder.mistakes.is_empty() {
            builder.report(
                &span,
                "an alias in its own anchor, or a key that is not a text",
            );
        }
        handled?;
    }
    let origin = builder.origin;
    let origin = origin.unwrap_or(Origin::File { line: 1, column: 1 });
    let root = builder.root;
    Some(root.unwrap_or_else(|| Node::new(origin, Kind::Null)))
}

impl Builder<'_> {
    fn origin(&self, span: &Span) -> Origin {
        self.origin.clone().unwrap_or_else(|| Origin::File {
            line: span.start.line().max(1),
            column: span.start.col() + 1,
        })
    }

    /// Returns the path of the value that the parser reads next.
    fn path(&self) -> Vec<String> {
        self.open
            .iter()
            .filter_map(|open| {
                if let Kind::List(elements) = &open.node.kind {
                    return Some(elements.len().to_string());
                }
                open.key.as_ref().map(|(key, _)| key.clone())
            })
            .collect()
    }

    fn report(&mut self, span: &Span, detail: &str) {
        let place = format!("@{}:{}", span.start.line(), span.start.col() + 1);
        let mut path = vec![place];
        path.extend(self.path());
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        self.mistakes.add(&path, detail);
    }

    fn handle_event(&mut self, event: Event<'_>, span: &Span) -> Option<()> {
        match event {
            Event::DocumentStart(..) => self.begin_document(span)?,
            Event::Scalar(text, style, anchor, tag) => {
                let has_known_tag = self.check_tag(tag.as_deref(), span);
                let is_string_tag = tag.is_some_and(|tag| tag.core_suffix() == Some("str"));
                let is_plain = style == ScalarStyle::Plain && !is_string_tag;
                // A key is a name and keeps its spelling: `007` and `7` are two names, and `1e3`
                // is not `1000.0`.
                let is_key = self.open.last().is_some_and(OpenCollection::awaits_key);
                let kind = if is_plain && !is_key {
                    plain_scalar(&text)
                } else {
                    Kind::Text(text.into())
                };
                let is_bare_anchor = anchor != 0 && matches!(kind, Kind::Null);
                if is_bare_anchor {
                    let detail = "a word that begins with `&` is an anchor and no part of a value: put quotes around it";
                    self.report(span, detail);
                }
                let mut node = Node::new(self.origin(span), kind);
                node.broken = is_bare_anchor || !has_known_tag;
                self.put(node, anchor, 1, span)?;
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.check_tag(tag.as_deref(), span);
                self.begin(Kind::List(Vec::new()), anchor, span)?;
            }
            Event::MappingStart(_, anchor, tag) => {
                self.check_tag(tag.as_deref(), span);
                self.begin(Kind::Map(Vec::new()), anchor, span)?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let OpenCollection { node, anchor, .. } = self.open.pop()?;
                self.put(node, anchor, 1, span)?;
            }
            Event::Alias(id) => {
                let (node, size) = self.anchors.get(&id).cloned()?;
                self.put(node, 0, size, span)?;
            }
            Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentEnd
            | Event::Anchor(..)
            | Event::UnresolvedAlias(_)
            | _ => {}
        }
        Some(())
    }

    /// Reports a tag outside the core schema. Returns `false` if there is such a tag. YAML reads a
    /// word that begins with `!` as a tag, so the value of `when: !args.paid` is empty.
    fn check_tag(&mut self, tag: Option<&Tag>, span: &Span) -> bool {
        let is_known = tag.is_none_or(Tag::is_yaml_core_schema);
        if !is_known {
            let detail =
                "a word that begins with `!` is a tag and no part of a value: put quotes around it";
            self.report(span, detail);
        }
        is_known
    }

    fn begin_document(&mut self, span: &Span) -> Option<()> {
        self.documents += 1;
        if self.documents > 1 {
            self.report(
                span,
                "a second document begins here: the file holds one document",
            );
            return None;
        }
        Some(())
    }

    fn begin(&mut self, kind: Kind, anchor: usize, span: &Span) -> Option<()> {
        if self.open.last().is_some_and(OpenCollection::awaits_key) {
            self.report(span, "a key has to be text");
            return None;
        }
        if self.open.len() >= MAX_DEPTH {
            self.report(span, "this nests too deeply");
            return None;
        }
        let node = Node::new(self.origin(span), kind);
        self.open.push(OpenCollection {
            node,
            anchor,
            key: None,
        });
        Some(())
    }

    fn put(&mut self, node: Node, anchor: usize, size: usize, span: &Span) -> Option<()> {
        self.nodes += size;
        if self.nodes > MAX_NODES {
            self.report(span, "the document is too large");
            return None;
        }
        if anchor != 0 {
            self.anchors
                .insert(anchor, (node.clone(), count_nodes(&node)));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Some(());
        };
        let entries = match &mut open.node.kind {
            Kind::List(elements) => {
                elements.push(node);
                return Some(());
            }
            Kind::Map(entries) => entries,
            Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::Text(_) => return None,
        };
        let Some((key, origin)) = open.key.take() else {
            open.key = Some((key_text(&node)?, node.origin));
            return Some(());
        };
        // YAML 1.2 has no merge keys, so `<<` would be an ordinary key. In a tool's JSON Schema, an
        // unknown key is ignored, so the mistake would stay unnoticed.
        let detail = if key == "<<" {
            "`<<` merges no map here: write the keys of that map out".to_owned()
        } else if entries.iter().any(|entry| entry.key == key) {
            format!("the key `{key}` occurs twice")
        } else {
            entries.push(MapEntry { key, origin, node });
            return Some(());
        };
        let mut path = self.path();
        if let Origin::File { line, column } = origin {
            path.insert(0, format!("@{line}:{column}"));
        }
        path.push(key);
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        self.mistakes.add(&path, detail);
        Some(())
    }
}

fn key_text(node: &Node) -> Option<String> {
    match &node.kind {
        Kind::Text(text) => Some(text.clone()),
        Kind::Bool(value) => Some(value.to_string()),
        Kind::Number(number) => Some(number.to_string()),
        Kind::Null => Some("null".to_owned()),
        Kind::List(_) | Kind::Map(_) => None,
    }
}

fn count_nodes(node: &Node) -> usize {
    let values = node.entries().iter().map(|entry| &entry.node);
    let all = node.elements().iter().chain(values);
    1 + all.map(count_nodes).sum::<usize>()
}

/// Reads a plain scalar by the core schema of YAML 1.2.
fn plain_scalar(text: &str) -> Kind {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Kind::Null,
        "true" | "True" | "TRUE" => Kind::Bool(true),
        "false" | "False" | "FALSE" => Kind::Bool(false),
        _ => number(text).map_or_else(|| Kind::Text(text.to_owned()), Kind::Number),
    }
}

fn number(text: &str) -> Option<Number> {
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok().map(Number::from);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return u64::from_str_radix(digits, 8).ok().map(Number::from);
    }
    if let Ok(small) = text.parse::<i64>() {
        return Some(small.into());
    }
    if let Ok(large) = text.parse::<u64>() {
        return Some(large.into());
    }
    // `f64` takes the same decimal numbers as the core schema, and also words such as `inf`.
    let is_decimal = |byte: u8| byte.is_ascii_digit() || b"+-.eE".contains(&byte);
    let number: f64 = text.parse().ok()?;
    Number::from_f64(number).filter(|_| text.bytes().all(is_decimal))
}

#[cfg(test)]
mod tests;
