//! Finds the stored spellings of user ids. Each row keeps the spelling with which it was written.
//! So a query for a user must list every stored spelling that counts as the same person. The
//! setting `auth.user_ids` decides which spellings count as the same person (`task/user.rs`).
//!
//! The key of a spelling is its folded form. The table `user_spelling` maps keys to spellings. If a
//! row is written with a spelling that has a capital letter or a non-ASCII character, a database
//! trigger adds the spelling to the table, at first without the key. The trigger works even if an
//! older version of the service writes the row. `fold_spellings` later stores the key. Any other
//! spelling equals its key, and needs no row in the table.
//!
//! Invariant: a missing spelling can hide rows from their user, but never shows the rows of another
//! user.

use std::collections::BTreeSet;

use serde_json::json;

use super::db::{Sql, Value, list, sql, values};
use super::{ReadError, Store};
use crate::task::user::{UserId, UserIds};

/// Selects the stored spellings of the given user ids. If the key (the folded form) of a spelling
/// is not stored yet, the spelling may be selected although it belongs to another person. So the
/// caller must check each spelling.
const SPELLINGS: Sql = sql!("select p.user_id as spelling from " (people 1 2 3) " p").by_key();

const UNFOLDED: Sql = sql!(
    "select tenant, spelling from user_spelling where folded is null order by spelling limit $1"
);

/// Stores the key (the folded form) of each given spelling.
///
/// The texts for Postgres and `SQLite` differ because each engine reads a list of lists in its own
/// way.
const FOLD: Sql = Sql {
    postgres: "
update user_spelling u set folded = v.value ->> 2
  from jsonb_array_elements($1::text::jsonb) as v (value)
 where u.tenant = v.value ->> 0 and u.spelling = v.value ->> 1 returning u.spelling",
    sqlite: "
update user_spelling as u set folded = v.value ->> 2 from json_each($1) as v
 where u.tenant = v.value ->> 0 and u.spelling = v.value ->> 1 returning spelling",
    by_key: true,
};

/// The maximum number of spellings of user ids for which one run of `fold_spellings` stores the
/// missing key (the folded form of the spelling).
const BATCH: i64 = 1000;

pub(super) const STATEMENTS: &[Sql] = &[SPELLINGS, UNFOLDED, FOLD];

/// Returns the parameters `n` and `k` of a placeholder `(people t n k)` or `(spelled t n k)` in a
/// statement (see `sql!`). Parameter `n` has the spellings that are known without a read: the given
/// ids and their keys. Parameter `k` has the keys by which the statement finds the other spellings.
/// The statement also accepts spellings whose key is not stored yet. These may belong to other
/// people, so the caller must drop each row for which [`UserId::is_same_person`] returns false.
pub(super) fn spelled(users: &[UserId]) -> [Value; 2] {
    let keys = users.iter().filter_map(UserId::folded);
    let keys: Vec<String> = keys.map(|key| key.as_str().to_owned()).collect();
    let own = users.iter().map(UserId::to_string);
    let names = own.chain(keys.iter().cloned()).collect();
    [Value::Texts(names), Value::Texts(keys)]
}

impl Store {
    /// Returns every spelling under which rows of the given people may be stored.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub(super) async fn spellings(
        &self,
        tenant: &str,
        users: &[UserId],
    ) -> Result<Vec<String>, ReadError> {
        if users.iter().all(|user| user.folded().is_none()) {
            let own: BTreeSet<String> = users.iter().map(UserId::to_string).collect();
            return Ok(own.into_iter().collect());
        }
        let [names, keys] = spelled(users);
        let values = values![tenant, names, keys];
        let spellings: Vec<String> = self.db().all(SPELLINGS, values).await?;
        let own: BTreeSet<String> = spellings
            .into_iter()
            .filter(|spelling| users.iter().any(|user| user.is_same_person(spelling)))
            .collect();
        Ok(own.into_iter().collect())
    }

    /// Stores the key (the folded form) of up to `BATCH` spellings that have no key yet. Returns
    /// whether more such spellings may be left.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn fold_spellings(&self) -> Result<bool, ReadError> {
        let new: Vec<(String, String)> = self.db().all(UNFOLDED, values![BATCH]).await?;
        let more = new.len() >= usize::try_from(BATCH).unwrap_or(usize::MAX);
        if !new.is_empty() {
            let key = |spelling: &str| UserIds::Folded.key(spelling).as_str().to_owned();
            let lines = new
                .iter()
                .map(|(tenant, spelling)| json!([tenant, spelling, key(spelling)]));
            let values = values![list(lines)];
            self.db().count_written(FOLD, values).await?;
        }
        Ok(more)
    }
}
