//! The statement that claims tasks. The statement serves tenants in turns: one task of each tenant,
//! then a second task of each tenant, and so on. Within a tenant, the statement serves the users in
//! turns, and the tasks of each user from the oldest on. So a user with a thousand waiting tasks
//! does not starve other users.
//!
//! The statement finds queued tasks in steps through an index on (tenant, user, task). So its cost
//! depends on the maximum number of tasks to claim (`$4`), not on the number of queued tasks.
//!
//! A lease is fruitless if it expires after work on the task has begun. The column `fruitless`
//! counts such leases of the task, and a new item of the task resets it to 0. From a count of 2 on,
//! two rules apply to the task:
//! - After each fruitless lease, the task sleeps: for 1 second at a count of 2, and for twice as
//!   long at each higher count, up to 60 seconds.
//! - A process drives the task alone, that is, only while the process drives no other task. A claim
//!   takes at most one such task, and takes it before all other tasks. If the process does not
//!   accept such a task (`$7`), the claim takes none.
//!
//! | parameter | |
//! |---|---|
//! | `$1` | `Value::Now` |
//! | `$2`, `$3` | the owner of the leases, their duration |
//! | `$4` | the maximum number of tasks |
//! | `$5` | the tenant whose task was claimed last |
//! | `$6` | JSON pairs: a tenant, and the user of this tenant whose task was claimed last |
//! | `$7` | whether the process accepts a task to be driven alone |

use super::db::Sql;

/// Finds candidates for a claim: about four times as many as the `$4` tasks that the claim may
/// take, because other processes may claim some of the candidates at the same moment.
///
/// Both arguments of the macro are parts of a statement. `$queued` has the FROM and WHERE clauses
/// that select the queued tasks, under the name `c`. `$served` is a SELECT with one row for each
/// tenant: the `tenant`, and the `user_id` of the user whose task was claimed last.
///
/// The subqueries `tenants` and `users` list names in ascending order, beginning after the name
/// that was served last, and wrapping around at the end. Each tenant gets an equal share of the
/// candidates, and each user of a tenant an equal part of this share.
macro_rules! queued {
    ($queued:literal, $served:literal) => {
        concat!(
            "served as materialized (",
            $served,
            "), tenants (tenant, number) as (
    select coalesce((select min(c.tenant) ",
            $queued,
            " and c.tenant > $5), (select min(c.tenant) ",
            $queued,
            " and c.tenant <= $5)), 1
     union all
    select case when t.tenant > $5
            then coalesce((select min(c.tenant) ",
            $queued,
            " and c.tenant > t.tenant), (select min(c.tenant) ",
            $queued,
            " and c.tenant <= $5))
            else (select n.tenant from (select min(c.tenant) as tenant ",
            $queued,
            " and c.tenant > t.tenant) n where n.tenant <= $5) end, t.number + 1
      from tenants t where t.tenant is not null and t.number < 4 * $4
), shares as materialized (
    select t.tenant, coalesce(s.user_id, '') as served, (4 * $4 + t.tenants - 1) / t.tenants as share
      from (select tenant, count(*) over () as tenants from tenants where tenant is not null) t
      left join served s on s.tenant = t.tenant
), users (tenant, served, share, user_id, number) as (
    select s.tenant, s.served, s.share, coalesce((select min(c.user_id) ",
            $queued,
            " and c.tenant = s.tenant and c.user_id > s.served), (select min(c.user_id) ",
            $queued,
            " and c.tenant = s.tenant and c.user_id <= s.served)), 1 from shares s
     union all
    select u.tenant, u.served, u.share, case when u.user_id > u.served
            then coalesce((select min(c.user_id) ",
            $queued,
            " and c.tenant = u.tenant and c.user_id > u.user_id), (select min(c.user_id) ",
            $queued,
            " and c.tenant = u.tenant and c.user_id <= u.served))
            else (select n.user_id from (select min(c.user_id) as user_id ",
            $queued,
            " and c.tenant = u.tenant and c.user_id > u.user_id) n where n.user_id <= u.served) end, u.number + 1
      from users u where u.user_id is not null and u.number < u.share
), parts as materialized (
    select tenant, user_id, (share + users - 1) / users as part
      from (select u.*, count(*) over (partition by u.tenant) as users from users u where u.user_id is not null) u
), tasks (tenant, user_id, part, task_id, number) as (
    select p.tenant, p.user_id, p.part, (select c.task_id ",
            $queued,
            " and c.tenant = p.tenant and c.user_id = p.user_id order by c.task_id limit 1), 1 from parts p
     union all
    select t.tenant, t.user_id, t.part, (select c.task_id ",
            $queued,
            " and c.tenant = t.tenant and c.user_id = t.user_id and c.task_id > t.task_id order by c.task_id limit 1),
            t.number + 1
      from tasks t where t.task_id is not null and t.number < t.part
)"
        )
    };
}

/// Orders the tasks that the claim may take. The subquery `lone` has at most one task, which must
/// be driven alone. This task comes first. The tasks of two other subqueries follow, by turns of
/// tenants and users (see the comment of this module):
/// - `tasks`, the candidates that `queued!` finds,
/// - `over`, the tasks whose lease has expired or whose wake-up time has come. On Postgres, `over`
///   also has each due task for which `claimable_task.alone` is true although the task's count of
///   fruitless leases is below 2.
macro_rules! first {
    () => {
        "due as (
    select o.tenant, o.user_id, o.task_id,
        row_number() over (partition by o.tenant, o.user_id order by o.task_id) as nth
      from (select tenant, user_id, task_id from tasks where task_id is not null
            union all select tenant, user_id, task_id from over) o
), ranked as (
    select d.task_id, d.tenant, row_number() over (partition by d.tenant
            order by d.nth, d.user_id <= coalesce(s.user_id, ''), d.user_id, d.task_id) as place
      from due d left join served s on s.tenant = d.tenant
), first as materialized (
    select task_id, tenant, place
      from (select task_id, tenant, 0 as place from lone union all select task_id, tenant, place from ranked) f
     order by place, tenant <= $5, tenant limit 4 * $4
)"
    };
}

/// Claims tasks, as the comment of this module describes.
///
/// The texts for Postgres and `SQLite` differ because `SQLite` has neither row locks nor
/// `claimable_task`. `SQLite` runs one writer at a time, and its statement reads `agent_task`
/// directly.
///
/// On Postgres, the statement first selects rows of `claimable_task`. In such a row, `due_at` may
/// be too early, and `alone` may be out of date. So the statement then locks the tasks of these
/// rows in `agent_task` and checks them. If a task must not be claimed, the statement corrects or
/// deletes the task's row of `claimable_task`, and returns `taken` as false. The statement skips
/// tasks that another writer has locked, because that writer is changing or claiming them. So a
/// claim never waits for a lock, and cannot deadlock.
pub(super) const CLAIM: Sql = Sql {
    postgres: concat!(
        "
with recursive moment as materialized (
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint + $1::bigint as at
), ",
        queued!(
            "from claimable_task c where c.due_at = 0 and not c.alone",
            "select value ->> 0 as tenant, value ->> 1 as user_id from jsonb_array_elements($6::jsonb)"
        ),
        ", over as (
    select * from (select c.tenant, c.user_id, c.task_id from claimable_task c
         where c.due_at > 0 and not c.alone and c.due_at <= (select at from moment) order by c.due_at limit 4 * $4) c
     union all
    select * from (select c.tenant, c.user_id, c.task_id from claimable_task c join agent_task t on t.task_id = c.task_id
         where c.alone and c.due_at <= (select at from moment) and t.fruitless < 2 order by c.due_at limit 4 * $4) c
), lone as (
    select c.task_id, c.tenant from claimable_task c join agent_task t on t.task_id = c.task_id
     where c.alone and c.due_at <= (select at from moment) and $7 and t.fruitless >= 2
     order by c.due_at, c.task_id limit 1
), ",
        first!(),
        ", locked as materialized (
    select t.task_id, m.at, t.phase = 'leased' as lost, t.phase = 'leased' and t.begun as fruitless,
        f.place = 0 as alone, t.fruitless >= 2 as suspect,
        case t.phase when 'leased' then t.lease_until when 'parked' then t.wake_at else 0 end as due_at
      from first f join agent_task t on t.task_id = f.task_id cross join moment m
     order by f.place, f.tenant <= $5, f.tenant limit $4 for update of t skip locked
), mine as (
    update agent_task t set version = t.version + 1, takeovers = t.takeovers + l.lost::int,
        fruitless = t.fruitless + l.fruitless::int, begun = false,
        phase = case when l.fruitless and t.fruitless >= 1 then 'parked' else 'leased' end,
        lease_owner = case when not (l.fruitless and t.fruitless >= 1) then $2 end,
        lease_until = case when not (l.fruitless and t.fruitless >= 1) then l.at + $3 end,
        wake_at = case when l.fruitless and t.fruitless >= 1
            then l.at + 1000000 * least(60, 1 << least(t.fruitless - 1, 6)::int) end
      from locked l where t.task_id = l.task_id and l.due_at <= l.at and l.alone = l.suspect
    returning t.task_id, t.tenant, t.user_id, t.phase = 'parked' as sleeps, t.takeovers, t.fruitless,
        coalesce(t.lease_until, t.wake_at) as due_at
), kept as (
    update claimable_task c set due_at = coalesce(m.due_at, l.due_at), alone = coalesce(m.fruitless >= 2, l.suspect)
      from locked l left join mine m on m.task_id = l.task_id where c.task_id = l.task_id and l.due_at is not null
), dropped as (
    delete from claimable_task c using locked l where c.task_id = l.task_id and l.due_at is null
)
select l.task_id, coalesce(m.tenant, '') as tenant, coalesce(m.user_id, '') as user_id, m.task_id is not null as taken,
    coalesce(m.sleeps, false) as sleeps, coalesce(m.takeovers, 0) as takeovers, coalesce(m.fruitless, 0) as fruitless
  from locked l left join mine m on m.task_id = l.task_id"
    ),
    sqlite: concat!(
        "
with recursive ",
        queued!(
            "from agent_task c where c.phase = 'queued' and c.fruitless < 2",
            "select value ->> 0 as tenant, value ->> 1 as user_id from json_each($6)"
        ),
        ", over as (
    select tenant, user_id, task_id from agent_task where phase = 'leased' and lease_until <= $1 and fruitless < 2
     union all
    select tenant, user_id, task_id from agent_task
     where wake_at is not null and wake_at <= $1 and phase = 'parked' and fruitless < 2
), lone as (
    select task_id, tenant from agent_task
     where fruitless >= 2 and $7 and (phase = 'queued' or (phase = 'leased' and lease_until <= $1)
        or (phase = 'parked' and wake_at <= $1)) order by task_id limit 1
), ",
        first!(),
        "
update agent_task set version = version + 1, takeovers = takeovers + (phase = 'leased'),
    fruitless = fruitless + (phase = 'leased' and begun),
    phase = case when phase = 'leased' and begun and fruitless >= 1 then 'parked' else 'leased' end,
    lease_owner = case when phase = 'leased' and begun and fruitless >= 1 then null else $2 end,
    lease_until = case when phase = 'leased' and begun and fruitless >= 1 then null else $1 + $3 end,
    wake_at = case when phase = 'leased' and begun and fruitless >= 1
        then $1 + 1000000 * min(60, 1 << min(fruitless - 1, 6)) end,
    begun = false
 where task_id in (select task_id from first order by place, tenant <= $5, tenant limit $4)
returning task_id, tenant, user_id, 1 as taken, phase = 'parked' as sleeps, takeovers, fruitless"
    ),
    by_key: true,
};
