//! Collects the calls of a streamed answer, which arrive in fragments. Each fragment either
//! continues an earlier call or begins a new call. The fragment's `index` tells which call it
//! continues. Some endpoints omit the `index`, or send 0 for every call; then the fragment's id
//! tells the call. If a fragment has neither an `index` nor an id, its name and arguments tell
//! whether it continues the last call.
//!
//! Invariant: a fragment that shows by its members that it begins a new call never continues an
//! earlier call. Sometimes the fragments of two calls look like the fragments of one call. The
//! arguments of both calls then become one text: two JSON objects in a row. No tool accepts such a
//! text, so no wrong call runs.

use serde_json::{Map, Value, json};

use super::merge;
use crate::model::AnswerCall;
use crate::model::clean::{Cleaner, StreamCleaner};
use crate::model::protocol::PieceEmitter;

/// The number of bytes that [`PartialCalls::held_bytes`] counts for each call in addition to its
/// texts.
const CALL_OVERHEAD_BYTES: usize = 1024;

/// A call's name is held back if its last bytes, at least this many, are the beginning of a secret,
/// because the next fragment may complete the secret. The name is emitted when the call's arguments
/// or the end of the answer arrive: the name is then complete. The number is half of the minimum
/// length of a redacted secret.
const MIN_SECRET_PREFIX_BYTES: usize = 4;

/// The calls received so far. The calls are ordered by index; calls with the same index are ordered
/// by arrival.
pub(super) struct PartialCalls {
    cleaner: Cleaner,
    all: Vec<PartialCall>,
    held_bytes: usize,
}

struct PartialCall {
    index: u64,
    id: String,
    name: String,
    arguments: String,
    /// The arguments, if the endpoint sent them as JSON instead of text.
    value: Option<Value>,
    /// All other members that the endpoint sent. If the endpoint sent the object `function`, this
    /// map holds it without its `name` and `arguments`.
    other_members: Map<String, Value>,
    emitted: EmittedPart,
}

struct EmittedPart {
    name_emitted: bool,
    cleaner: StreamCleaner,
    /// Redacted arguments held back until the name is emitted.
    pending_arguments: String,
}

/// A parsed element of a delta's `tool_calls`.
struct Fragment {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    value: Option<Value>,
    other_members: Map<String, Value>,
}

impl Fragment {
    /// Parses a fragment; `None` if the fragment is not a call. If the arguments were sent as JSON,
    /// `exact` is their original text.
    fn read(sent: Value, exact: Option<&str>) -> Option<Self> {
        let Value::Object(mut other_members) = sent else {
            return None;
        };
        let index = other_members
            .remove("index")
            .and_then(|index| index.as_u64());
        let id = text(other_members.remove("id"));
        let (mut name, mut arguments, mut value) = (String::new(), String::new(), None);
        match other_members.get_mut("function") {
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
                other_members.remove("function");
            }
            Some(_) => return None,
        }
        Some(Self {
            index,
            id,
            name,
            arguments,
            value,
            other_members,
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

impl PartialCalls {
    pub(super) fn new(cleaner: Cleaner) -> Self {
        Self {
            cleaner,
            all: Vec::new(),
            held_bytes: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the approximate number of bytes that the calls hold in memory.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Takes a fragment. There are three results:
    ///
    /// - `Some(false)`: the function has emitted the text that the fragment adds.
    /// - `Some(true)`: the fragment makes earlier pieces wrong, because it inserts a call before
    ///   other calls, or extends the name of its call. The function has emitted nothing. The caller
    ///   must reset the pieces and emit all calls again.
    /// - `None`: the fragment cannot be read.
    pub(super) fn take_fragment(
        &mut self,
        sent: Value,
        exact: Option<&str>,
        emitter: &mut PieceEmitter<'_>,
    ) -> Option<bool> {
        self.held_bytes = self.held_bytes.saturating_add(sent.to_string().len());
        let fragment = Fragment::read(sent, exact)?;
        let (at, shifted) = match self.continued_call(&fragment) {
            Some(at) => (at, false),
            None => self.insert_call(fragment.index),
        };
        let call = self.all.get_mut(at)?;
        let renamed = call.add(fragment);
        if shifted || renamed {
            return Some(true);
        }
        call.emit(at, &self.cleaner, emitter);
        Some(false)
    }

    /// Returns the position of the call that a fragment continues; `None` if the fragment begins a
    /// call.
    fn continued_call(&self, fragment: &Fragment) -> Option<usize> {
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
                        .is_some_and(|call| !has_id || call.may_continue_with(fragment))
                })
            }
            None if has_id => {
                let same = self.all.iter().rposition(|call| call.id == fragment.id);
                let continues = fragment.name.is_empty() && !fragment.arguments.is_empty();
                same.or_else(|| self.all.len().checked_sub(1).filter(|_| continues))
            }
            None => {
                let last = self.all.last()?;
                let repeats = fragment.name == last.name && !last.arguments.is_empty();
                let continues = fragment.name.is_empty() || last.name.is_empty() || repeats;
                self.all.len().checked_sub(1).filter(|_| continues)
            }
        };
        found.filter(|at| {
            self.all
                .get(*at)
                .is_some_and(|call| !call.is_complete_before(fragment))
        })
    }

    /// Inserts an empty call. Returns the position of the call, and whether calls after it have
    /// moved.
    fn insert_call(&mut self, index: Option<u64>) -> (usize, bool) {
        let index = index
            .or_else(|| self.all.last().map(|call| call.index))
            .unwrap_or(0);
        let at = self
            .all
            .iter()
            .rposition(|call| call.index <= index)
            .map_or(0, |before| before + 1);
        let moves = at < self.all.len();
        self.held_bytes = self.held_bytes.saturating_add(CALL_OVERHEAD_BYTES);
        self.all.insert(at, PartialCall::new(index, &self.cleaner));
        (at, moves)
    }

    /// Emits all calls again, after a reset.
    pub(super) fn emit_again(&mut self, emitter: &mut PieceEmitter<'_>) {
        for (at, call) in self.all.iter_mut().enumerate() {
            call.emitted = EmittedPart::new(&self.cleaner);
            call.emitted.add_arguments(&call.arguments);
            call.emit(at, &self.cleaner, emitter);
        }
    }

    /// Emits the remaining names and arguments of all calls, after the last fragment.
    pub(super) fn emit_rest(&mut self, emitter: &mut PieceEmitter<'_>) {
        for (at, call) in self.all.iter_mut().enumerate() {
            call.emitted.end_arguments();
            call.emit_name(at, &self.cleaner, emitter);
            call.emit(at, &self.cleaner, emitter);
        }
    }

    /// Returns the parsed calls, and their JSON as an unstreamed message would contain it. Returns
    /// `None` if the fragments of a call had no `function`.
    pub(super) fn finish(self) -> Option<(Vec<AnswerCall>, Vec<Value>)> {
        let (mut read, mut sent) = (Vec::new(), Vec::new());
        for mut call in self.all {
            let function = call.other_members.get_mut("function")?.as_object_mut()?;
            function.insert("name".to_owned(), json!(call.name));
            function.insert(
                "arguments".to_owned(),
                call.value.unwrap_or_else(|| json!(call.arguments)),
            );
            if !call.id.is_empty() {
                call.other_members.insert("id".to_owned(), json!(call.id));
            }
            sent.push(Value::Object(call.other_members));
            read.push(self.cleaner.call(&call.id, &call.name, &call.arguments));
        }
        Some((read, sent))
    }
}

impl PartialCall {
    fn new(index: u64, cleaner: &Cleaner) -> Self {
        let (id, name, arguments) = (String::new(), String::new(), String::new());
        Self {
            index,
            id,
            name,
            arguments,
            value: None,
            other_members: Map::new(),
            emitted: EmittedPart::new(cleaner),
        }
    }

    /// Returns whether a fragment may continue this call. The fragment has an id and this call's
    /// index. The same index is not enough to continue the call, because some endpoints send 0 for
    /// every call. A different id is not enough to begin another call, because some endpoints give
    /// each fragment a new id. A different id together with a name begins another call.
    fn may_continue_with(&self, fragment: &Fragment) -> bool {
        self.id.is_empty() || self.id == fragment.id || fragment.name.is_empty()
    }

    /// Returns whether `fragment` begins another call: the call collected so far is complete, and
    /// `fragment` has a name and arguments of its own.
    fn is_complete_before(&self, fragment: &Fragment) -> bool {
        let restarts = !fragment.name.is_empty()
            && !self.name.is_empty()
            && !fragment.arguments.trim().is_empty();
        restarts
            && self.arguments.trim_end().ends_with('}')
            && serde_json::from_str::<Map<_, _>>(&self.arguments).is_ok()
    }

    /// Adds a fragment. Returns true if the fragment extends the name that the call already has.
    /// The shorter name may have been emitted as the whole name, so the caller must then emit all
    /// calls again.
    fn add(&mut self, fragment: Fragment) -> bool {
        if self.id.is_empty() {
            self.id = fragment.id;
        }
        merge::members(&mut self.other_members, fragment.other_members);
        if !fragment.arguments.is_empty() {
            self.value = fragment.value.filter(|_| self.arguments.is_empty());
            self.arguments.push_str(&fragment.arguments);
        }
        let continues = !fragment.name.is_empty() && fragment.name != self.name;
        let renamed = continues && !self.name.is_empty();
        if continues {
            self.name.push_str(&fragment.name);
        }
        if !renamed {
            self.emitted.add_arguments(&fragment.arguments);
        }
        renamed
    }

    /// Emits the name once the name is known, and then the arguments that were not emitted before.
    fn emit(&mut self, at: usize, cleaner: &Cleaner, emitter: &mut PieceEmitter<'_>) {
        // If the end of the name may be the beginning of a secret, the name is held back. When the
        // arguments or the end of the answer arrive, the name is complete and is emitted.
        let held_bytes = || {
            cleaner
                .text(&self.name)
                .len()
                .saturating_sub(cleaner.text_stream().push(&self.name).len())
        };
        let clear = || !self.arguments.is_empty() || held_bytes() < MIN_SECRET_PREFIX_BYTES;
        if !self.name.is_empty() && clear() {
            self.emit_name(at, cleaner, emitter);
        }
        if self.emitted.name_emitted {
            emitter.arguments(at, &std::mem::take(&mut self.emitted.pending_arguments));
        }
    }

    fn emit_name(&mut self, at: usize, cleaner: &Cleaner, emitter: &mut PieceEmitter<'_>) {
        if !std::mem::replace(&mut self.emitted.name_emitted, true) {
            emitter.call_name(at, &cleaner.text(&self.name));
        }
    }
}

impl EmittedPart {
    fn new(cleaner: &Cleaner) -> Self {
        Self {
            name_emitted: false,
            cleaner: cleaner.arguments_stream(),
            pending_arguments: String::new(),
        }
    }

    fn add_arguments(&mut self, arguments: &str) {
        let cleaned = self.cleaner.push(arguments);
        self.pending_arguments.push_str(&cleaned);
    }

    fn end_arguments(&mut self) {
        let cleaned = self.cleaner.finish();
        self.pending_arguments.push_str(&cleaned);
    }
}
