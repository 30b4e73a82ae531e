//! Turns ids of calls and names of tools into a form that strict protocols accept. Invariant: the
//! same conversation always gets the same ids, because an endpoint may compare each request with
//! the previous request.

use std::collections::{BTreeMap, BTreeSet};

/// The maximum number of characters of a tool name that an endpoint accepts. Also the maximum
/// number of characters of an id, except with Chat Completions.
const MAX_CHARS: usize = 64;

/// The ids of calls and results within one request. Endpoints accept letters, digits, `_` and `-`
/// in an id. Endpoints refuse an id that is too long, and an id that two calls of a conversation
/// share. A stored id may break these rules, because another provider may have chosen the id's
/// characters and length, and may have repeated the id in every turn.
#[derive(Debug)]
pub(super) struct CallIds {
    max_chars: usize,
    used: BTreeSet<String>,
    /// Maps the stored id of each call of the current turn to the id that is sent.
    turn: BTreeMap<String, String>,
}

impl Default for CallIds {
    fn default() -> Self {
        Self::with_max_chars(MAX_CHARS)
    }
}

impl CallIds {
    pub(super) fn with_max_chars(max_chars: usize) -> Self {
        Self {
            max_chars,
            used: BTreeSet::new(),
            turn: BTreeMap::new(),
        }
    }

    /// Starts a turn whose calls keep their stored ids, because the ids came through the same
    /// protocol.
    pub(super) fn start_turn_with_stored_ids<'a>(&mut self, calls: impl Iterator<Item = &'a str>) {
        self.turn = calls.map(|id| (id.to_owned(), id.to_owned())).collect();
        self.used.extend(self.turn.keys().cloned());
    }

    /// Starts a turn whose calls have the stored ids `calls`. The ids may have come through another
    /// protocol, so each call gets an id to send that every endpoint accepts: refused characters
    /// become `_`, a long id is cut, and a repeated id gets a number.
    pub(super) fn start_turn<'a>(&mut self, calls: impl Iterator<Item = &'a str>) {
        self.turn.clear();
        let max_chars = self.max_chars;
        for id in calls {
            let sanitized = sanitized(id, max_chars);
            let sanitized = if sanitized.is_empty() {
                "call".to_owned()
            } else {
                sanitized
            };
            let numbered = (2_u64..).map(|times| {
                let suffix = format!("-{times}");
                cut(&sanitized, max_chars.saturating_sub(suffix.len())) + &suffix
            });
            let unused = std::iter::once(sanitized.clone())
                .chain(numbered)
                .find(|id| self.used.insert(id.clone()));
            self.turn.insert(id.to_owned(), unused.unwrap_or_default());
        }
    }

    /// Returns the id to send for a call of the current turn.
    pub(super) fn sent_id(&self, id: &str) -> String {
        let sent = self.turn.get(id).cloned();
        sent.unwrap_or_else(|| sanitized(id, self.max_chars))
    }
}

fn cut(text: &str, longest: usize) -> String {
    text.chars().take(longest).collect()
}

/// Returns the text with `_` for each character that ids and tool names may not contain, cut to
/// `max_chars` characters.
fn sanitized(text: &str, max_chars: usize) -> String {
    let is_refused = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    cut(text, max_chars).replace(is_refused, "_")
}

/// Returns a tool name that may be sent. A stored name may have characters or a length that an
/// endpoint refuses, because the model may have called a tool that was never offered.
pub(super) fn tool_name(name: &str) -> String {
    let sanitized = sanitized(name, MAX_CHARS);
    if sanitized.is_empty() {
        "unnamed".to_owned()
    } else {
        sanitized
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_sent_only_once_and_a_valid_one_is_kept() {
        let mut ids = CallIds::default();
        ids.start_turn(["call_0", "call:0", "", "toolu_1"].into_iter());
        let first = ["call_0", "call:0", "", "toolu_1"].map(|id| ids.sent_id(id));
        ids.start_turn(["call_0", "call_1"].into_iter());
        let second = ["call_0", "call_1"].map(|id| ids.sent_id(id));
        assert_eq!(first, ["call_0", "call_0-2", "call", "toolu_1"]);
        assert_eq!(second, ["call_0-3", "call_1"]);
    }

    #[test]
    fn long_id_is_cut_and_stays_different_from_others() {
        let (long, longer) = ("x".repeat(64), "x".repeat(99));
        let mut ids = CallIds::default();
        ids.start_turn([long.as_str(), longer.as_str()].into_iter());
        assert_eq!(ids.sent_id(&long), long);
        assert_eq!(ids.sent_id(&longer), format!("{}-2", "x".repeat(62)));
    }

    #[test]
    fn own_id_is_kept_and_an_id_of_another_protocol_stays_different_from_it() {
        let mut ids = CallIds::with_max_chars(4);
        ids.start_turn_with_stored_ids(["call:0"].into_iter());
        assert_eq!(ids.sent_id("call:0"), "call:0");
        ids.start_turn_with_stored_ids(["call"].into_iter());
        assert_eq!(ids.sent_id("call"), "call");
        ids.start_turn(["call:0"].into_iter());
        assert_eq!(ids.sent_id("call:0"), "ca-2");
        ids.start_turn_with_stored_ids(["call"].into_iter());
        assert_eq!(ids.sent_id("call"), "call");
    }
}
