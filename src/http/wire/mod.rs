//! The objects of the contract, member by member, which are also the components of the OpenAPI
//! document. The types of `task/` are converted here and nowhere else, so internal data (the
//! provider's raw turn, terms, leases) cannot leak. Members are always present, `null` when empty.

pub(crate) mod body;
pub(crate) mod decision;
pub(crate) mod event;
pub(crate) mod exact;
pub(crate) mod item;
pub(crate) mod list;
pub(crate) mod problem;
pub(crate) mod request;
pub(crate) mod task;

#[cfg(test)]
mod shapes;

/// An enum of `task/` as a named component, with the same words.
macro_rules! wire_enum {
    ($(#[$doc:meta])* $name:ident as $schema:ident from $from:ty, $rename:tt { $($variant:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
        #[serde(rename_all = $rename)]
        #[schema(as = $schema)]
        pub(crate) enum $name { $(#[doc = concat!("`", stringify!($variant), "`")] $variant),* }

        impl From<$from> for $name {
            fn from(from: $from) -> Self {
                match from { $(<$from>::$variant => Self::$variant),* }
            }
        }
    };
}
use wire_enum;
