-- name: find_tenants
-- Those of the given tenants that exist, each with the limits that a request can exceed, and its time zone.
-- Index: tenants_pkey. No lock.
SELECT tenant, max_jobs, max_payload_bytes, timezone FROM tenants WHERE tenant = ANY (%(tenants)s)

-- name: lock_job_quota
-- Locks the quota of a tenant, so that two transactions do not count the same jobs.
-- Index: job_rooms_pkey. Lock: the tenant's row, before any timer; the caller takes several in the order of the names. ON CONFLICT locks
-- it, and changes nothing; the row of a first submit has no room, so that a count follows.
INSERT INTO job_rooms AS r (tenant, quota, room) VALUES (%(tenant)s, %(quota)s, 0)
    ON CONFLICT (tenant) DO UPDATE SET room = excluded.room WHERE false

-- name: lock_old_job_quota
-- Does so for processes of 0.1, unless a stranger holds their lock.
-- No index. Lock: an advisory one of the tenant, before the row.
SELECT pg_advisory_xact_lock(k.key)
  FROM (SELECT hashtextextended('tidewheel jobs of ' || %(tenant)s::text, 0) AS key) AS k
 WHERE {{tidewheel.no_stranger(k)}}

-- name: take_job_room
-- Takes the room for new jobs that the last count has left; no row if it is too small, or of another quota.
-- Index: job_rooms_pkey. Lock: the row; lock_job_quota has locked the tenant. Changes no indexed column (HOT).
UPDATE job_rooms SET room = room - %(jobs)s
 WHERE tenant = %(tenant)s AND quota = %(quota)s AND room >= %(jobs)s

-- name: leave_job_room
-- Writes the room that a count has left.
-- Index: job_rooms_pkey. Lock: the row; lock_job_quota has locked the tenant.
INSERT INTO job_rooms (tenant, quota, room) VALUES (%(tenant)s, %(quota)s, %(room)s)
    ON CONFLICT (tenant) DO UPDATE SET quota = excluded.quota, room = excluded.room

-- name: count_jobs
-- The number of a tenant's jobs, up to a limit.
-- Index: jobs_by_key, the tenant's rows. No lock: the tenant is locked.
SELECT count(*) FROM (SELECT 1 FROM jobs WHERE tenant = %(tenant)s AND deleted_at IS NULL LIMIT %(limit)s) AS counted

-- name: find_live_jobs
-- The ids of those jobs that exist and are not deleted.
-- Index: jobs_pkey. No lock.
SELECT job_id FROM jobs WHERE job_id = ANY (%(job_ids)s) AND deleted_at IS NULL

-- name: find_replies
-- The first replies of requests that were applied before.
-- Index: requests_pkey. No lock.
SELECT r.tenant, r.request_id, r.body_hash, r.reply
  FROM unnest(%(tenants)s::text[], %(request_ids)s::text[]) AS requested (tenant, request_id)
  JOIN requests AS r USING (tenant, request_id)

-- name: purge_replies
-- Deletes expired replies, the oldest first, 5,000 at a time.
-- Index: requests_by_age, requests_pkey. Lock: the rows, locked rows are skipped: another member deletes them.
WITH expired AS MATERIALIZED (
    SELECT tenant, request_id
      FROM requests
     WHERE created_at < tidewheel_now() - %(kept)s::interval
     ORDER BY created_at
     LIMIT 5000
       FOR UPDATE SKIP LOCKED
)
DELETE FROM requests AS r USING expired AS e WHERE r.tenant = e.tenant AND r.request_id = e.request_id

-- name: find_jobs
-- The ids of those jobs that exist, deleted ones among them.
-- Index: jobs_pkey. No lock: a job that is created meanwhile raises a unique violation.
SELECT job_id FROM jobs WHERE job_id = ANY (%(job_ids)s)

-- name: lock_timers
-- Locks the timers of these jobs, before the job rows, as firing does. Edits and firing meet on these locks.
-- Index: timers_pkey. Lock: each timer, in job_id order; waits for a firing or an edit under way.
-- Why without a join: the version that the wait has let commit is not visible to this statement.
SELECT job_id FROM timers WHERE job_id = ANY (%(job_ids)s) ORDER BY job_id FOR UPDATE

-- name: read_locked_timers
-- The timers that were just locked, with the columns of their versions that firing needs.
-- Index: timers_pkey, job_versions_pkey. No lock.
SELECT t.job_id, t.tenant, t.shard, t.scheduled_at, t.version, v.schedule_json, v.handler, v.queue, v.lane, v.overlap,
       v.definition, v.has_deadlines, v.concurrency_key, v.priority, v.ordering_key, v.passes, v.policy_json, nullif(t.due_at, 'infinity') AS due_at, t.catch_up_end, t.hold_reason, t.overridden,
       t.repeats_until
  FROM timers AS t
  JOIN job_versions AS v ON v.job_id = t.job_id AND v.version = t.version
 WHERE t.job_id = ANY (%(job_ids)s)

-- name: lock_jobs
-- Locks the rows of these jobs.
-- Index: jobs_pkey. Lock: each job, in job_id order, after its timer; triggers share the key and go on.
-- Why without a join: as lock_timers.
SELECT job_id FROM jobs WHERE job_id = ANY (%(job_ids)s) ORDER BY job_id FOR NO KEY UPDATE

-- name: lock_jobs_to_delete
-- Locks the rows and the keys of these jobs, so that no trigger creates a run while the open runs are cancelled.
-- Index: jobs_pkey. Lock: each row and key, in job_id order, after its timer; waits up to lock_timeout.
-- Why lock_timeout: a user's own transaction that triggers a job holds its key.
SELECT job_id FROM jobs WHERE job_id = ANY (%(job_ids)s) ORDER BY job_id FOR UPDATE

-- name: read_locked_jobs
-- The jobs that were just locked, with the schedule and the policy in force.
-- Index: jobs_pkey, job_versions_pkey. No lock.
SELECT j.job_id, j.tenant, j.key, j.shard, j.version, j.spec_hash, j.interval_anchor, j.interval_us, j.paused, j.paused_until,
       j.consecutive_failures, (v.spec ->> 'pause_on_failure')::integer AS pause_on_failure, j.created_at, j.finished_at,
       j.deleted_at, j.root_job_id, v.schedule_json, v.policy_json
  FROM jobs AS j
  LEFT JOIN job_versions AS v ON v.job_id = j.job_id AND v.version = j.version
 WHERE j.job_id = ANY (%(job_ids)s)

-- name: insert_calendar_placeholder
-- Inserts a placeholder for a calendar that may be new, so that two puts of it meet on the row.
-- Index: calendars_pkey. Lock: the new row; waits for an uncommitted insert of the same calendar.
INSERT INTO calendars (tenant, name, version, days, weekdays, updated_at)
VALUES (%(tenant)s, %(name)s, 0, '{}', '{}', tidewheel_now())
    ON CONFLICT DO NOTHING

-- name: lock_calendar
-- The calendar, locked against submits of its jobs and other changes, before the timers of its jobs.
-- Index: calendars_pkey. Lock: the row; waits.
SELECT version, days, weekdays, source FROM calendars WHERE tenant = %(tenant)s AND name = %(name)s FOR UPDATE

-- name: lock_calendars_for_share
-- Locks calendars against change until the versions that name them are written, before any timer.
-- Index: calendars_pkey. Lock: the rows, shared, by tenant and name.
-- Why a join is safe: the other side is the statement's own parameters, which no wait makes older.
SELECT c.name
  FROM unnest(%(tenants)s::text[], %(names)s::text[]) AS requested (tenant, name)
  JOIN calendars AS c USING (tenant, name)
 ORDER BY c.tenant, c.name
   FOR SHARE OF c

-- name: calendar_names
-- The names of a tenant's calendars, to suggest the one that was meant.
-- Index: calendars_pkey. No lock.
SELECT name FROM calendars WHERE tenant = %(tenant)s ORDER BY name LIMIT 1000

-- name: update_calendar
-- Replaces a calendar's days, and keeps those that held before.
-- Index: calendars_pkey. Lock: a row that is locked already.
UPDATE calendars
   SET past = CASE WHEN version = 0 OR (days, weekdays) = (%(days)s::date[], %(weekdays)s::smallint[]) THEN past
                   ELSE jsonb_path_query_array(past, '$[last - 98 to last]') || jsonb_build_array(jsonb_build_object(
                       'until', tidewheel_now(), 'days', days, 'weekdays', weekdays, 'since', since)) END,
       version = version + 1, days = %(days)s::date[], weekdays = %(weekdays)s::smallint[], source = %(source)s,
       updated_at = tidewheel_now(), since = coalesce(%(since)s, since)
 WHERE tenant = %(tenant)s AND name = %(name)s

-- name: delete_calendar
-- Deletes a calendar that no job names.
-- Index: calendars_pkey. Lock: a row that is locked already.
DELETE FROM calendars WHERE tenant = %(tenant)s AND name = %(name)s

-- name: find_calendar_jobs
-- The jobs whose version in force names a calendar; no other can follow while the calendar is locked.
-- Index: job_calendars_pkey. No lock.
SELECT job_id FROM job_calendars WHERE tenant = %(tenant)s AND name = %(name)s

-- name: count_calendar_jobs
-- The number of jobs that name a calendar and the first of their keys; no row if none does.
-- Index: job_calendars_pkey, jobs_pkey. No lock.
SELECT min(j.key), count(*)
  FROM job_calendars AS c
  JOIN jobs AS j ON j.job_id = c.job_id
 WHERE c.tenant = %(tenant)s AND c.name = %(name)s
HAVING count(*) > 0

-- name: drop_job_calendars
-- Deletes the calendars that these jobs named so far.
-- Index: job_calendars_by_job. Lock: the rows, under their jobs' locks.
DELETE FROM job_calendars WHERE job_id = ANY (%(job_ids)s)

-- name: add_job_calendars
-- Inserts the calendars that these jobs name.
-- Index: job_calendars_pkey. Lock: new rows; shares the keys of calendars that are locked already.
INSERT INTO job_calendars (tenant, name, job_id)
SELECT tenant, name, job_id
  FROM unnest(%(tenants)s::text[], %(names)s::text[], %(job_ids)s::uuid[]) AS named (tenant, name, job_id)

-- name: read_jobs_without_timer
-- Jobs without a timer, as locked timers are read: a change of their days may give them occurrences again.
-- Index: jobs_pkey, job_versions_pkey. No lock: the jobs are locked already.
SELECT j.job_id, j.tenant, j.shard, %(now)s::timestamptz AS scheduled_at, j.version, v.schedule_json, v.handler, v.queue, v.lane,
       v.overlap, v.definition, v.has_deadlines, v.concurrency_key, v.priority, v.ordering_key, v.passes, v.policy_json, NULL::timestamptz AS due_at, true AS overridden
  FROM jobs AS j
  JOIN job_versions AS v ON v.job_id = j.job_id AND v.version = j.version
 WHERE j.job_id = ANY (%(job_ids)s) AND j.deleted_at IS NULL
   AND NOT EXISTS (SELECT FROM timers AS t WHERE t.job_id = j.job_id)

-- name: revive_jobs
-- Marks jobs as not finished, since they have occurrences again.
-- Index: jobs_pkey. Lock: rows that are locked already.
UPDATE jobs SET finished_at = NULL WHERE job_id = ANY (%(job_ids)s)

-- name: update_jobs
-- Updates the jobs' rows after an edit.
-- Index: jobs_pkey. Lock: rows that are locked already.
UPDATE jobs AS j
   SET version = new.version,
       spec_hash = new.spec_hash,
       schedule_kind = new.schedule_kind,
       interval_anchor = new.interval_anchor,
       interval_us = new.interval_us,
       labels = new.labels,
       paused = new.paused,
       paused_at = CASE WHEN new.paused THEN coalesce(j.paused_at, %(now)s) END,
       paused_by = CASE WHEN new.paused THEN j.paused_by END,
       pause_reason = CASE WHEN new.paused THEN j.pause_reason END,
       updated_at = %(now)s,
       paused_until = CASE WHEN new.paused THEN j.paused_until END,
       created_at = CASE WHEN j.version = 0 OR j.deleted_at IS NOT NULL THEN %(now)s ELSE j.created_at END,
       finished_at = CASE WHEN new.finished THEN %(now)s END,
       deleted_at = NULL,
       consecutive_failures = 0
  FROM unnest(
        %(job_ids)s::uuid[], %(versions)s::integer[], %(spec_hashes)s::bytea[], %(schedule_kinds)s::text[],
        %(anchors)s::timestamptz[], %(interval_us)s::bigint[], %(labels)s::jsonb[], %(paused)s::boolean[],
        %(finished)s::boolean[]
       ) AS new (job_id, version, spec_hash, schedule_kind, interval_anchor, interval_us, labels, paused, finished)
 WHERE j.job_id = new.job_id

-- name: find_last_ends
-- Returns the ends of the last runs by the timers of jobs; none of a job without a stored one.
-- Index: timers_pkey, jobs_pkey, by job in every partition. No lock.
SELECT o.job_id, ended.finished_at
  FROM (SELECT t.job_id, t.scheduled_at, j.created_at FROM timers AS t JOIN jobs AS j USING (job_id) WHERE t.job_id = ANY (%(job_ids)s)) AS o
 CROSS JOIN LATERAL ({{tidewheel.transitions.last_chained_end(o)}}) AS ended

-- name: put_timers
-- Inserts or updates the timers of jobs that have occurrences.
-- Index: timers_pkey, overrides_pkey; timers_due changes. Lock: rows that are locked already, or new.
-- Why least: a moved occurrence that has not fired may be due before the next instant.
-- Why repeats_until: a run that was created ahead, within the lookahead of at most 60 s, and has ended is not retracted,
-- so firing looks for runs of the instants that are decided again. A job's first version has no earlier run.
INSERT INTO timers (job_id, tenant, shard, due_at, scheduled_at, version, hold_reason, overridden, repeats_until)
SELECT new.job_id, new.tenant, new.shard,
       CASE WHEN new.hold_reason IS NULL THEN least(new.due_at, pending.moved_to) ELSE new.due_at END,
       new.scheduled_at, new.version, new.hold_reason, pending.overrides > 0,
       CASE WHEN new.version > 1 THEN (SELECT tidewheel_now()) + interval '5 minutes' END
  FROM unnest(
        %(job_ids)s::uuid[], %(tenants)s::text[], %(shards)s::smallint[], %(due_at)s::timestamptz[],
        %(scheduled_at)s::timestamptz[], %(versions)s::integer[], %(hold_reasons)s::text[]
       ) AS new (job_id, tenant, shard, due_at, scheduled_at, version, hold_reason)
 CROSS JOIN LATERAL (
    SELECT count(*) AS overrides, min(v.moved_to) FILTER (WHERE v.done_at IS NULL) AS moved_to
      FROM overrides AS v
     WHERE v.job_id = new.job_id
       AND (v.scheduled_at >= new.scheduled_at OR (v.kind = 'move' AND v.done_at IS NULL))
  ) AS pending
    ON CONFLICT (job_id) DO UPDATE
   SET due_at = excluded.due_at, scheduled_at = excluded.scheduled_at, version = excluded.version,
       hold_reason = excluded.hold_reason, overridden = excluded.overridden, catch_up_end = NULL,
       repeats_until = CASE WHEN excluded.scheduled_at < timers.scheduled_at
                            THEN greatest(timers.repeats_until, timers.scheduled_at)
                            ELSE timers.repeats_until END

-- name: read_timers
-- The next fire times of these jobs for replies: of the run written ahead, else of the timer, unless it is on hold.
-- Index: timers_pkey, job_versions_pkey, job_runs_by_job. No lock.
-- Why scheduled_at: due_at of a timer that firing has postponed is no instant of the schedule.
SELECT t.job_id, t.scheduled_at, t.overridden OR v.policy_json LIKE '%%calendars":["%%',
       (SELECT min(o.scheduled_at) FROM job_runs AS o
         WHERE o.job_id = t.job_id AND o.cause = 'timer' AND o.attempt = 0 AND o.scheduled_at > (SELECT tidewheel_now()))
  FROM timers AS t
  JOIN job_versions AS v ON v.job_id = t.job_id AND v.version = t.version
 WHERE t.job_id = ANY (%(job_ids)s) AND t.hold_reason IS NULL

-- name: read_timer_runs
-- The states of these runs, of those that exist.
-- Index: job_runs_pkey, the partitions' index by run. No lock: timers create them under locks that the caller holds.
SELECT r.run_id, r.state
  FROM runs AS r
 WHERE r.run_id = ANY (%(run_ids)s)

-- name: pause_jobs
-- Updates the jobs' rows after a pause; clears finished_at if a timer came back.
-- Index: jobs_pkey. Lock: rows that are locked already.
UPDATE jobs AS j
   SET paused = true, paused_at = coalesce(j.paused_at, %(now)s), paused_by = new.maker, pause_reason = new.reason,
       paused_until = new.until, updated_at = %(now)s,
       finished_at = CASE WHEN new.revived THEN NULL ELSE j.finished_at END
  FROM unnest(
        %(job_ids)s::uuid[], %(reasons)s::text[], %(untils)s::timestamptz[], %(makers)s::text[], %(revived)s::boolean[]
       ) AS new (job_id, reason, until, maker, revived)
 WHERE j.job_id = new.job_id

-- name: resume_jobs
-- Updates the jobs' rows after a resume.
-- Index: jobs_pkey. Lock: rows that are locked already.
UPDATE jobs
   SET paused = false, paused_at = NULL, paused_by = NULL, pause_reason = NULL, paused_until = NULL, consecutive_failures = 0,
       updated_at = %(now)s
 WHERE job_id = ANY (%(job_ids)s)

-- name: delete_jobs
-- Marks jobs as deleted; their versions stay, so that version numbers never repeat for a job_id.
-- Index: jobs_pkey. Lock: rows that are locked already.
UPDATE jobs
   SET deleted_at = %(now)s, updated_at = %(now)s, paused = false, paused_at = NULL, paused_by = NULL, pause_reason = NULL,
       paused_until = NULL
 WHERE job_id = ANY (%(job_ids)s)

-- name: retire_versions
-- Ends the versions under which jobs were deleted.
-- Index: job_versions_pkey. Lock: the rows, under their jobs' locks.
UPDATE job_versions AS v
   SET retired_at = %(now)s
  FROM unnest(%(job_ids)s::uuid[], %(versions)s::integer[]) AS gone (job_id, version)
 WHERE v.job_id = gone.job_id AND v.version = gone.version

-- name: read_upcoming_overrides
-- The overrides of upcoming occurrences, and of moved ones whose own instant has passed.
-- Index: overrides_pkey. No lock: they change under their jobs' locks only.
SELECT v.job_id, v.scheduled_at, v.moved_to, v.done_at IS NOT NULL
  FROM overrides AS v
 WHERE v.job_id = ANY (%(job_ids)s)
   AND (v.scheduled_at > %(now)s OR v.moved_to > %(now)s OR (v.kind = 'move' AND v.done_at IS NULL))
 ORDER BY v.job_id, v.scheduled_at

-- name: put_overrides
-- Inserts or replaces overrides of single occurrences.
-- Index: overrides_pkey. Lock: the rows, under their jobs' locks.
INSERT INTO overrides (job_id, scheduled_at, tenant, kind, moved_to, created_at, created_by, reason)
SELECT new.job_id, new.scheduled_at, new.tenant, CASE WHEN new.moved_to IS NULL THEN 'skip' ELSE 'move' END,
       new.moved_to, %(now)s, 'request', new.reason
  FROM unnest(%(job_ids)s::uuid[], %(instants)s::timestamptz[], %(tenants)s::text[], %(moved_to)s::timestamptz[],
              %(reasons)s::text[])
       AS new (job_id, scheduled_at, tenant, moved_to, reason)
    ON CONFLICT (job_id, scheduled_at) DO UPDATE
   SET kind = excluded.kind, moved_to = excluded.moved_to, created_at = excluded.created_at, created_by = excluded.created_by,
       reason = excluded.reason, done_at = NULL

-- name: delete_overrides
-- Deletes the overrides of these occurrences.
-- Index: overrides_pkey. Lock: the rows, under their jobs' locks.
DELETE FROM overrides AS v
 USING unnest(%(job_ids)s::uuid[], %(instants)s::timestamptz[]) AS gone (job_id, scheduled_at)
 WHERE v.job_id = gone.job_id AND v.scheduled_at = gone.scheduled_at

-- name: drop_moves
-- Records moved occurrences that will not fire any more as skipped by request; their own instant has passed.
-- Index: overrides_pkey. Lock: the rows, under their jobs' locks.
WITH dropped AS (
    UPDATE overrides AS v
       SET done_at = %(now)s
      FROM unnest(%(job_ids)s::uuid[], %(instants)s::timestamptz[], %(versions)s::integer[])
           AS gone (job_id, scheduled_at, job_version)
     WHERE v.job_id = gone.job_id AND v.scheduled_at = gone.scheduled_at
    RETURNING v.job_id, v.tenant, gone.job_version, v.scheduled_at
)
INSERT INTO skips (job_id, tenant, job_version, reason, first_at, last_at, occurrences, created_at)
SELECT job_id, tenant, job_version, %(reason)s, scheduled_at, scheduled_at, 1, %(now)s
  FROM dropped

-- name: read_requested_versions
-- Earlier versions to roll back to; versions never change.
-- Index: job_versions_pkey. No lock.
SELECT v.job_id, v.spec, v.definition
  FROM unnest(%(job_ids)s::uuid[], %(versions)s::integer[]) AS requested (job_id, version)
  JOIN job_versions AS v USING (job_id, version)

-- name: read_earliest_versions
-- The earliest version that each job still has.
-- Index: job_versions_pkey. No lock.
SELECT v.job_id, min(v.version) FROM job_versions AS v WHERE v.job_id = ANY (%(job_ids)s) GROUP BY v.job_id

-- name: lock_unstarted_runs
-- Some open runs of these jobs that no attempt has started, locked, in run_id order.
-- Index: job_runs_by_job. Lock: each row; waits for a claim under way, which then has started it.
SELECT run_id, attempt FROM job_runs
 WHERE job_id = ANY (%(job_ids)s) AND attempt = 0 AND state = ANY (%(states)s)
 ORDER BY run_id
 LIMIT %(limit)s
   FOR UPDATE

-- name: add_job_cancellation
-- Inserts a cancellation of each job's runs: from its commit on no claim takes a run created so far that never started.
-- No index, no lock. The scheduler ends the runs.
INSERT INTO cancellations (tenant, job_id, created_before, created_by)
SELECT tenant, job_id, %(now)s, 'job_deleted'
  FROM unnest(%(tenants)s::text[], %(job_ids)s::uuid[]) AS gone (tenant, job_id)

-- name: lock_run
-- One open run to cancel, locked; no row if another transaction holds it or if it has ended.
-- Index: job_runs_pkey. Lock: the row; does not wait.
SELECT state, attempt, executor_id FROM job_runs WHERE run_id = %(run_id)s AND tenant = %(tenant)s FOR UPDATE SKIP LOCKED

-- name: read_open_states
-- The states of those runs that are open, locked or not.
-- Index: job_runs_pkey. No lock.
SELECT run_id, state FROM job_runs WHERE run_id = ANY (%(run_ids)s::uuid[])

-- name: wait_for_runs
-- Locks open runs that another transaction holds; a later statement reads the result.
-- Index: job_runs_pkey. Lock: each row in run_id order; waits up to lock_timeout.
SELECT run_id FROM job_runs WHERE run_id = ANY (%(run_ids)s::uuid[]) ORDER BY run_id FOR UPDATE

-- name: read_lock_timeout
-- The session's lock_timeout.
-- No index, no lock.
SELECT current_setting('lock_timeout')

-- name: set_lock_timeout
-- Sets lock_timeout until the end of the transaction.
-- No index, no lock.
SELECT set_config('lock_timeout', %(lock_timeout)s, true)

-- name: find_pending_cancel
-- Finds the stored cancel of a run, which has effect from its commit on: a repeated one adds nothing.
-- Index: pending_cancels_by_run. No lock.
SELECT FROM pending_cancels WHERE run_id = %(run_id)s LIMIT 1

-- name: add_pending_cancel
-- Stores the cancel of a run that another transaction holds; the scheduler applies it when the run is free.
-- Index: pending_cancels_pkey. Lock: the new row.
INSERT INTO pending_cancels (run_id, tenant, reason) VALUES (%(run_id)s, %(tenant)s, %(reason)s)

-- name: read_run
-- A run's job, version, state and attempt.
-- Index: job_runs_pkey, the partitions' index by run. No lock.
SELECT job_id, job_version, state, attempt FROM runs WHERE run_id = %(run_id)s AND tenant = %(tenant)s

-- name: reset_plan_mode
-- Allows sequential and bitmap scans until the end of the savepoint.
-- No index, no lock.
SELECT set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true)

-- name: find_labelled_jobs
-- The jobs of a tenant that have all of these labels.
-- Index: jobs_by_key for a tenant with few of the jobs; else a sequential scan. No lock.
SELECT job_id FROM jobs
 WHERE tenant = %(tenant)s AND labels @> %(labels)s AND version > 0 AND deleted_at IS NULL
 LIMIT %(limit)s

-- name: next_cancellation_id
-- The id of the cancellation that is written next.
-- No index, no lock.
SELECT nextval(pg_get_serial_sequence('cancellations', 'id'))

-- name: add_cancelled_jobs
-- Inserts the jobs of a cancellation by labels.
-- Index: cancelled_jobs_pkey. Lock: new rows.
INSERT INTO cancelled_jobs (cancellation_id, job_id, tenant)
SELECT %(id)s, job_id, %(tenant)s FROM unnest(%(job_ids)s::uuid[]) AS named (job_id)

-- name: block_claims
-- Waits for the claims under way, and blocks new ones until the end of the transaction: those see what it has written.
-- Lock: claims_lock, which each batch of claims shares.
LOCK TABLE claims_lock IN SHARE ROW EXCLUSIVE MODE

-- name: block_old_claims
-- Does so for the claims of processes of 0.1, unless a stranger holds their lock.
-- No index. Lock: an advisory one.
SELECT pg_advisory_xact_lock(k.key)
  FROM (SELECT hashtext('tidewheel.claims')::bigint AS key) AS k
 WHERE {{tidewheel.no_stranger(k)}}

-- name: add_cancellation
-- Inserts a cancellation: from its commit on no claim takes the runs that it names. The scheduler ends them.
-- Index: cancellations_pkey. Lock: the new row.
INSERT INTO cancellations (id, tenant, job_id, labels, queue, lane, handler, cause, created_before, include_started, reason, created_by, named_count)
OVERRIDING SYSTEM VALUE
VALUES (%(id)s, %(tenant)s, %(job_id)s, %(labels)s, %(queue)s, %(lane)s, %(handler)s, %(cause)s, %(created_before)s, %(include_started)s,
        %(reason)s, 'requested', %(named_count)s)

-- name: next_freeze_id
-- The id of the freeze that is written next.
-- No index, no lock.
SELECT nextval(pg_get_serial_sequence('freezes', 'id'))

-- name: find_jobs_to_freeze
-- The jobs of a tenant that have all of these labels, and whose keys begin with this prefix.
-- Index: jobs_by_key for a tenant with few of the jobs; else a sequential scan. No lock.
SELECT job_id FROM jobs
 WHERE tenant = %(tenant)s AND version > 0 AND deleted_at IS NULL
   AND (%(labels)s::jsonb IS NULL OR labels @> %(labels)s)
   AND (%(key_prefix)s::text IS NULL OR starts_with(key, %(key_prefix)s))
 LIMIT %(limit)s

-- name: add_frozen_jobs
-- Inserts the jobs of a freeze; those that are there already stay.
-- Index: frozen_jobs_pkey. Lock: new rows.
INSERT INTO frozen_jobs (freeze_id, job_id, tenant)
SELECT %(id)s, given.job_id, %(tenant)s FROM unnest(%(job_ids)s::uuid[]) AS given (job_id)
    ON CONFLICT DO NOTHING

-- name: keep_frozen_jobs
-- Adds jobs that were just written to the standing freezes that they fit, and removes them from those that they do not fit.
-- Index: jobs_pkey, frozen_jobs_pkey; without a freeze by jobs none is read. Lock: the rows.
-- Why: after the jobs' rows, so that a freeze that this does not see is committed after the transaction has its id.
WITH fits AS MATERIALIZED (
    SELECT f.id, j.job_id, j.tenant,
           (f.labels IS NULL OR j.labels @> f.labels) AND (f.key_prefix IS NULL OR starts_with(j.key, f.key_prefix)) AS named
      FROM freezes AS f
     CROSS JOIN unnest(%(job_ids)s::uuid[]) AS given (job_id)
      JOIN jobs AS j ON j.job_id = given.job_id AND j.tenant = f.tenant
     WHERE f.by_job AND f.thawed_at IS NULL
), removed AS (
    DELETE FROM frozen_jobs AS k USING fits AS t WHERE NOT t.named AND k.freeze_id = t.id AND k.job_id = t.job_id
)
INSERT INTO frozen_jobs (freeze_id, job_id, tenant)
SELECT t.id, t.job_id, t.tenant FROM fits AS t WHERE t.named
    ON CONFLICT DO NOTHING

-- name: add_freeze
-- Inserts a freeze, unless there is a standing one of the same scope: from its commit on no claim takes the runs that it names.
-- Index: freezes_pkey. Lock: the new row.
INSERT INTO freezes (id, tenant, queue, labels, key_prefix, reason, created_by, by_operator)
OVERRIDING SYSTEM VALUE
SELECT %(id)s, %(tenant)s, %(queue)s, %(labels)s, %(key_prefix)s, %(reason)s, %(by)s, %(by_operator)s
 WHERE NOT EXISTS (SELECT FROM freezes AS f WHERE {{tidewheel.transitions.same_scope(f)}})

-- name: take_over_pause
-- Makes the pause that a key of a tenant has begun one of an operator, with the operator's name and reason.
-- Index: freezes_pkey. Lock: the row; waits for the firings that hold timers by it, and for a thaw.
UPDATE freezes
   SET by_operator = true, reason = coalesce(%(reason)s::text, reason), created_by = coalesce(%(by)s::text, created_by)
 WHERE id = %(id)s AND thawed_at IS NULL AND NOT by_operator

-- name: lock_freeze
-- Locks a freeze to thaw it: waits for the firings that hold timers by it.
-- Index: freezes_pkey. Lock: the row.
SELECT id FROM freezes WHERE id = %(id)s FOR NO KEY UPDATE

-- name: thaw
-- Ends a freeze: it names nothing from now on. The scheduler releases its timers and deletes the row.
-- Index: freezes_pkey. Lock: the row, already locked.
UPDATE freezes SET thawed_at = tidewheel_now() WHERE id = %(id)s AND thawed_at IS NULL

-- name: lock_attempts
-- Open runs that a task token names, locked.
-- Index: job_runs_pkey. Lock: each row in run_id order; skips rows that another transaction holds.
SELECT run_id, job_id, job_version, state, attempt, failed_attempts, executor_id
  FROM job_runs
 WHERE run_id = ANY (%(run_ids)s::uuid[])
 ORDER BY run_id
   FOR UPDATE SKIP LOCKED

-- name: read_final_states
-- The final states of runs that are not open. A later statement than the one that read the open rows.
-- Index: the partitions' index by run. No lock.
SELECT run_id, state FROM finished_runs WHERE run_id = ANY (%(run_ids)s::uuid[])

-- name: extend_deadlines
-- Extends the heartbeat deadlines of waiting runs after a heartbeat.
-- Index: job_runs_pkey; job_runs_deadline changes. Lock: rows that are locked already, found by ctid.
UPDATE job_runs AS o
   SET deadline_at = least(o.schedule_to_close_at, o.external_deadline_at, (SELECT tidewheel_now()) + given.heartbeat)
  FROM unnest(%(run_ids)s::uuid[], %(heartbeats)s::interval[]) AS given (run_id, heartbeat)
 CROSS JOIN LATERAL (SELECT p.ctid AS at FROM job_runs AS p WHERE p.run_id = given.run_id OFFSET 0) AS found
 WHERE o.ctid = found.at

-- name: acquire_partition
-- Claims a partition of a topic; the raised epoch fences off the previous owner. Returns no row of a topic that was made again.
-- Index: intake_offsets_pkey. Lock: the row.
-- Why: an owner that joins again was not killed, and where nothing is to be read no offset can move.
INSERT INTO intake_offsets (topic, partition, topic_id, next_offset, epoch, owner, unmoved)
VALUES (%(topic)s, %(partition)s, %(topic_id)s, %(first_offset)s, 1, %(owner)s, 1)
ON CONFLICT (topic, partition) DO UPDATE
   SET epoch = intake_offsets.epoch + 1,
       owner = excluded.owner,
       unmoved = CASE
           WHEN intake_offsets.next_offset >= %(end)s THEN 0
           WHEN intake_offsets.owner = excluded.owner THEN intake_offsets.unmoved
           ELSE intake_offsets.unmoved + 1
       END
 WHERE intake_offsets.topic_id = excluded.topic_id
RETURNING next_offset, epoch, unmoved

-- name: hold_deletions
-- Returns those of the given tenants that are deleted, each with true if that has ended.
-- Index: tenant_deletions_pkey. Lock: the rows for share, in order; waits for a step of a deletion.
SELECT tenant, finished_at IS NOT NULL FROM tenant_deletions WHERE tenant = ANY (%(tenants)s::text[]) ORDER BY tenant FOR SHARE

-- name: store_offsets
-- Stores the offsets of a batch, if the owner's epoch and last offset are unchanged: the fence of the batch.
-- Index: intake_offsets_pkey. Lock: the rows.
UPDATE intake_offsets AS o
   SET next_offset = moved.next_offset, unmoved = moved.unmoved
  FROM unnest(
        %(topics)s::text[], %(partitions)s::integer[], %(epochs)s::bigint[], %(bases)s::bigint[],
        %(next_offsets)s::bigint[], %(unmoved)s::integer[]
       ) AS moved (topic, partition, epoch, base, next_offset, unmoved)
 WHERE o.topic = moved.topic
   AND o.partition = moved.partition
   AND o.epoch = moved.epoch
   AND o.next_offset = moved.base
RETURNING o.partition

-- name: read_backfilled_jobs
-- The columns that backfills need of the jobs just locked, with the unfinished backfills and the newest one. A deletion
-- of the job ends its backfills: those are not counted, though a scheduler may still have to cancel them.
-- Index: jobs_pkey, job_versions_pkey, backfills_by_job. No lock.
SELECT j.job_id, j.key, j.shard, j.version, j.deleted_at, v.ordering_key IS NOT NULL AS is_ordered, known.unfinished,
       known.last_created_at
  FROM jobs AS j
  JOIN job_versions AS v ON v.job_id = j.job_id AND v.version = j.version
 CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE b.state IN ('running', 'paused') AND NOT EXISTS (
                SELECT FROM job_versions AS d
                 WHERE d.job_id = b.job_id AND d.version >= b.job_version AND d.retired_at IS NOT NULL)) AS unfinished,
           max(b.created_at) AS last_created_at
      FROM backfills AS b
     WHERE b.job_id = j.job_id
  ) AS known
 WHERE j.job_id = ANY (%(job_ids)s)

-- name: find_backfill
-- A backfill that an earlier delivery of the same request created.
-- Index: backfills_pkey. No lock: backfills are created under their jobs' locks.
SELECT expected_count FROM backfills WHERE backfill_id = %(backfill_id)s

-- name: add_backfill
-- Inserts a backfill.
-- Index: backfills_pkey. Lock: the new row, under its job's lock.
INSERT INTO backfills (backfill_id, tenant, job_id, shard, state, first_at, last_at, what, versions, job_version, overlap,
                       newest_first, max_concurrent, occurrences, expected_count, cursor_at, request_id, requested_from,
                       traceparent, reason, created_at)
VALUES (%(backfill_id)s, %(tenant)s, %(job_id)s, %(shard)s, %(state)s, %(first_at)s, %(last_at)s, %(what)s, %(versions)s,
        %(job_version)s, %(overlap)s, %(newest_first)s, %(max_concurrent)s, %(occurrences)s, %(expected_count)s, %(cursor_at)s,
        %(request_id)s, %(requested_from)s, %(traceparent)s, %(reason)s, %(created_at)s)

-- name: lock_backfill
-- A backfill to pause, resume or cancel, locked.
-- Index: backfills_pkey. Lock: the row; waits for a batch of its runs that is being created.
SELECT backfill_id, tenant, job_id, shard, job_version, state, first_at, last_at, what, versions, overlap, newest_first,
       max_concurrent, occurrences, expected_count, cursor_at, request_id, requested_from, traceparent, reason, created_at,
       created_count, existing_count
  FROM backfills
 WHERE backfill_id = %(backfill_id)s AND tenant = %(tenant)s
   FOR UPDATE

-- name: set_backfill_state
-- Sets the state of a backfill.
-- Index: backfills_pkey. Lock: a row that is locked already.
UPDATE backfills
   SET state = %(state)s, reason = %(reason)s, finished_at = %(finished_at)s
 WHERE backfill_id = %(backfill_id)s

-- name: lock_unstarted_backfill_runs
-- The open runs of a backfill that no attempt has started, locked: 1,000 at most are open at once.
-- Index: job_runs_pkey. Lock: each row in run_id order; waits for a claim under way, which then has started it.
SELECT run_id FROM job_runs
 WHERE run_id BETWEEN %(first_run_id)s AND %(last_run_id)s AND job_id = %(job_id)s AND cause = 'backfill' AND attempt = 0
   AND state = ANY (%(states)s)
 ORDER BY run_id
   FOR UPDATE

-- name: find_nodes
-- Those of these jobs that belong to a graph, and their roots.
-- Index: jobs_pkey. No lock: the caller locks the graphs of the tenants next.
SELECT job_id, root_job_id FROM jobs WHERE job_id = ANY (%(job_ids)s) AND root_job_id IS NOT NULL

-- name: find_versions_without_parents
-- Those of these versions whose jobs had no parents then.
-- Index: job_versions_pkey. No lock: versions never change.
SELECT v.job_id, v.version
  FROM unnest(%(job_ids)s::uuid[], %(versions)s::integer[]) AS requested (job_id, version)
  JOIN job_versions AS v USING (job_id, version)
 WHERE NOT (v.spec -> 'schedule') ? 'after'

-- name: lock_graphs
-- Locks the graphs of a tenant against any other change of their edges.
-- Index: tenant_locks_pkey. Lock: a row of the tenant, before any timer. ON CONFLICT locks it, and changes nothing.
INSERT INTO tenant_locks AS l (tenant, name) VALUES (%(tenant)s, 'graphs')
    ON CONFLICT (tenant, name) DO UPDATE SET name = excluded.name WHERE false

-- name: lock_old_graphs
-- Does so for processes of 0.1, unless a stranger holds their lock.
-- No index. Lock: an advisory one of the tenant.
SELECT pg_advisory_xact_lock(hashtext('tidewheel.graphs'), hashtext(%(tenant)s))
  FROM (SELECT (hashtext('tidewheel.graphs')::bigint << 32) | (hashtext(%(tenant)s)::bigint & 4294967295) AS key) AS k
 WHERE {{tidewheel.no_stranger(k)}}

-- name: read_nodes
-- The columns of these jobs that a check of a graph needs.
-- Index: jobs_pkey. No lock: the caller holds the graphs, and the keys of the jobs.
SELECT job_id, key, root_job_id, version > 0 AND deleted_at IS NULL AS exists
  FROM jobs
 WHERE job_id = ANY (%(job_ids)s)

-- name: read_parents
-- The parents that a job has now.
-- Index: job_edges_by_child. No lock: the caller holds the graphs.
SELECT parent_job_id, condition FROM job_edges WHERE child_job_id = %(job_id)s AND until_at IS NULL

-- name: read_edges_below
-- The edges now in force beneath a job.
-- Index: job_edges_pkey. No lock: the caller holds the graphs.
WITH RECURSIVE below (job_id) AS (
    SELECT %(job_id)s::uuid
     UNION
    SELECT e.child_job_id FROM below AS b JOIN job_edges AS e ON e.parent_job_id = b.job_id AND e.until_at IS NULL
)
SELECT e.parent_job_id, e.child_job_id FROM below AS b JOIN job_edges AS e ON e.parent_job_id = b.job_id AND e.until_at IS NULL

-- name: read_edges_above
-- The edges now in force to these jobs.
-- Index: job_edges_by_child. No lock: the caller holds the graphs.
SELECT parent_job_id, child_job_id FROM job_edges WHERE child_job_id = ANY (%(job_ids)s) AND until_at IS NULL

-- name: count_nodes
-- The number of jobs of a graph, up to `limit`.
-- Index: jobs_by_root. No lock.
SELECT count(*) FROM (SELECT FROM jobs WHERE root_job_id = %(root)s LIMIT %(limit)s) AS nodes

-- name: count_children
-- The number of children of each of these jobs, of those that have `limit`.
-- Index: job_edges_pkey. No lock.
SELECT p.job_id
  FROM unnest(%(job_ids)s::uuid[]) AS p (job_id)
 WHERE (SELECT count(*) FROM (SELECT FROM job_edges AS e
                               WHERE e.parent_job_id = p.job_id AND e.until_at IS NULL LIMIT %(limit)s) AS c) >= %(limit)s

-- name: close_edges
-- Ends the periods of all edges to these jobs.
-- Index: job_edges_by_child. Lock: the rows, under the lock of the graphs.
UPDATE job_edges SET until_at = %(now)s WHERE child_job_id = ANY (%(job_ids)s) AND until_at IS NULL RETURNING parent_job_id

-- name: open_edges
-- Inserts the edges from a job's parents.
-- Index: job_edges_pkey. Lock: new rows.
INSERT INTO job_edges (parent_job_id, child_job_id, from_at, tenant, condition, parents)
SELECT p.job_id, %(job_id)s, %(now)s, %(tenant)s, p.condition, cardinality(%(parents)s::uuid[])
  FROM unnest(%(parents)s::uuid[], %(conditions)s::text[]) AS p (job_id, condition)

-- name: set_roots
-- Sets the root of these jobs.
-- Index: jobs_pkey; jobs_by_root changes. Lock: each job, in job_id order.
WITH locked AS MATERIALIZED (
    SELECT job_id FROM jobs WHERE job_id = ANY (%(job_ids)s) ORDER BY job_id FOR NO KEY UPDATE
)
UPDATE jobs AS j SET root_job_id = %(root)s FROM locked AS l WHERE j.job_id = l.job_id AND j.root_job_id IS DISTINCT FROM %(root)s

-- name: set_own_roots
-- Makes those of these jobs roots that have children and no parents, and takes the root from those that have neither.
-- Index: jobs_pkey, job_edges_pkey, job_edges_by_child; jobs_by_root changes. Lock: each job, in job_id order.
WITH locked AS MATERIALIZED (
    SELECT job_id, root_job_id FROM jobs WHERE job_id = ANY (%(job_ids)s) ORDER BY job_id FOR NO KEY UPDATE
)
UPDATE jobs AS j
   SET root_job_id = found.root
  FROM locked AS l
 CROSS JOIN LATERAL (
    SELECT CASE WHEN EXISTS (SELECT FROM job_edges AS e WHERE e.child_job_id = l.job_id AND e.until_at IS NULL)
                THEN l.root_job_id
                WHEN EXISTS (SELECT FROM job_edges AS e WHERE e.parent_job_id = l.job_id AND e.until_at IS NULL)
                THEN l.job_id
           END AS root
    OFFSET 0
 ) AS found
 WHERE j.job_id = l.job_id
   AND l.root_job_id IS DISTINCT FROM found.root

-- name: find_child_keys
-- The first children of these jobs that are not among them.
-- Index: job_edges_pkey, jobs_pkey. No lock: the caller holds the graphs.
SELECT e.parent_job_id, array_agg(c.key ORDER BY c.key)
  FROM unnest(%(job_ids)s::uuid[]) AS p (job_id)
 CROSS JOIN LATERAL (
    SELECT d.parent_job_id, d.child_job_id
      FROM job_edges AS d
     WHERE d.parent_job_id = p.job_id AND d.until_at IS NULL AND d.child_job_id <> ALL (%(job_ids)s)
     LIMIT 10
 ) AS e
  JOIN jobs AS c ON c.job_id = e.child_job_id
 GROUP BY e.parent_job_id

-- name: add_flow
-- Makes the open runs of these jobs, as far as they are roots and their instant is ahead, occurrences of their workflow.
-- Index: job_runs_by_job, job_versions_pkey. Lock: each run, waiting for a claim or an end under way; the jobs' keys exclude new
-- runs.
UPDATE job_runs AS o
   SET gates = o.gates | %(flow)s
               | CASE WHEN o.overlap <> %(free)s
                       AND (SELECT v.holds_place FROM job_versions AS v WHERE v.job_id = o.job_id AND v.version = o.job_version)
                      THEN %(whole)s::smallint ELSE 0::smallint END,
       workflow_run_id = o.run_id, generation = 0
  FROM jobs AS j
 WHERE j.job_id = ANY (%(job_ids)s)
   AND j.root_job_id = j.job_id
   AND o.job_id = j.job_id
   AND o.scheduled_at > %(now)s
   AND o.gates & %(flow)s = 0
   AND o.cause IN ('timer', 'trigger', 'backfill')

-- name: open_windows
-- Locks the windows of triggers with dedupe; inserts those that there are not yet. Returns all.
-- Index: dedupes_pkey. Lock: each row in dedupe_id order, before any run; waits for another trigger of the key.
INSERT INTO dedupes AS d (dedupe_id, tenant, job_id, run_id, first_at, until_at, runs_at)
SELECT new.*
  FROM unnest(%(ids)s::bigint[], %(tenants)s::text[], %(job_ids)s::uuid[], %(run_ids)s::uuid[], %(first_at)s::timestamptz[],
              %(until_at)s::timestamptz[], %(runs_at)s::timestamptz[])
       AS new (dedupe_id, tenant, job_id, run_id, first_at, until_at, runs_at)
 ORDER BY new.dedupe_id
    ON CONFLICT (dedupe_id) DO UPDATE SET run_id = d.run_id
RETURNING d.dedupe_id, d.run_id, d.first_at, d.until_at, d.runs_at

-- name: write_windows
-- Updates windows: the run, and the times.
-- Index: dedupes_pkey; dedupes_by_end changes. Lock: rows that open_windows has locked.
UPDATE dedupes AS d
   SET run_id = given.run_id, first_at = given.first_at, until_at = given.until_at, runs_at = given.runs_at
  FROM unnest(%(ids)s::bigint[], %(run_ids)s::uuid[], %(first_at)s::timestamptz[], %(until_at)s::timestamptz[],
              %(runs_at)s::timestamptz[])
       AS given (dedupe_id, run_id, first_at, until_at, runs_at)
 WHERE d.dedupe_id = given.dedupe_id
