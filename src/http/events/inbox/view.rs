//! [`InboxView`] holds a caller's inbox as the caller's stream has reported it so far. When a
//! request changes, [`InboxView`] compares the request with this state, and decides which event the
//! change causes for the caller.

use std::collections::BTreeMap;

use super::filter::InboxFilter;
use crate::http::wire::inbox::GoneReason;
use crate::people::Caller;
use crate::people::authorization::{can_decide, may_decide};
use crate::store::{OpenRequest, Page, RequestRow};
use crate::task::id::RequestId;
use crate::task::status::RequestStatus;

/// The maximum number of requests that are counted for one inbox.
pub(crate) const MAX_COUNTED: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InboxChange {
    /// The request waits for the caller from now on.
    Created,
    /// The request still waits, and has more answers than before, as far as the view knows (see
    /// [`InboxView::update`]).
    Changed,
    /// The request no longer waits for the caller.
    Gone(GoneReason),
}

/// The oldest [`MAX_COUNTED`] requests that wait for a caller, each with its number of answers.
#[derive(Debug, Default)]
pub(super) struct InboxView {
    open: BTreeMap<RequestId, usize>,
    /// Whether `open` may lack requests that wait for the caller. True if a request was left out
    /// because `open` was full, or if the last read of the inbox stopped before the last request
    /// (`Page::scanned_to`).
    more: bool,
    /// The number of requests in `open` right after the last read of the inbox. An update that
    /// leaves out a request because `open` is full sets this number to [`MAX_COUNTED`].
    counted: usize,
    /// The number of requests that were removed from `open` since the last read of the inbox.
    gone: usize,
}

impl InboxView {
    #[must_use]
    pub(super) fn from_page(read: &Page<OpenRequest>) -> Self {
        let requests = read.iter();
        Self {
            open: requests
                .map(|request| (request.id, request.answers))
                .collect(),
            more: read.more,
            gone: 0,
            counted: read.len(),
        }
    }

    /// Returns the number of requests that wait, at most [`MAX_COUNTED`].
    #[must_use]
    pub(super) fn count(&self) -> usize {
        if self.is_full() {
            MAX_COUNTED
        } else {
            self.open.len()
        }
    }

    /// Returns whether [`MAX_COUNTED`] requests are counted and further requests may wait.
    fn is_full(&self) -> bool {
        self.more && self.counted >= MAX_COUNTED
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = RequestId> {
        self.open.keys().copied()
    }

    /// Returns whether the stream has to read the inbox again, because `open` may lack waiting
    /// requests (`more`), and too many of the `counted` requests are gone. If `counted` is
    /// [`MAX_COUNTED`], more than a tenth is too many. Otherwise the last read stopped early. A new
    /// read may stop early, too, so only more than a half is too many.
    #[must_use]
    pub(super) fn is_outdated(&self) -> bool {
        let part = if self.is_full() { 10 } else { 2 };
        self.more && self.counted > 0 && self.gone > self.counted / part
    }

    /// Records the current state of a request. Returns the change to report to the caller, if any.
    /// A waiting request that is not in `open` is usually new, so the change is `Created`. But if
    /// `more` is set and the request has answers, the caller may have received the request before,
    /// so the change is `Changed`.
    pub(super) fn update(
        &mut self,
        row: &RequestRow,
        caller: &Caller,
        filter: &InboxFilter,
    ) -> Option<InboxChange> {
        let approvers = &row.spec.terms.approvers;
        if !filter.fits(row) || may_decide(caller, &row.tenant, &row.owner, approvers).is_none() {
            return None;
        }
        let (id, answers) = (row.spec.request_id, row.answers.len());
        if !can_decide(caller, &row.tenant, &row.owner, &row.state()) {
            // If `more` is set, the stream may have reported a request that `open` lacks. Therefore
            // the stream also reports that such a request is gone.
            let was_open = self.open.remove(&id).is_some();
            self.gone += usize::from(was_open);
            let known = was_open || self.more;
            return known.then(|| InboxChange::Gone(gone_reason(row)));
        }
        if let Some(known) = self.open.get_mut(&id) {
            if *known >= answers {
                return None;
            }
            *known = answers;
            return Some(InboxChange::Changed);
        }
        if self.open.len() >= MAX_COUNTED {
            self.counted = MAX_COUNTED;
            self.more = true;
        }
        if !self.is_full() {
            self.open.insert(id, answers);
        }
        Some(if self.more && answers > 0 {
            InboxChange::Changed
        } else {
            InboxChange::Created
        })
    }
}

/// Returns the reason why a request no longer waits for the caller, who has the right to decide it.
fn gone_reason(row: &RequestRow) -> GoneReason {
    match row.status {
        RequestStatus::Pending if !row.expired => GoneReason::Answered,
        RequestStatus::Pending | RequestStatus::Expired => GoneReason::Expired,
        RequestStatus::Responded | RequestStatus::Resumed => GoneReason::Decided,
        RequestStatus::Withdrawn => GoneReason::Withdrawn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::sample;
    use crate::task::decision::Action;
    use crate::task::id::CallId;
    use uuid::Uuid;

    fn note(view: &mut InboxView, row: &RequestRow) -> Option<InboxChange> {
        view.update(row, &sample::approver(), &InboxFilter::default())
    }

    #[test]
    fn request_causes_an_event_when_it_opens_and_when_it_closes() {
        for (status, expected) in [
            (RequestStatus::Resumed, GoneReason::Decided),
            (RequestStatus::Responded, GoneReason::Decided),
            (RequestStatus::Expired, GoneReason::Expired),
            (RequestStatus::Withdrawn, GoneReason::Withdrawn),
        ] {
            let (mut view, mut row) = (InboxView::default(), sample::request());
            assert_eq!(note(&mut view, &row), Some(InboxChange::Created));
            assert_eq!(note(&mut view, &row), None, "told once");
            assert_eq!(view.count(), 1);
            row.status = status;
            assert_eq!(note(&mut view, &row), Some(InboxChange::Gone(expected)));
            assert_eq!((note(&mut view, &row), view.count()), (None, 0));
        }
    }

    #[test]
    fn request_past_its_deadline_is_gone_although_its_row_is_pending() {
        let (mut view, mut row) = (InboxView::default(), sample::request());
        note(&mut view, &row);
        row.expired = true;
        let gone = note(&mut view, &row);
        assert_eq!(gone, Some(InboxChange::Gone(GoneReason::Expired)));
    }

    #[test]
    fn answer_of_another_person_changes_a_request_and_the_own_answer_removes_it() {
        let (mut view, mut row) = (InboxView::default(), sample::request());
        row.spec.terms.approvers.required = 3;
        note(&mut view, &row);
        let call: CallId = row.spec.pending_tool_calls[0].tool_call_id;
        let approves = |who| sample::answer(who, Action::Approve, &[call], false);
        row.answers.extend(approves("carol"));
        assert_eq!(note(&mut view, &row), Some(InboxChange::Changed));
        assert_eq!(note(&mut view, &row), None);
        row.answers.extend(approves("bob"));
        let gone = note(&mut view, &row);
        assert_eq!(gone, Some(InboxChange::Gone(GoneReason::Answered)));
    }

    #[test]
    fn request_that_the_caller_may_not_decide_causes_no_event() {
        let row = sample::request();
        let mut foreign = sample::approver();
        foreign.tenant = "other".into();
        let mut reader = sample::approver();
        reader.permissions.decide = false;
        for caller in [sample::caller(), foreign, reader] {
            let mut view = InboxView::default();
            let told = view.update(&row, &caller, &InboxFilter::default());
            assert_eq!((told, view.count()), (None, 0), "{caller:?}");
        }
    }

    #[test]
    fn request_that_opens_after_an_early_end_of_the_read_is_counted_until_it_closes() {
        let early = Page {
            more: true,
            ..Page::empty()
        };
        let (mut view, mut row) = (InboxView::from_page(&early), sample::request());
        assert_eq!(note(&mut view, &row), Some(InboxChange::Created));
        assert_eq!((note(&mut view, &row), view.count()), (None, 1));
        row.status = RequestStatus::Withdrawn;
        let gone = note(&mut view, &row);
        assert_eq!(gone, Some(InboxChange::Gone(GoneReason::Withdrawn)));
        assert_eq!((view.count(), view.is_outdated()), (0, false));
    }

    #[test]
    fn inbox_is_read_again_after_an_early_end_once_most_of_the_found_requests_are_gone() {
        let mut row = sample::request();
        let ids = [1, 2].map(|number| RequestId(Uuid::from_u128(number)));
        let found = ids.map(|id| OpenRequest {
            id,
            expires_at: None,
            answers: 0,
        });
        let early = Page {
            rows: found.to_vec(),
            more: true,
            scanned_to: None,
        };
        let mut view = InboxView::from_page(&early);
        row.status = RequestStatus::Withdrawn;
        for id in ids {
            assert!(!view.is_outdated(), "{id:?}");
            row.spec.request_id = id;
            note(&mut view, &row);
        }
        assert!(view.is_outdated());
        let empty = Page {
            more: true,
            ..Page::empty()
        };
        assert!(!InboxView::from_page(&empty).is_outdated(), "no loop");
        assert!(!InboxView::from_page(&early).is_outdated(), "no loop");
    }

    #[test]
    fn count_ends_at_a_thousand_and_the_rest_is_read_later() {
        let mut view = InboxView::default();
        let mut row = sample::request();
        for number in 0..1002 {
            row.spec.request_id = RequestId(Uuid::from_u128(number));
            assert_eq!(note(&mut view, &row), Some(InboxChange::Created));
        }
        assert_eq!((view.count(), view.ids().count()), (1000, 1000));
        row.status = RequestStatus::Withdrawn;
        for number in (0..=100).chain([1001]) {
            assert!(!view.is_outdated());
            row.spec.request_id = RequestId(Uuid::from_u128(number));
            let gone = note(&mut view, &row);
            assert_eq!(
                gone,
                Some(InboxChange::Gone(GoneReason::Withdrawn)),
                "{number}"
            );
            if number == 100 {
                break;
            }
        }
        assert!(view.is_outdated() && view.count() == 1000);
    }
}
