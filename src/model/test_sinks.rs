//! Sinks for tests. [`DiscardingSink`] ignores its pieces. [`CollectingSink`] joins its pieces and
//! asserts the rules that [`Piece`] documents.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::{Answer, Piece, PieceSink};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiscardingSink;

impl PieceSink for DiscardingSink {
    fn receive(&self, _: Piece<'_>) {}

    fn has_listener(&self) -> bool {
        false
    }
}

#[derive(Debug, Default)]
pub(crate) struct CollectingSink(Mutex<Collected>);

/// The joined pieces since the last reset, and the number of resets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collected {
    pub(crate) text: String,
    /// The name and the arguments of each call, by the call's index.
    pub(crate) calls: BTreeMap<usize, (String, String)>,
    pub(crate) pieces: usize,
    pub(crate) resets: usize,
}

impl CollectingSink {
    pub(crate) fn collected(&self) -> Collected {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn assert_adds_up_to(&self, answer: &Answer) {
        let collected = self.collected();
        assert_eq!(collected.text, answer.text.clone().unwrap_or_default());
        let calls = answer
            .calls
            .iter()
            .map(|call| (call.name.clone(), call.arguments_text.clone()));
        assert_eq!(collected.calls, calls.enumerate().collect());
    }
}

impl PieceSink for CollectingSink {
    fn receive(&self, piece: Piece<'_>) {
        let mut collected = self.0.lock().unwrap();
        collected.pieces += 1;
        match piece {
            Piece::Text(text) => {
                assert!(!text.is_empty(), "a piece of nothing");
                collected.text += text;
            }
            Piece::CallName { call, name } => {
                let before = collected
                    .calls
                    .insert(call, (name.to_owned(), String::new()));
                assert_eq!(before, None, "call {call} was named twice");
            }
            Piece::Arguments { call, text } => {
                assert!(!text.is_empty(), "a piece of nothing");
                let (_, arguments) = collected
                    .calls
                    .get_mut(&call)
                    .expect("a call is named before its arguments");
                arguments.push_str(text);
            }
            Piece::Reset => {
                let resets = collected.resets + 1;
                *collected = Collected {
                    resets,
                    pieces: collected.pieces,
                    ..Collected::default()
                };
            }
        }
    }
}
