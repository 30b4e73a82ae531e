//! The tree that a task in hand belongs to: its relatives as they were read, and what the next commit does to them.
//! What must stay true: a change adds to the sums of a task and of all its ancestors in one commit, and wherever it
//! changes whether something runs or is asked, or starts something, it is fenced by the version of each of them: two that
//! pause at once cannot both believe that the other one runs, nor two that start at once both take the last place.

use std::collections::{BTreeMap, BTreeSet};

use super::member::Member;
use crate::store;
use crate::task::change::{Counters, Guard, LeaseChange, TaskChange, TaskRow};
use crate::task::id::TaskId;
use crate::task::question::OPEN;
use crate::task::status::TaskStatus;
use crate::task::time::Time;
use crate::task::tree::Tree;
use crate::task::turn::Progress;

/// The relatives of a task; none, where it is alone.
pub(super) struct Family {
    rows: BTreeMap<TaskId, TaskRow>,
    tree: Tree,
    /// The last event that was read.
    event: i64,
    /// What the next commit changes.
    touched: BTreeMap<TaskId, Touched>,
    /// Those of which something cannot be understood.
    unreadable: BTreeSet<TaskId>,
    /// Nothing has happened since it was read that this process waited for.
    pub fresh: bool,
}

/// A relative that the next commit changes.
pub(super) struct Touched {
    pub member: Member,
    pub lease: LeaseChange,
    /// It is started, or started again, by this very commit.
    pub begins: bool,
}

/// Where a task stands in the order of a commit: those below that end, the task itself, those that it starts, those above.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Below,
    Own,
    Begins,
    Above,
}

impl Family {
    pub(super) fn of(root: TaskId) -> Self {
        let (rows, touched, unreadable) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { rows, tree: Tree::new(root), event: 0, touched, unreadable, fresh: false }
    }

    /// Up to which event it was read.
    pub(super) fn event(&self) -> i64 {
        self.event
    }

    /// Takes in what was read since.
    pub(super) fn read(&mut self, tree: store::Tree) {
        let doubted = |at: Time| self.event == 0 && tree.doubted_at.is_some_and(|end| at <= end);
        let doubtful = tree.items.iter().rposition(|line| doubted(line.item.at)).map_or(0, |last| last + 1);
        for (place, line) in tree.items.iter().enumerate() {
            self.tree.apply(line.task_id, &line.item, place < doubtful);
        }
        self.event = tree.last_event.max(self.event);
        self.unreadable.extend(tree.unreadable);
        self.rows = tree.rows.into_iter().map(|row| (row.task_id, row)).collect();
        self.fresh = true;
    }

    /// Whether something of it is not known.
    pub(super) fn is_damaged(&self) -> bool {
        !self.unreadable.is_empty()
    }

    /// Whether a task can be read whole. One that cannot is left to whoever ends it from its row.
    pub(super) fn is_readable(&self, task: TaskId) -> bool {
        !self.unreadable.contains(&task)
    }

    /// Whether the next commit starts that task.
    pub(super) fn begins(&self, task: TaskId) -> bool {
        self.touched.get(&task).is_some_and(|touched| touched.begins)
    }

    pub(super) fn row(&self, task: TaskId) -> Option<&TaskRow> {
        self.rows.get(&task)
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &TaskRow> {
        self.rows.values()
    }

    /// Where a task stands as far as it is committed.
    pub(super) fn task(&self, task: TaskId) -> Option<&Progress> {
        self.tree.task(task)
    }

    /// The same, with what its tree has in common.
    pub(super) fn progress(&self, task: TaskId) -> Option<Progress> {
        self.tree.progress(task)
    }

    /// Those above a task, the nearest first.
    pub(super) fn above(&self, row: &TaskRow) -> Vec<TaskId> {
        let mut above = Vec::new();
        let mut next = row.parent.map(|(parent, _)| parent);
        while let Some(task) = next.filter(|task| !above.contains(task)) {
            above.push(task);
            next = self.rows.get(&task).and_then(|row| row.parent).map(|(parent, _)| parent);
        }
        above
    }

    /// Those below a task, at any depth.
    pub(super) fn below(&self, task: TaskId) -> Vec<TaskId> {
        self.rows.values().filter(|row| self.above(row).contains(&task)).map(|row| row.task_id).collect()
    }

    /// A relative, to be changed by the next commit.
    pub(super) fn touch(&mut self, task: TaskId) -> Option<&mut Touched> {
        if !self.touched.contains_key(&task) {
            let row = self.rows.get(&task)?.clone();
            let member = match self.tree.progress(task) {
                Some(progress) => Member::new(row, progress, Vec::new()),
                None => Member::unread(row, 0),
            };
            self.touched.insert(task, Touched { member, lease: LeaseChange::Keep, begins: false });
        }
        self.touched.get_mut(&task)
    }

    /// One that cannot be read here: whoever has it in hand reads again, and somebody looks at it who can.
    pub(super) fn unsettle(&mut self, task: TaskId) {
        let Some(row) = self.rows.get(&task).filter(|row| !row.status.is_terminal()) else { return };
        let member = Member::unread(row.clone(), 0);
        self.touched.insert(task, Touched { member, lease: LeaseChange::Queue, begins: false });
    }

    /// A task that the next commit creates.
    pub(super) fn add(&mut self, member: Member) {
        let touched = Touched { member, lease: LeaseChange::Queue, begins: true };
        self.touched.insert(touched.member.task_id(), touched);
    }

    pub(super) fn touched(&self) -> impl Iterator<Item = &Touched> {
        self.touched.values()
    }

    /// What was pushed and not committed is forgotten.
    pub(super) fn forget(&mut self) {
        self.touched.clear();
        self.fresh = false;
    }

    /// What the next commit adds to the sums of each task, where it adds anything.
    pub(super) fn sums(&self, own: &Member, lease: &LeaseChange) -> BTreeMap<TaskId, Counters> {
        let mut sums: BTreeMap<TaskId, Counters> = BTreeMap::new();
        let others = self.touched.values().map(|touched| (&touched.member, &touched.lease));
        for (member, lease) in others.chain([(own, lease)]) {
            let adds = member.adds(lease);
            for task in self.above(&member.row).into_iter().chain([member.task_id()]) {
                *sums.entry(task).or_default() += adds;
            }
        }
        sums.retain(|_, sum| *sum != Counters::default());
        sums
    }

    /// Whoever runs again, or does not any more, says so; and whoever waits for room for a question is woken where a
    /// question is closed. Done again it does nothing more.
    pub(super) fn balance(&mut self, own: &mut Member, lease: &LeaseChange, now: Time) {
        let mut sums = self.sums(own, lease);
        let root = own.row.root_task_id;
        let full = self.rows.get(&root).is_some_and(|row| usize::try_from(row.open_requests).unwrap_or(0) >= OPEN);
        if full && sums.get(&root).is_some_and(|sum| sum.open_requests < 0) {
            let waits = |row: &&TaskRow| {
                row.parked && !row.status.is_terminal() && self.tree.task(row.task_id).is_some_and(Progress::wants_room)
            };
            let waiting: Vec<_> = self.rows.values().filter(waits).map(|row| row.task_id).collect();
            for task in waiting.into_iter().filter(|task| *task != own.task_id()) {
                if let Some(touched) = self.touch(task).filter(|touched| !touched.member.is_over()) {
                    touched.lease = LeaseChange::Queue;
                }
            }
            sums = self.sums(own, lease);
        }
        changed(own, sums.remove(&own.task_id()).unwrap_or_default(), now);
        for (task, touched) in &mut self.touched {
            changed(&mut touched.member, sums.remove(task).unwrap_or_default(), now);
        }
        // Not everybody whose sums change has something to say.
        for (task, sum) in sums {
            let speaks = |row: &TaskRow| {
                speaks(row.status, row.busy + sum.busy, row.open_requests + sum.open_requests).is_some()
            };
            if self.rows.get(&task).is_some_and(speaks)
                && let Some(touched) = self.touch(task)
            {
                changed(&mut touched.member, sum, now);
            }
        }
    }

    /// The relatives' part of the next commit, around the task's own: in the order of its events.
    pub(super) fn changes(&self, own: &Member, lease: &LeaseChange, change: TaskChange) -> Vec<TaskChange> {
        let mut sums = self.sums(own, lease);
        let above = self.above(&own.row);
        let mut own_change = change;
        own_change.counters = sums.remove(&own.task_id()).unwrap_or_default();
        // Who waits while another one starts adds up to nothing; the limits of those above have to see it all the same.
        let begins = self.touched.values().any(|touched| touched.begins);
        if begins {
            for task in &above {
                sums.entry(*task).or_default();
            }
        }
        let mut changes = vec![((Place::Own, 0), own_change)];
        for (task, touched) in &self.touched {
            let depth = touched.member.row.agent_path.len();
            let place = match (touched.begins, above.contains(task)) {
                (true, _) => Place::Begins,
                (false, true) => Place::Above,
                (false, false) => Place::Below,
            };
            let sum = sums.remove(task).unwrap_or_default();
            let deepest_first = usize::MAX - depth;
            changes.push(((place, deepest_first), written(&touched.member, touched.lease.clone(), sum)));
        }
        for (task, counters) in sums {
            let Some(row) = self.rows.get(&task) else { continue };
            let fenced = begins || counters.busy != 0 || counters.open_requests != 0;
            let guard = if fenced { Guard::Version(row.version) } else { Guard::Any };
            changes.push(((Place::Above, 0), bare(row, guard, counters)));
        }
        changes.sort_by_key(|(place, _)| *place);
        changes.into_iter().map(|(_, change)| change).collect()
    }
}

/// The status that a task of this status says it has from now on, if it is another one.
fn speaks(status: TaskStatus, busy: i32, open: i32) -> Option<TaskStatus> {
    match status {
        TaskStatus::Running if busy <= 0 && open > 0 => Some(TaskStatus::Paused),
        TaskStatus::Paused if busy > 0 => Some(TaskStatus::Running),
        TaskStatus::Running
        | TaskStatus::Paused
        | TaskStatus::Completed
        | TaskStatus::Failed
        | TaskStatus::Canceled => None,
    }
}

fn changed(member: &mut Member, sum: Counters, now: Time) {
    let status = member.progress.status.unwrap_or(member.row.status);
    let (busy, open) = (member.row.busy + sum.busy, member.row.open_requests + sum.open_requests);
    if let Some(status) = speaks(status, busy, open) {
        member.status(status, now);
    }
}

/// A task's part of a change.
pub(super) fn written(member: &Member, lease: LeaseChange, counters: Counters) -> TaskChange {
    TaskChange {
        task_id: member.task_id(),
        guard: member.guard.clone().unwrap_or(Guard::Version(member.row.version)),
        facts: member.pushed().iter().map(|item| item.fact.clone()).collect(),
        last_seq: member.row.last_seq,
        agent_version: member.repinned.then(|| member.row.agent_version.clone()),
        counters,
        lease,
        credentials: Vec::new(),
    }
}

fn bare(row: &TaskRow, guard: Guard, counters: Counters) -> TaskChange {
    TaskChange {
        task_id: row.task_id,
        guard,
        facts: Vec::new(),
        last_seq: row.last_seq,
        agent_version: None,
        counters,
        lease: LeaseChange::Keep,
        credentials: Vec::new(),
    }
}
