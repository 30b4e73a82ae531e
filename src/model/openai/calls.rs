//! The calls of a streamed answer. Fragments with the same `index` are joined. If an endpoint omits
//! the index or sends 0 for every call, fragments are joined by id, or without ids by their
//! content. Invariant: a fragment is never joined to a call if it recognizably belongs to another
//! call. If two calls cannot be told apart, no tool accepts their joined text.

use serde_json::{Map, Value, json};

use super::merge;
use crate::model::AnswerCall;
use crate::model::clean::{Cleaner, Passing};
use crate::model::protocol::Telling;

/// The bytes that [`Calls::held`] counts for each call in addition to its texts.
const CALL: usize = 1024;

/// If this many bytes or more at the end of a call's name may begin a secret, the name is held back
/// until the arguments come. The number is half of the length of the shortest secret that is
/// searched for.
const PART: usize = 4;

/// The calls so far, in their final order.
pub(super) struct Calls {
    cleaner: Cleaner,
    all: Vec<Call>,
    held: usize,
}

struct Call {
    index: u64,
    id: String,
    name: String,
    arguments: String,
    /// The arguments, if they came as JSON instead of text.
    value: Option<Value>,
    /// The remaining members, with `function` once a fragment had it.
    rest: Map<String, Value>,
    told: Told,
}

/// How much of a call has been emitted, and the redacted arguments that wait for the name.
struct Told {
    named: bool,
    passing: Passing,
    /// Redacted arguments held back until the name is emitted.
    waiting: String,
}

/// A parsed element of a delta's `tool_calls`.
struct Fragment {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    value: Option<Value>,
    rest: Map<String, Value>,
}

impl Fragment {
    /// Parses a fragment; `None` if it is not a call. `exact` is the original text of arguments
    /// that were sent as JSON.
    fn read(sent: Value, exact: Option<&str>) -> Option<Self> {
        let Value::Object(mut rest) = sent else {
            return None;
        };
        let index = rest.remove("index").and_then(|index| index.as_u64());
        let id = text(rest.remove("id"));
        let (mut name, mut arguments, mut value) = (String::new(), String::new(), None);
        match rest.get_mut("function") {
            Some(Value::Object(function)) => {
                name = text(function.remove("name"));
                match function.remove("arguments") {
                    None | Some(Value::Null) => {}
                    Some(Value::String(text)) => arguments = text,
                    Some(sent) => {
                        exact?.clone_into(&mut arguments);
                        value = Some(sent);
                    }
                }
            }
            Some(Value::Null) | None => {
                rest.remove("function");
            }
            Some(_) => return None,
        }
        Some(Self {
            index,
            id,
            name,
            arguments,
            value,
            rest,
        })
    }
}

fn text(value: Option<Value>) -> String {
    if let Some(Value::String(text)) = value {
        text
    } else {
        String::new()
    }
}

impl Calls {
    pub(super) fn new(cleaner: Cleaner) -> Self {
        Self {
            cleaner,
            all: Vec::new(),
            held: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the approximate number of bytes held.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Takes a fragment and emits the text that it adds. `Some(true)` if pieces emitted earlier are
    /// wrong now, so that all calls must be emitted again; `None` if the fragment cannot be read.
    pub(super) fn take(
        &mut self,
        sent: Value,
        exact: Option<&str>,
        telling: &mut Telling<'_>,
    ) -> Option<bool> {
        self.held = self.held.saturating_add(sent.to_string().len());
        let fragment = Fragment::read(sent, exact)?;
        let (at, shifted) = match self.place(&fragment) {
            Some(at) => (at, false),
            None => self.begin(fragment.index),
        };
        let call = self.all.get_mut(at)?;
        let renamed = call.add(fragment);
        if shifted || renamed {
            return Some(true);
        }
        call.tell(at, &self.cleaner, telling);
        Some(false)
    }

    /// Returns the position of the call that a fragment continues; `None` if the fragment begins a
    /// call.
    fn place(&self, fragment: &Fragment) -> Option<usize> {
        let has_id = !fragment.id.is_empty();
        let found = match fragment.index {
            Some(index) => {
                let same = |id: bool| {
                    self.all
                        .iter()
                        .rposition(|call| call.index == index && (!id || call.id == fragment.id))
                };
                let at = if has_id {
                    same(true).or_else(|| same(false))
                } else {
                    same(false)
                };
                at.filter(|at| {
                    self.all
                        .get(*at)
                        .is_some_and(|call| !has_id || call.may_have(fragment))
                })
            }
            None if has_id => {
                let same = self.all.iter().rposition(|call| call.id == fragment.id);
                let goes_on = fragment.name.is_empty() && !fragment.arguments.is_empty();
                same.or_else(|| self.all.len().checked_sub(1).filter(|_| goes_on))
            }
            None => {
                let last = self.all.last()?;
                let repeats = fragment.name == last.name && !last.arguments.is_empty();
                let goes_on = fragment.name.is_empty() || last.name.is_empty() || repeats;
                self.all.len().checked_sub(1).filter(|_| goes_on)
            }
        };
        found.filter(|at| {
            self.all
                .get(*at)
                .is_some_and(|call| !call.is_over_before(fragment))
        })
    }

    /// Inserts an empty call. Returns its position, and whether later calls moved.
    fn begin(&mut self, index: Option<u64>) -> (usize, bool) {
        let index = index
            .or_else(|| self.all.last().map(|call| call.index))
            .unwrap_or(0);
        let at = self
            .all
            .iter()
            .rposition(|call| call.index <= index)
            .map_or(0, |before| before + 1);
        let moves = at < self.all.len();
        self.held = self.held.saturating_add(CALL);
        self.all.insert(at, Call::new(index, &self.cleaner));
        (at, moves)
    }

    /// Emits all calls again, after a reset.
    pub(super) fn tell_anew(&mut self, telling: &mut Telling<'_>) {
        for (at, call) in self.all.iter_mut().enumerate() {
            call.told = Told::nothing(&self.cleaner);
            call.told.hear(&call.arguments);
            call.tell(at, &self.cleaner, telling);
        }
    }

    /// Emits the rest, after the last fragment.
    pub(super) fn tell_rest(&mut self, telling: &mut Telling<'_>) {
        for (at, call) in self.all.iter_mut().enumerate() {
            call.told.hear_end();
            call.name_it(at, &self.cleaner, telling);
            call.tell(at, &self.cleaner, telling);
        }
    }

    /// Returns the parsed calls, and their JSON as an unstreamed message would contain it; `None`
    /// if an entry is not a call.
    pub(super) fn finish(self) -> Option<(Vec<AnswerCall>, Vec<Value>)> {
        let (mut read, mut sent) = (Vec::new(), Vec::new());
        for mut call in self.all {
            let function = call.rest.get_mut("function")?.as_object_mut()?;
            function.insert("name".to_owned(), json!(call.name));
            function.insert(
                "arguments".to_owned(),
                call.value.unwrap_or_else(|| json!(call.arguments)),
            );
            if !call.id.is_empty() {
                call.rest.insert("id".to_owned(), json!(call.id));
            }
            sent.push(Value::Object(call.rest));
            read.push(self.cleaner.call(&call.id, &call.name, &call.arguments));
        }
        Some((read, sent))
    }
}

impl Call {
    fn new(index: u64, cleaner: &Cleaner) -> Self {
        let (id, name, arguments) = (String::new(), String::new(), String::new());
        Self {
            index,
            id,
            name,
            arguments,
            value: None,
            rest: Map::new(),
            told: Told::nothing(cleaner),
        }
    }

    /// Whether a fragment with an id and with this call's index may continue the call. Index and id
    /// alone cannot decide: some endpoints send index 0 for every call, and some give each fragment
    /// of a call a new id. The name decides: of a call's fragments with an id, only the first has
    /// a name.
    fn may_have(&self, fragment: &Fragment) -> bool {
        self.id.is_empty() || self.id == fragment.id || fragment.name.is_empty()
    }

    /// Whether the call is already complete and the fragment brings a name and arguments again.
    fn is_over_before(&self, fragment: &Fragment) -> bool {
        let again = !fragment.name.is_empty()
            && !self.name.is_empty()
            && !fragment.arguments.trim().is_empty();
        again
            && self.arguments.trim_end().ends_with('}')
            && serde_json::from_str::<Map<_, _>>(&self.arguments).is_ok()
    }

    /// Adds a fragment. Returns whether the fragment extended a name that was not empty: the
    /// shorter name may have been emitted already.
    fn add(&mut self, fragment: Fragment) -> bool {
        if self.id.is_empty() {
            self.id = fragment.id;
        }
        merge::members(&mut self.rest, fragment.rest);
        if !fragment.arguments.is_empty() {
            self.value = fragment.value.filter(|_| self.arguments.is_empty());
            self.arguments.push_str(&fragment.arguments);
        }
        let goes_on = !fragment.name.is_empty() && fragment.name != self.name;
        let renamed = goes_on && !self.name.is_empty();
        if goes_on {
            self.name.push_str(&fragment.name);
        }
        if !renamed {
            self.told.hear(&fragment.arguments);
        }
        renamed
    }

    /// Emits what is new, once the name is known.
    fn tell(&mut self, at: usize, cleaner: &Cleaner, telling: &mut Telling<'_>) {
        // A name whose end may begin a secret is held back until the arguments or the end of the
        // answer show that the name is complete.
        let held = || {
            cleaner
                .text(&self.name)
                .len()
                .saturating_sub(cleaner.passing_text().push(&self.name).len())
        };
        let clear = || !self.arguments.is_empty() || held() < PART;
        if !self.name.is_empty() && clear() {
            self.name_it(at, cleaner, telling);
        }
        if self.told.named {
            telling.arguments(at, &std::mem::take(&mut self.told.waiting));
        }
    }

    fn name_it(&mut self, at: usize, cleaner: &Cleaner, telling: &mut Telling<'_>) {
        if !std::mem::replace(&mut self.told.named, true) {
            telling.named(at, &cleaner.text(&self.name));
        }
    }
}

impl Told {
    fn nothing(cleaner: &Cleaner) -> Self {
        Self {
            named: false,
            passing: cleaner.passing_arguments(),
            waiting: String::new(),
        }
    }

    fn hear(&mut self, arguments: &str) {
        let passed = self.passing.push(arguments);
        self.waiting.push_str(&passed);
    }

    fn hear_end(&mut self) {
        let passed = self.passing.finish();
        self.waiting.push_str(&passed);
    }
}
