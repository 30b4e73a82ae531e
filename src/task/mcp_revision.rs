//! The revisions of the Model Context Protocol that are spoken here, as a client and as a server.

/// A revision of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Revision {
    /// 2025-06-18.
    June2025,
    /// 2025-11-25.
    November2025,
    /// 2026-07-28: stateless, without a handshake.
    July2026,
}

impl Revision {
    /// All revisions, the oldest first.
    pub(crate) const ALL: [Self; 3] = [Self::June2025, Self::November2025, Self::July2026];

    /// The revision with this name; `None` if it is not spoken here.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|revision| revision.as_str() == name)
    }

    /// The name on the wire.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::June2025 => "2025-06-18",
            Self::November2025 => "2025-11-25",
            Self::July2026 => "2026-07-28",
        }
    }

    /// Whether each request carries what the handshake agreed on in older revisions.
    pub(crate) fn is_stateless(self) -> bool {
        self == Self::July2026
    }
}
