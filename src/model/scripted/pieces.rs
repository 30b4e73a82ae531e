//! Emits a scripted answer in pieces: the text word by word, then each call's name and arguments.
//! Invariant: the pieces add up to the answer, and emitting them takes exactly the requested time.

use std::time::Duration;

use crate::model::{AnswerCall, Piece, Sink};
use crate::world::Clock;

/// The least number of bytes in a piece of arguments.
const ARGUMENTS: usize = 8;
/// The shortest pause. Sleeps are inaccurate, and the errors of many short ones would add up.
const SHORTEST: Duration = Duration::from_millis(25);

pub(super) fn pieces<'a>(text: Option<&'a str>, calls: &'a [AnswerCall]) -> Vec<Piece<'a>> {
    let mut pieces: Vec<_> = words(text.unwrap_or_default()).map(Piece::Text).collect();
    for (call, asked) in calls.iter().enumerate() {
        pieces.push(Piece::Named {
            call,
            name: &asked.name,
        });
        pieces.extend(lengths(&asked.arguments_text).map(|text| Piece::Arguments { call, text }));
    }
    pieces
}

/// Emits the pieces, spread over `time`: the first piece after the first pause, the last piece at
/// the end of `time`.
pub(super) async fn tell(pieces: &[Piece<'_>], time: Duration, clock: &dyn Clock, sink: &dyn Sink) {
    let most = usize::try_from(time.as_millis() / SHORTEST.as_millis()).unwrap_or(usize::MAX);
    let groups = most.min(pieces.len()).max(1);
    let pause = u32::try_from(groups).map_or(Duration::ZERO, |groups| time / groups);
    let mut told = 0;
    for group in 1..=groups {
        if !pause.is_zero() {
            clock.sleep(pause).await;
        }
        let upto = pieces.len() * group / groups;
        for piece in pieces.iter().take(upto).skip(told) {
            sink.piece(*piece);
        }
        told = upto;
    }
}

/// Cuts a text before each of its words.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let starts_word =
        |(before, after): (char, char)| before.is_whitespace() && !after.is_whitespace();
    cut(text, move |_, pair| starts_word(pair))
}

/// Cuts a text every few bytes.
fn lengths(text: &str) -> impl Iterator<Item = &str> {
    cut(text, |length, _| length >= ARGUMENTS)
}

/// Cuts a text wherever `here` returns true. The parameters of `here` are the length of the piece
/// so far, in bytes, and the characters before and after the possible cut.
fn cut(text: &str, here: impl Fn(usize, (char, char)) -> bool) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let borders = rest.char_indices().zip(rest.char_indices().skip(1));
        let mut ends = borders
            .filter(|&((_, before), (at, after))| here(at, (before, after)))
            .map(|(_, (at, _))| at);
        let (piece, after) = rest.split_at(ends.next().unwrap_or(rest.len()));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}
