//! Defines the identifiers. Each identifier is a UUIDv7 that this service generates (see `Ids` in
//! `world.rs`). The ids of a model provider are never used as identifiers, because a provider may
//! repeat an id.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            /// Accepts only the hyphenated form, which `Display` writes.
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let id = Uuid::try_parse(text)?;
                if text.len() == 36 { Ok(Self(id)) } else { Uuid::try_parse("").map(Self) }
            }
        }
    };
}

id!(
    /// The id of a task. A task is one conversation of a user with an agent.
    TaskId
);
id!(
    /// The id of a request to people; never reused.
    RequestId
);
id!(
    /// The id of a tool call. The id is unique, even if a model provider repeats its own ids.
    CallId
);
id!(
    /// The id of a standing decision.
    GrantId
);
id!(
    /// The id of a commit, stored with the commit's items. If the database's answer to the commit
    /// is lost, the store looks for this id to find out whether the commit succeeded.
    ChangeId
);
