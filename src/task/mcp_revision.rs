//! The revisions of the Model Context Protocol that this service speaks, as a client and as a
//! server.

/// A revision of the protocol. A later revision is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Revision {
    June2025,
    November2025,
    /// 2026-07-28: stateless, without a handshake.
    July2026,
}

impl Revision {
    /// All revisions, the oldest first.
    pub(crate) const ALL: [Self; 3] = [Self::June2025, Self::November2025, Self::July2026];

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|revision| revision.as_str() == name)
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::June2025 => "2025-06-18",
            Self::November2025 => "2025-11-25",
            Self::July2026 => "2026-07-28",
        }
    }

    /// Whether the revision has no handshake, so that each MCP request carries the version and the
    /// capabilities itself.
    pub(crate) fn is_stateless(self) -> bool {
        self == Self::July2026
    }
}
