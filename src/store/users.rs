//! Finds the stored spellings of user ids. Each row keeps the spelling with which it was written.
//! So a query for a user must list every stored spelling of the same person under the current
//! setting (`task/user.rs`).
//!
//! The table `user_spelling` finds spellings by their key, the folded form. If a spelling differs
//! or may differ from its key, a database trigger adds it to the table without the key. The trigger
//! works even if an older version of the service writes the row. `fold_spellings` later stores the
//! key. A spelling that equals its key is not in the table.
//!
//! Invariant: a missing spelling can hide rows from their user, but never shows the rows of another
//! user.

use std::collections::BTreeSet;

use serde_json::json;

use super::db::{Sql, Value, list, sql};
use super::record::record;
use super::{ReadError, Store};
use crate::task::user::{UserId, UserIds};

/// Selects the spellings of the given keys, and all spellings whose key is not stored yet, because
/// they may have one of these keys.
const SPELLINGS: Sql = sql!(
    "select spelling from user_spelling where tenant = $1 and folded " (any 2 text) "
     union all
     select spelling from user_spelling where tenant = $1 and folded is null"
)
.by_key();

const UNFOLDED: Sql = sql!(
    "select tenant, spelling from user_spelling where folded is null order by spelling limit $1"
);

/// Stores the key (the folded form) of each given spelling.
///
/// The two texts differ because each engine reads a list of lists in its own way.
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

/// The maximum number of spellings whose key one run of `fold_spellings` stores.
const BATCH: i64 = 1000;

pub(super) const STATEMENTS: &[Sql] = &[SPELLINGS, UNFOLDED, FOLD];

/// Returns the parameters of the condition `(spelled …)` in a statement (see `sql!`): the spellings
/// that are known without a read, and the key under which the others are stored. A statement with
/// this condition also returns rows of other people, whose keys are not stored yet, so the caller
/// must drop each row for which [`UserId::is`] returns false.
pub(super) fn spelled(user: &UserId) -> [Value; 2] {
    let keys: Vec<String> = user
        .folded()
        .iter()
        .map(|key| key.as_str().to_owned())
        .collect();
    let names = [vec![user.to_string()], keys.clone()].concat();
    [Value::Texts(names), Value::Texts(keys)]
}

record! {
    struct Spelling {
        spelling: String,
    }
}

record! {
    struct Unfolded {
        tenant: String,
        spelling: String,
    }
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
        let mut all: BTreeSet<String> = users.iter().map(UserId::to_string).collect();
        let keys: BTreeSet<String> = users
            .iter()
            .filter_map(UserId::folded)
            .map(|key| key.as_str().to_owned())
            .collect();
        if !keys.is_empty() {
            let values = vec![
                Value::Text(tenant.to_owned()),
                Value::Texts(keys.iter().cloned().collect()),
            ];
            let found: Vec<Spelling> = self.db().all(SPELLINGS, values).await?;
            let stored = found.into_iter().map(|found| found.spelling);
            all.extend(stored.filter(|spelling| users.iter().any(|user| user.is(spelling))));
            all.extend(keys);
        }
        Ok(all.into_iter().collect())
    }

    /// Stores the missing keys of at most `BATCH` spellings. Returns whether more may be missing.
    ///
    /// # Errors
    /// [`ReadError`] when the database does not answer.
    pub async fn fold_spellings(&self) -> Result<bool, ReadError> {
        let new: Vec<Unfolded> = self.db().all(UNFOLDED, vec![Value::Int(BATCH)]).await?;
        let more = new.len() >= usize::try_from(BATCH).unwrap_or(usize::MAX);
        if !new.is_empty() {
            let key = |spelling: &str| UserIds::Folded.key(spelling).as_str().to_owned();
            let lines = new
                .iter()
                .map(|new| json!([new.tenant, new.spelling, key(&new.spelling)]));
            self.db()
                .write::<Spelling>(FOLD, vec![Value::Text(list(lines))])
                .await?;
        }
        Ok(more)
    }
}
