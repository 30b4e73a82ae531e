//! The revisions of the Model Context Protocol that this service speaks, as a client and as a
//! server.

use super::words::word_enum;

word_enum! {
    /// A revision of the protocol. A later revision is greater.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) enum Revision {
        June2025 = "2025-06-18",
        November2025 = "2025-11-25",
        /// 2026-07-28: stateless, without a handshake.
        July2026 = "2026-07-28",
    }
}

impl Revision {
    /// Whether the revision has no handshake, so that each MCP request carries the version and the
    /// capabilities itself.
    pub(crate) fn is_stateless(self) -> bool {
        self == Self::July2026
    }
}
