//! The objects of the API, which are also the components of the OpenAPI document. This module
//! converts the types of `task/`, `store/` and `engine/` to these objects. As an exception,
//! `app/cards.rs` converts the agents and their tools. Each conversion names the members that it
//! publishes, so internal data, such as leases and the provider's raw turn, cannot leak.
//!
//! A member without a value is `null`, except for a few members of problems, events and webhooks:
//! without a value, such a member is left out.

pub(crate) mod body;
pub(crate) mod brief;
pub(crate) mod decision;
pub(crate) mod delivery;
pub(crate) mod event;
pub(crate) mod gate;
pub(crate) mod grant;
pub(crate) mod inbox;
pub(crate) mod item;
pub(crate) mod list;
pub(crate) mod params;
pub(crate) mod problem;
pub(crate) mod raw_json;
pub(crate) mod request;
pub(crate) mod task;

#[cfg(test)]
mod tests_shapes;

/// Declares an enum of the API with the variants of an internal enum, and the conversions between
/// the two. A variant whose word on the wire differs from its name is followed by the word, as in
/// `OutcomeUnknown = "doubtful"`.
macro_rules! wire_enum {
    ($(#[$doc:meta])* $name:ident as $schema:ident from $from:ty, $rename:tt {
        $($variant:ident $(= $word:tt)?),* $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
        #[serde(rename_all = $rename)]
        #[schema(as = $schema)]
        pub(crate) enum $name {
            $(
                #[doc = concat!("`", stringify!($variant), "`")]
                $(#[serde(rename = $word)])?
                $variant
            ),*
        }

        impl From<$from> for $name {
            fn from(from: $from) -> Self {
                match from { $(<$from>::$variant => Self::$variant),* }
            }
        }

        impl From<$name> for $from {
            fn from(from: $name) -> Self {
                match from { $($name::$variant => Self::$variant),* }
            }
        }
    };
}
use wire_enum;
