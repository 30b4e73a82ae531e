//! The filters of an inbox: kinds of requests, agents and sessions. The list, the stream and the
//! pages of an inbox use the same filters.

use url::form_urlencoded::Serializer;

use super::MAX_COUNTED;
use crate::http::server::query::Query;
use crate::people::Caller;
use crate::people::authorization::inbox_person;
use crate::store::{RequestFilter, RequestRow};
use crate::task::request::RequestKind;
use crate::task::status::RequestStatus;

/// The filters of an inbox. An empty list admits any value.
#[derive(Clone, Debug, Default)]
pub(crate) struct InboxFilter {
    pub kinds: Vec<RequestKind>,
    pub agents: Vec<String>,
    pub sessions: Vec<String>,
}

impl InboxFilter {
    #[must_use]
    pub(crate) fn from_query(query: &mut Query) -> Self {
        Self {
            kinds: query.words("kind", &RequestKind::ALL, RequestKind::as_str),
            agents: query.texts("agent"),
            sessions: query.texts("session_id"),
        }
    }

    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.kinds.is_empty() && self.agents.is_empty() && self.sessions.is_empty()
    }

    /// Appends the filters to a query, in the form that [`Self::from_query`] reads.
    pub(crate) fn append_to(&self, query: &mut Serializer<'_, String>) {
        for kind in &self.kinds {
            query.append_pair("kind", kind.as_str());
        }
        for agent in &self.agents {
            query.append_pair("agent", agent);
        }
        for session in &self.sessions {
            query.append_pair("session_id", session);
        }
    }

    #[must_use]
    pub(crate) fn fits(&self, row: &RequestRow) -> bool {
        let agent = |name: &String| row.agent_path.last() == Some(name);
        (self.kinds.is_empty() || self.kinds.contains(&row.spec.kind))
            && (self.agents.is_empty() || self.agents.iter().any(agent))
            && (self.sessions.is_empty() || self.sessions.contains(&row.session_id))
    }

    /// Returns the store's filter that selects the oldest [`MAX_COUNTED`] open requests of the
    /// caller's inbox, without requests past their deadline.
    #[must_use]
    pub(crate) fn open_for(&self, caller: &Caller) -> RequestFilter {
        RequestFilter {
            tenant: caller.tenant.clone(),
            person: Some(inbox_person(caller)),
            statuses: vec![RequestStatus::Pending],
            kinds: self.kinds.iter().map(|kind| kind.as_str().into()).collect(),
            agents: self.agents.clone(),
            sessions: self.sessions.clone(),
            limit: i64::try_from(MAX_COUNTED).unwrap_or(i64::MAX),
            ..RequestFilter::default()
        }
    }
}
