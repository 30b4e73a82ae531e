//! Remembers whether earlier calls of a tool in a session of a gate have call keys (the keys by
//! which equal calls are found). A proposed call that a rule allows, that may be repeated and that
//! needs no credential is compared with earlier calls only in one case: the tool's server may ask
//! people questions, and such a key is stored. Because of this memory, the check for a key usually
//! costs no read.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::Either;
use tokio::time::Instant;

use crate::task::user::UserKey;
use crate::world::Locked;

/// The time for which this process uses the result of a read instead of reading again. Meanwhile,
/// another replica may store the key of a call whose server has asked a question. This process then
/// treats an equal proposal as a new call, so the tool runs again. The effect of a repeatable call
/// permits this.
const REMEMBERED_FOR: Duration = Duration::from_secs(1);

/// The place of a call at a gate. Only calls of one place are compared with each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine) struct ToolPlace {
    pub tenant: String,
    pub gate: String,
    pub user: UserKey,
    pub session: String,
    pub tool: String,
}

/// The places whose calls this process has looked for in the last second.
#[derive(Debug, Default)]
pub(in crate::engine) struct KeyedTools(Locked<Places>);

#[derive(Debug, Default)]
struct Places {
    read: HashMap<ToolPlace, PlaceRead>,
    /// The time at which the ended entries of `read` were removed last.
    swept_at: Option<Instant>,
    last_read: ReadNumber,
}

/// The number of a read. A later read has a higher number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct ReadNumber(u64);

#[derive(Debug)]
struct PlaceRead {
    /// Whether a call of the place has a call key; `None` while the read is in flight.
    has_keyed_calls: Option<bool>,
    number: ReadNumber,
    /// The time from which the entry no longer counts.
    until: Instant,
}

impl KeyedTools {
    /// Returns whether a call of the place has a call key, if this is known. If not, the caller
    /// must read it, and pass the returned number to [`KeyedTools::remember`] after the read.
    pub(in crate::engine) fn begin_read(&self, place: &ToolPlace) -> Either<bool, ReadNumber> {
        let now = Instant::now();
        let mut places = self.0.lock();
        let known = places.read.get(place).filter(|read| read.until > now);
        if let Some(has_keyed_calls) = known.and_then(|read| read.has_keyed_calls) {
            return Either::Left(has_keyed_calls);
        }
        if places.swept_at.is_none_or(|at| at + REMEMBERED_FOR <= now) {
            places.read.retain(|_, read| read.until > now);
            places.swept_at = Some(now);
        }
        let number = ReadNumber(places.last_read.0.wrapping_add(1));
        places.last_read = number;
        let in_flight = PlaceRead {
            has_keyed_calls: None,
            number,
            until: now + REMEMBERED_FOR,
        };
        places.read.insert(place.clone(), in_flight);
        Either::Right(number)
    }

    /// Remembers the result of a read. Ignores the result if [`KeyedTools::forget`] was called
    /// since [`KeyedTools::begin_read`], because the read may have missed the new call key. Also
    /// ignores it if a later read has begun, which has the newer result.
    pub(in crate::engine) fn remember(
        &self,
        place: &ToolPlace,
        number: ReadNumber,
        has_keyed_calls: bool,
    ) {
        let mut places = self.0.lock();
        let read = places.read.get_mut(place);
        if let Some(read) = read.filter(|read| read.number == number) {
            read.has_keyed_calls = Some(has_keyed_calls);
            read.until = Instant::now() + REMEMBERED_FOR;
        }
    }

    /// Forgets the place, because a commit of this process has stored the key of a call there.
    pub(in crate::engine) fn forget(&self, place: &ToolPlace) {
        self.0.lock().read.remove(place);
    }
}

#[cfg(test)]
mod tests {
    use crate::task::user::UserIds;

    use super::*;

    #[test]
    fn read_from_before_a_stored_key_is_not_remembered_beside_a_later_read() {
        let place = ToolPlace {
            tenant: "acme".to_owned(),
            gate: "cli".to_owned(),
            user: UserIds::Exact.key("alice"),
            session: "s".to_owned(),
            tool: "refund".to_owned(),
        };
        let tools = KeyedTools::default();
        let Either::Right(early) = tools.begin_read(&place) else {
            panic!("nothing is known yet")
        };
        tools.forget(&place);
        let Either::Right(late) = tools.begin_read(&place) else {
            panic!("nothing is known yet")
        };
        tools.remember(&place, early, false);
        assert!(matches!(tools.begin_read(&place), Either::Right(_)));
        tools.remember(&place, late, false);
        assert!(matches!(tools.begin_read(&place), Either::Right(_)));
        let Either::Right(last) = tools.begin_read(&place) else {
            panic!("nothing is known yet")
        };
        tools.remember(&place, last, true);
        assert!(matches!(tools.begin_read(&place), Either::Left(true)));
    }
}
