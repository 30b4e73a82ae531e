//! Functions of the store for the tests of the package. The product calls only
//! `set_clock_forward` and `use_general_statement`, and only for a test that runs the real process.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{
    DEFINITION, NOW, READY, STORE_AGENT_VERSION, Sql, Store, asker_lock, attempts, change_rows,
    claim, commit, commit_postgres, commit_single, commit_sqlite, credentials, damaged_task,
    deliveries, delivery_list, events, gate_calls, gathered, grants, idempotency, identity, inbox,
    journal, metric_counts, notices, open, open_list, relay, request_list, request_reads, requests,
    resend_keys, sessions, task_list, tasks, tree, updatable_messages, upgrade, users,
};

#[doc(hidden)]
impl Store {
    /// Stops the exchange of notifications with other replicas.
    pub fn mute(&self) {
        self.inner.muted.store(true, Ordering::Relaxed);
    }

    /// Sets the clock of a Postgres database forward by `by`. On `SQLite`, tests inject a clock
    /// instead.
    pub fn set_clock_forward(&self, by: Duration) {
        self.db()
            .offset
            .fetch_add(change_rows::micros(by), Ordering::Relaxed);
    }

    /// Makes the statement of `commit_postgres.rs` write all later changes of this store on
    /// Postgres, also those that `commit_single.rs` would write.
    pub fn use_general_statement(&self) {
        let committer = &self.inner.committer;
        committer.is_general_only.store(true, Ordering::Relaxed);
    }

    /// Whether the presence of an asker that this process stores now ends with this process. False
    /// on `SQLite`.
    #[must_use]
    pub fn ends_presence(&self) -> bool {
        self.db().asker_lock.owner() != 0
    }

    /// Makes [`Store::compare`] do nothing from now on, for tests that count statements.
    #[cfg(failpoints)]
    pub fn stop_comparing(&self) {
        self.inner.skips_comparison.store(true, Ordering::Relaxed);
    }

    /// Returns every statement, for the test that prepares each statement on both engines. An empty
    /// text means that the statement is not used on that engine.
    pub fn statements() -> Vec<Sql> {
        let own = [
            STORE_AGENT_VERSION,
            DEFINITION,
            NOW,
            READY,
            commit::FIND,
            open::EXPIRE_LEASES,
            open::END_PRESENCE,
        ];
        let mut all = [
            own.as_slice(),
            asker_lock::STATEMENTS,
            attempts::STATEMENTS,
            claim::STATEMENTS,
            credentials::STATEMENTS,
            metric_counts::STATEMENTS,
            deliveries::STATEMENTS,
            delivery_list::STATEMENTS,
            gathered::STATEMENTS,
            updatable_messages::STATEMENTS,
            events::STATEMENTS,
            gate_calls::STATEMENTS,
            grants::STATEMENTS,
            idempotency::STATEMENTS,
            identity::STATEMENTS,
            inbox::STATEMENTS,
            journal::STATEMENTS,
            notices::STATEMENTS,
            open_list::STATEMENTS,
            relay::STATEMENTS,
            damaged_task::STATEMENTS,
            request_list::STATEMENTS,
            request_reads::STATEMENTS,
            requests::STATEMENTS,
            resend_keys::STATEMENTS,
            sessions::STATEMENTS,
            task_list::STATEMENTS,
            tasks::STATEMENTS,
            tree::STATEMENTS,
            upgrade::STATEMENTS,
            users::STATEMENTS,
        ]
        .concat();
        all.extend(commit_postgres::statements());
        all.extend(commit_single::statements());
        all.extend(commit_sqlite::statements().map(Sql::on_sqlite));
        all
    }
}
