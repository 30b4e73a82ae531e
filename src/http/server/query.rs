//! Reads a query string. A parameter that filters a list may appear several times. An unknown
//! parameter or an invalid value is answered with 422.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::Uri;
use uuid::Uuid;

use super::fields::{Errors, NOT_UTF8, is_encoded_utf8, pointer};
use super::problem::Problem;
use crate::task::id::TaskId;

const DEFAULT_LIMIT: i64 = 50;
pub(crate) const MAX_LIMIT: i64 = 200;
/// The maximum number of different task ids in a query. The limit bounds the work of an operation,
/// because an operation reads each of these tasks with a separate database statement.
const MAX_TASK_IDS: usize = 200;

/// A query whose parameters are taken out one by one.
#[derive(Debug)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
    errors: Errors,
}

impl Query {
    /// Reads the query of `uri`. Bytes that are not UTF-8 are a mistake, and so is a U+0000 in a
    /// name or a value.
    #[must_use]
    pub(crate) fn from_uri(uri: &Uri) -> Self {
        let query = uri.query().unwrap_or("").as_bytes();
        let mut errors = Errors::default();
        if !is_encoded_utf8(query) {
            errors.add("", NOT_UTF8);
        }
        let pairs: Vec<(String, String)> =
            url::form_urlencoded::parse(query).into_owned().collect();
        for (name, value) in &pairs {
            if name.contains('\0') || value.contains('\0') {
                errors.add("", "text without U+0000");
            }
        }
        Self { pairs, errors }
    }

    /// Drops parameters without a value. A browser sends such parameters for the empty fields of a
    /// form.
    pub(crate) fn drop_empty(&mut self) {
        self.pairs.retain(|(_, value)| !value.is_empty());
    }

    /// Removes the parameters with this name from the query, and returns their values.
    pub(crate) fn texts(&mut self, name: &str) -> Vec<String> {
        let taken = self.pairs.extract_if(.., |(found, _)| *found == name);
        taken.map(|(_, value)| value).collect()
    }

    /// Takes the parameters with this name, like [`Query::texts`], and parses their values with
    /// `read`. Adds a mistake with the detail `expected` for each value that `read` refuses.
    pub(crate) fn many<T>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Vec<T> {
        let mut values = Vec::new();
        for text in self.texts(name) {
            match read(&text) {
                Some(value) => values.push(value),
                None => self.errors.add(&pointer("", name), expected),
            }
        }
        values
    }

    /// Takes the parameters with this name, and returns the enum's value for each. `all` lists the
    /// permitted values, and `word` returns the name of a value. The detail of a mistake lists the
    /// permitted names.
    pub(crate) fn words<T: Copy>(
        &mut self,
        name: &str,
        all: &[T],
        word: impl Fn(T) -> &'static str,
    ) -> Vec<T> {
        let words: Vec<String> = all
            .iter()
            .map(|value| format!("`{}`", word(*value)))
            .collect();
        let expected = format!("one of {}", words.join(", "));
        self.many(name, &expected, |text| {
            all.iter().copied().find(|value| word(*value) == text)
        })
    }

    /// Takes the parameters with this name as task ids, sorted and without repetitions. For more
    /// than `MAX_TASK_IDS` ids, adds a mistake and returns no ids.
    pub(crate) fn task_ids(&mut self, name: &str) -> Vec<TaskId> {
        let mut ids = self.many(name, "a task id", |text| text.parse::<TaskId>().ok());
        ids.sort_unstable();
        ids.dedup();
        if ids.len() > MAX_TASK_IDS {
            let expected = format!("at most {MAX_TASK_IDS} task ids");
            self.errors.add(&pointer("", name), expected);
            ids.clear();
        }
        ids
    }

    /// Takes a parameter that may appear once, and parses its value with `read`. A repetition and a
    /// refused value are mistakes. Returns `None` if the query has no value that `read` accepts.
    pub(crate) fn one<T>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let mut values = self.many(name, expected, read);
        if values.len() > 1 {
            self.errors.add(&pointer("", name), "only once");
        }
        values.pop()
    }

    /// Takes `limit`, the number of entries in a page; 50 if the query has no `limit`. A number
    /// outside 1 to 200 is a mistake.
    pub(crate) fn limit(&mut self) -> i64 {
        let read = |text: &str| digits(text).filter(|limit| (1..=MAX_LIMIT).contains(limit));
        self.one("limit", "a number from 1 to 200", read)
            .unwrap_or(DEFAULT_LIMIT)
    }

    /// Takes `cursor`, and returns the id after which the page begins; `None` if the query has no
    /// `cursor`.
    pub(crate) fn cursor(&mut self) -> Option<Uuid> {
        self.one("cursor", "a cursor of an earlier answer", |text| {
            Uuid::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(text).ok()?).ok()
        })
    }

    /// Takes a parameter whose value must be a number of at least 0; `None` if the query does not
    /// have the parameter.
    pub(crate) fn number(&mut self, name: &str) -> Option<i64> {
        self.one(name, "a number from 0 on", digits)
    }

    /// Adds a mistake for every parameter that was not taken.
    ///
    /// # Errors
    /// Fails with `invalid` if the query has a mistake. The problem lists every mistake.
    pub(crate) fn finish(mut self) -> Result<(), Problem> {
        for (name, _) in &self.pairs {
            self.errors.add(&pointer("", name), "no such parameter");
        }
        if self.errors.0.is_empty() {
            Ok(())
        } else {
            Err(Problem::invalid(&self.errors.0))
        }
    }
}

/// Parses a number that is written with digits alone. `None` if it exceeds the maximum of `i64`.
pub(crate) fn digits(text: &str) -> Option<i64> {
    let is_number = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Returns the value of `cursor` for the page that begins after this id.
#[must_use]
pub(crate) fn cursor_of(id: Uuid) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(id.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::status::TaskStatus;

    fn of(text: &str) -> Query {
        Query::from_uri(&format!("/v1/tasks?{text}").parse().unwrap())
    }

    #[test]
    fn filters_may_be_repeated_and_parameters_may_not() {
        let mut query = of("a=1&b=x%20y&a=2&limit=7");
        assert_eq!(
            (query.texts("a"), query.texts("b"), query.limit()),
            (vec!["1".into(), "2".into()], vec!["x y".into()], 7)
        );
        assert!(query.finish().is_ok());
        let mut query = of("limit=7&limit=8");
        query.limit();
        assert!(query.finish().is_err());
    }

    #[test]
    fn word_that_the_enum_lacks_is_refused_with_the_words_of_the_enum() {
        let mut query = of("status=Failed&status=failed");
        let found = query.words("status", &TaskStatus::ALL, TaskStatus::as_str);
        assert_eq!(found, [TaskStatus::Failed]);
        let problem = query.finish().unwrap_err();
        assert_eq!(problem.errors.len(), 1);
        assert_eq!(
            problem.errors[0].detail.to_string(),
            "one of `Running`, `Paused`, `Completed`, `Failed`, `Canceled`"
        );
    }

    #[test]
    fn repeated_task_id_counts_once_and_more_than_200_task_ids_are_refused() {
        let ids = |count: u128| {
            let ids = (0..count).map(|id| format!("task_id={}&", Uuid::from_u128(id)));
            ids.collect::<Vec<_>>().concat()
        };
        let mut query = of(&ids(1).repeat(1400));
        assert_eq!(query.task_ids("task_id"), [TaskId(Uuid::from_u128(0))]);
        let mut query = of(&ids(200));
        assert_eq!(query.task_ids("task_id").len(), 200);
        assert!(query.finish().is_ok());
        let mut query = of(&ids(201));
        assert!(query.task_ids("task_id").is_empty());
        assert!(query.finish().is_err());
    }

    #[test]
    fn limits_are_from_1_to_200() {
        assert_eq!(of("").limit(), 50);
        for text in [
            "limit=0",
            "limit=201",
            "limit=-1",
            "limit=x",
            "limit=",
            "limit=1.5",
            "limit=99999999999999999999",
            "limit=+5",
        ] {
            let mut query = of(text);
            query.limit();
            assert!(query.finish().is_err(), "{text}");
        }
    }

    #[test]
    fn cursor_round_trips_and_an_invented_one_is_refused() {
        let id = Uuid::from_u128(12345);
        assert_eq!(of(&format!("cursor={}", cursor_of(id))).cursor(), Some(id));
        let mut query = of("cursor=abc");
        assert_eq!(query.cursor(), None);
        assert!(query.finish().is_err());
    }

    #[test]
    fn unknown_parameters_are_refused() {
        assert!(of("stauts=Running").finish().is_err());
        assert!(of("a=%00").finish().is_err());
        let mut query = of("agent=%ff");
        query.texts("agent");
        assert!(query.finish().is_err());
    }
}
