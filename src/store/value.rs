//! The parameters of statements.

use std::time::Duration;

use uuid::Uuid;

use super::change_rows::micros;
use crate::task::id::{ChangeId, GrantId, RequestId, TaskId};

/// A parameter of a statement. Lists are arrays on Postgres, and JSON text on `SQLite`. `Bools` and
/// the `Maybe…` lists are for Postgres only.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// The current time. On Postgres, the statement reads the server's clock, and the parameter is
    /// the offset that tests add to it. On `SQLite`, the parameter is the time of the injected
    /// clock.
    Now,
    Int(i64),
    Bool(bool),
    Text(String),
    Id(Uuid),
    Ids(Vec<Uuid>),
    MaybeIds(Vec<Option<Uuid>>),
    MaybeInts(Vec<Option<i64>>),
    Texts(Vec<String>),
    MaybeTexts(Vec<Option<String>>),
    Bools(Vec<bool>),
}

/// Lists the parameters of a statement. Each is converted to a [`Value`].
macro_rules! values {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::store::value::Value::from($value)),*]
    };
}
pub(super) use values;

macro_rules! from {
    ($($kind:ty: |$it:ident| $value:expr),* $(,)?) => {
        $(impl From<$kind> for Value {
            fn from($it: $kind) -> Self {
                $value
            }
        })*
    };
}
from!(
    i64: |it| Self::Int(it),
    bool: |it| Self::Bool(it),
    Duration: |it| Self::Int(micros(it)),
    &str: |it| Self::Text(it.to_owned()),
    &String: |it| Self::Text(it.clone()),
    String: |it| Self::Text(it),
    Uuid: |it| Self::Id(it),
    ChangeId: |it| Self::Id(it.0),
    GrantId: |it| Self::Id(it.0),
    RequestId: |it| Self::Id(it.0),
    TaskId: |it| Self::Id(it.0),
    Vec<Uuid>: |it| Self::Ids(it),
    &[RequestId]: |it| Self::Ids(it.iter().map(|id| id.0).collect()),
    &[TaskId]: |it| Self::Ids(it.iter().map(|id| id.0).collect()),
    Vec<String>: |it| Self::Texts(it),
    &[String]: |it| Self::Texts(it.to_vec()),
    &[&str]: |it| Self::Texts(it.iter().map(ToString::to_string).collect()),
);
