//! Ends standing decisions, and finds the reason why a standing decision no longer approves calls.

use super::Refusal;
use crate::engine::Engine;
use crate::people::Caller;
use crate::people::authorization::may_end_grant;
use crate::store::GrantRow;
use crate::task::grant::GrantEnd;
use crate::task::id::GrantId;

/// The commands on standing decisions.
#[derive(Clone, Copy, Debug)]
pub struct Grants<'e> {
    engine: &'e Engine,
}

impl Engine {
    #[must_use]
    pub fn grants(&self) -> Grants<'_> {
        Grants { engine: self }
    }
}

impl Grants<'_> {
    /// Returns the reason why a standing decision no longer approves calls; `None` if it still
    /// approves calls.
    #[must_use]
    pub fn ended(self, row: &GrantRow) -> Option<GrantEnd> {
        let ended = row.ended();
        if ended.is_some() {
            return ended;
        }
        let terms = self.engine.policy.terms(&row.rule);
        let Some(terms) = terms.filter(|_| self.engine.policy.offers(&row.basis)) else {
            return Some(GrantEnd::Changed);
        };
        let votes = std::slice::from_ref(&row.by);
        let counts = self.engine.roster.votes_suffice(
            &row.tenant,
            &row.owner,
            &terms.approvers,
            votes,
            None,
        );
        (!counts).then_some(GrantEnd::Giver)
    }

    /// Whether `caller` may end a standing decision, see [`may_end_grant`].
    #[must_use]
    pub fn may_end(self, caller: &Caller, row: &GrantRow) -> bool {
        let terms = self.engine.policy.terms(&row.rule);
        let approvers = terms.map(|terms| &terms.approvers);
        may_end_grant(caller, &row.tenant, &row.owner, &row.by.by, approvers)
    }

    /// Returns a standing decision that `caller` may end.
    ///
    /// # Errors
    /// `NotFound`; `Forbidden`; `Unavailable` when the database does not answer.
    pub async fn endable(self, caller: &Caller, id: GrantId) -> Result<GrantRow, Refusal> {
        let row = self.engine.store.grant(id).await?;
        let row = row.filter(|row| row.tenant == caller.tenant);
        let row = row.ok_or(Refusal::NotFound)?;
        if !self.may_end(caller, &row) {
            return Err(Refusal::Forbidden(
                "Only the person who gave this standing decision, a person who may decide such a request, or an admin may end it, each with a key that may decide.".into(),
            ));
        }
        Ok(row)
    }

    /// Ends a standing decision, so that no further call starts under it. Ending an ended standing
    /// decision has no effect.
    ///
    /// # Errors
    /// `NotFound`; `Forbidden`; `Unavailable` when the database does not answer.
    pub async fn end(self, caller: &Caller, id: GrantId) -> Result<(), Refusal> {
        let row = self.endable(caller, id).await?;
        let by = caller.user_id.to_string();
        if self.engine.store.revoke_grant(&row.tenant, id, &by).await? {
            tracing::info!(grant = %id, rule = row.rule, by, "a standing decision was ended");
        }
        Ok(())
    }
}
