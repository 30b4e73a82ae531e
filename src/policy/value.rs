//! The values with which a policy expression computes. The shape that the tool declares
//! (`shape.rs`) decides how the JSON of the judged call is read. Invariant: a comparison of two
//! values of unlike types is a fault. There is one exception: a test for equality may compare null
//! with a value of any type. An integer and a double count as values of like types.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::eval::{Fault, StepBudget};
use super::shape::{Shape, integer};
use crate::task::user::UserIds;

#[derive(Clone, Debug)]
pub(super) enum ExprValue<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(Cow<'a, str>),
    /// A JSON list with the shape of its items.
    Array(&'a [Value], &'a Shape),
    Names(&'a [String]),
    List(Rc<Vec<ExprValue<'a>>>),
    /// A JSON object with its shape.
    Object(&'a Map<String, Value>, &'a Shape),
    Entries(Rc<Vec<(ExprValue<'a>, ExprValue<'a>)>>),
}

impl<'a> ExprValue<'a> {
    /// Reads a JSON value by its shape. A value that does not fit the shape is a fault.
    pub(super) fn from_json(value: &'a Value, shape: &'a Shape) -> Result<Self, Fault> {
        Ok(match (shape, value) {
            (Shape::Null | Shape::Free | Shape::Untyped, Value::Null) => Self::Null,
            (Shape::Bool | Shape::Free | Shape::Untyped, Value::Bool(value)) => Self::Bool(*value),
            (Shape::Text | Shape::Free | Shape::Untyped, Value::String(value)) => {
                Self::Text(Cow::Borrowed(value))
            }
            (Shape::Int, Value::Number(number)) => Self::Int(integer(number).ok_or(Fault::Type)?),
            (Shape::Free | Shape::Untyped, Value::Number(number)) if number.is_i64() => {
                Self::Int(integer(number).ok_or(Fault::Type)?)
            }
            (Shape::Double | Shape::Free | Shape::Untyped, Value::Number(number)) => Self::Double(
                number
                    .as_f64()
                    .filter(|number| number.is_finite())
                    .ok_or(Fault::Type)?,
            ),
            (Shape::List(item), Value::Array(items)) => Self::Array(items, item),
            (Shape::Free | Shape::Untyped, Value::Array(items)) => Self::Array(items, shape),
            (Shape::Object(_) | Shape::Free | Shape::Untyped, Value::Object(object)) => {
                Self::Object(object, shape)
            }
            _ => return Err(Fault::Type),
        })
    }

    /// Returns the member with this name; `None` if the object has no such member. Faults if the
    /// shape does not declare the member, or if this value is not an object.
    pub(super) fn member(&self, name: &str) -> Result<Option<Self>, Fault> {
        match self {
            Self::Object(object, shape) => {
                let shape = match shape {
                    Shape::Object(members) => {
                        &members
                            .get(name)
                            .filter(|member| member.shape != Shape::Untyped)
                            .ok_or(Fault::Undeclared)?
                            .shape
                    }
                    Shape::Free => shape,
                    Shape::Null
                    | Shape::Bool
                    | Shape::Int
                    | Shape::Double
                    | Shape::Text
                    | Shape::List(_)
                    | Shape::Untyped => return Err(Fault::Undeclared),
                };
                object
                    .get(name)
                    .map(|value| Self::from_json(value, shape))
                    .transpose()
            }
            Self::Entries(entries) => Ok(entries
                .iter()
                .find(|(key, _)| matches!(key, Self::Text(key) if key == name))
                .map(|(_, value)| value.clone())),
            Self::Null
            | Self::Bool(_)
            | Self::Int(_)
            | Self::Double(_)
            | Self::Text(_)
            | Self::Array(..)
            | Self::Names(_)
            | Self::List(_) => Err(Fault::Type),
        }
    }

    pub(super) fn list_len(&self) -> Result<usize, Fault> {
        match self {
            Self::Array(items, _) => Ok(items.len()),
            Self::Names(names) => Ok(names.len()),
            Self::List(items) => Ok(items.len()),
            Self::Null
            | Self::Bool(_)
            | Self::Int(_)
            | Self::Double(_)
            | Self::Text(_)
            | Self::Object(..)
            | Self::Entries(_) => Err(Fault::Type),
        }
    }

    /// Returns the item of a list at this index. Faults if the index is out of range, or if this
    /// value is not a list.
    pub(super) fn list_item(&self, at: usize) -> Result<Self, Fault> {
        match self {
            Self::Array(items, shape) => items
                .get(at)
                .ok_or(Fault::Index)
                .and_then(|item| Self::from_json(item, shape)),
            Self::Names(names) => names
                .get(at)
                .map(|name| Self::Text(Cow::Borrowed(name.as_str())))
                .ok_or(Fault::Index),
            Self::List(items) => items.get(at).cloned().ok_or(Fault::Index),
            Self::Null
            | Self::Bool(_)
            | Self::Int(_)
            | Self::Double(_)
            | Self::Text(_)
            | Self::Object(..)
            | Self::Entries(_) => Err(Fault::Type),
        }
    }

    /// Replaces a text by its `UserKey`, the form in which user ids are compared. A rule then also
    /// matches another spelling of the same id. In a list, replaces each text. In a map, and in an
    /// object of the shape `Free`, replaces each key, and keeps the values. If an operand of a
    /// comparison, an index expression or a text search is `user.id`, the evaluator calls this
    /// function for all operands.
    pub(super) fn with_user_keys(self, ids: UserIds, budget: &StepBudget) -> Result<Self, Fault> {
        let key = |text: &str| -> Result<Self, Fault> {
            budget.spend(1)?;
            budget.spend_text(text.len())?;
            Ok(Self::Text(Cow::Owned(ids.key(text).as_str().to_owned())))
        };
        if let Self::Text(text) = &self {
            return key(text);
        }
        if let Self::Object(object, shape) = self
            && *shape == Shape::Free
        {
            let members = object.iter();
            let entries: Result<Vec<_>, Fault> = members
                .map(|(name, value)| Ok((key(name)?, Self::from_json(value, shape)?)))
                .collect();
            return Ok(Self::Entries(Rc::new(entries?)));
        }
        if let Self::Entries(entries) = &self {
            let entries: Result<Vec<_>, Fault> = entries
                .iter()
                .map(|(key, value)| Ok((key.clone().with_user_keys(ids, budget)?, value.clone())))
                .collect();
            return Ok(Self::Entries(Rc::new(entries?)));
        }
        let Ok(count) = self.list_len() else {
            return Ok(self);
        };
        let items: Result<Vec<_>, Fault> = (0..count)
            .map(|at| self.list_item(at)?.with_user_keys(ids, budget))
            .collect();
        Ok(Self::List(Rc::new(items?)))
    }

    /// Whether two values are equal. Faults if the values have unlike types, except that null may
    /// be compared with any type.
    pub(super) fn equals(&self, other: &Self, budget: &StepBudget) -> Result<bool, Fault> {
        budget.spend(1)?;
        match (self, other) {
            (Self::Null, Self::Null) => Ok(true),
            (Self::Null, _) | (_, Self::Null) => Ok(false),
            (
                Self::Array(..) | Self::Names(_) | Self::List(_),
                Self::Array(..) | Self::Names(_) | Self::List(_),
            ) => {
                let mut same = self.list_len()? == other.list_len()?;
                for at in 0..self.list_len()?.min(other.list_len()?) {
                    same &= self.list_item(at)?.equals(&other.list_item(at)?, budget)?;
                }
                Ok(same)
            }
            _ => self.order(other, budget).map(Ordering::is_eq),
        }
    }

    /// Returns the order of two values. Compares numbers exactly, even an integer with a double.
    /// Compares texts by code points.
    pub(super) fn order(&self, other: &Self, budget: &StepBudget) -> Result<Ordering, Fault> {
        match (self, other) {
            (Self::Bool(left), Self::Bool(right)) => Ok(left.cmp(right)),
            (Self::Int(left), Self::Int(right)) => Ok(left.cmp(right)),
            (Self::Double(left), Self::Double(right)) => left.partial_cmp(right).ok_or(Fault::Type),
            (Self::Int(left), Self::Double(right)) => order_mixed(*left, *right),
            (Self::Double(left), Self::Int(right)) => {
                order_mixed(*right, *left).map(Ordering::reverse)
            }
            (Self::Text(left), Self::Text(right)) => {
                budget.spend_text(left.len().min(right.len()))?;
                Ok(left.cmp(right))
            }
            _ => Err(Fault::Type),
        }
    }
}

/// Compares an integer with a double exactly, without rounding either number to the type of the
/// other number.
#[expect(
    clippy::cast_possible_truncation,
    reason = "within the range of i64, by the comparison before"
)]
fn order_mixed(left: i64, right: f64) -> Result<Ordering, Fault> {
    const I64_LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if right.is_nan() {
        Err(Fault::Type)
    } else if right >= I64_LIMIT {
        Ok(Ordering::Less)
    } else if right < -I64_LIMIT {
        Ok(Ordering::Greater)
    } else {
        let whole = left.cmp(&(right.trunc() as i64));
        let rest = right.fract();
        Ok(whole.then_with(|| 0.0_f64.partial_cmp(&rest).unwrap_or(Ordering::Equal)))
    }
}
