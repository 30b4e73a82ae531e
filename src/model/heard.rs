//! Sinks for tests: [`Unheard`] ignores its pieces; [`Heard`] assembles its pieces and asserts the
//! rules that [`Piece`] documents.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::{Answer, Piece, Sink};

/// Ignores all pieces, for code that wants only the whole answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unheard;

impl Sink for Unheard {
    fn piece(&self, _: Piece<'_>) {}

    fn heard(&self) -> bool {
        false
    }
}

/// Assembles its pieces.
#[derive(Debug, Default)]
pub(crate) struct Heard(Mutex<Told>);

/// The sum of the pieces since the last reset, and the number of resets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) text: String,
    /// Name and arguments of each call.
    pub(crate) calls: BTreeMap<usize, (String, String)>,
    pub(crate) pieces: usize,
    pub(crate) resets: usize,
}

impl Heard {
    pub(crate) fn told(&self) -> Told {
        self.0.lock().unwrap().clone()
    }

    /// Asserts that the pieces add up to the answer.
    pub(crate) fn adds_up_to(&self, answer: &Answer) {
        let told = self.told();
        assert_eq!(told.text, answer.text.clone().unwrap_or_default());
        let calls = answer
            .calls
            .iter()
            .map(|call| (call.name.clone(), call.arguments_text.clone()));
        assert_eq!(told.calls, calls.enumerate().collect());
    }
}

impl Sink for Heard {
    fn piece(&self, piece: Piece<'_>) {
        let mut told = self.0.lock().unwrap();
        told.pieces += 1;
        match piece {
            Piece::Text(text) => {
                assert!(!text.is_empty(), "a piece of nothing");
                told.text += text;
            }
            Piece::Named { call, name } => {
                let before = told.calls.insert(call, (name.to_owned(), String::new()));
                assert_eq!(before, None, "call {call} was named twice");
            }
            Piece::Arguments { call, text } => {
                assert!(!text.is_empty(), "a piece of nothing");
                let (_, arguments) = told
                    .calls
                    .get_mut(&call)
                    .expect("a call is named before its arguments");
                arguments.push_str(text);
            }
            Piece::Reset => {
                let resets = told.resets + 1;
                *told = Told {
                    resets,
                    pieces: told.pieces,
                    ..Told::default()
                };
            }
        }
    }
}
