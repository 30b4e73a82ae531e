//! Emits a scripted answer in pieces: the text word by word, then each call's name and arguments.
//! Invariant: the pieces add up to the answer, and the emission takes exactly the requested time.

use std::time::Duration;

use crate::model::{AnswerCall, Piece, PieceSink};
use crate::world::Clock;

/// The minimum number of bytes in a piece of arguments.
const MIN_ARGUMENT_BYTES: usize = 8;
/// The minimum pause between emissions. If there is less time for each piece, several pieces are
/// emitted after each pause. Sleeps are inaccurate, so the errors of many short sleeps would add
/// up.
const MIN_PAUSE: Duration = Duration::from_millis(25);

pub(super) fn pieces<'a>(text: Option<&'a str>, calls: &'a [AnswerCall]) -> Vec<Piece<'a>> {
    let mut pieces: Vec<_> = words(text.unwrap_or_default()).map(Piece::Text).collect();
    for (call, answer_call) in calls.iter().enumerate() {
        pieces.push(Piece::CallName {
            call,
            name: &answer_call.name,
        });
        pieces.extend(
            chunks(&answer_call.arguments_text).map(|text| Piece::Arguments { call, text }),
        );
    }
    pieces
}

/// Emits the pieces, spread over `time`. The first piece comes after the first pause, and the last
/// piece comes at the end of `time`.
pub(super) async fn emit(
    pieces: &[Piece<'_>],
    time: Duration,
    clock: &dyn Clock,
    sink: &dyn PieceSink,
) {
    let max_groups =
        usize::try_from(time.as_millis() / MIN_PAUSE.as_millis()).unwrap_or(usize::MAX);
    let groups = max_groups.min(pieces.len()).max(1);
    let pause = u32::try_from(groups).map_or(Duration::ZERO, |groups| time / groups);
    let mut emitted = 0;
    for group in 1..=groups {
        if !pause.is_zero() {
            clock.sleep(pause).await;
        }
        let end = pieces.len() * group / groups;
        for piece in pieces.iter().take(end).skip(emitted) {
            sink.receive(*piece);
        }
        emitted = end;
    }
}

/// Cuts a text before each of its words.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let starts_word =
        |(before, after): (char, char)| before.is_whitespace() && !after.is_whitespace();
    cut(text, move |_, pair| starts_word(pair))
}

/// Cuts a text into pieces of at least [`MIN_ARGUMENT_BYTES`] bytes; the last piece may be shorter.
fn chunks(text: &str) -> impl Iterator<Item = &str> {
    cut(text, |length, _| length >= MIN_ARGUMENT_BYTES)
}

/// Cuts a text wherever `cuts_at` returns true. The parameters of `cuts_at` are the length of the
/// piece so far, in bytes, and the characters before and after the possible cut.
fn cut(text: &str, cuts_at: impl Fn(usize, (char, char)) -> bool) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let borders = rest.char_indices().zip(rest.char_indices().skip(1));
        let mut ends = borders
            .filter(|&((_, before), (at, after))| cuts_at(at, (before, after)))
            .map(|(_, (at, _))| at);
        let (piece, after) = rest.split_at(ends.next().unwrap_or(rest.len()));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}
