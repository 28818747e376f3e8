-- name: read_now
-- The clock that decides what is due; read after the locks were taken.
-- No index, no lock.
SELECT tidewheel_now()

-- name: find_tenants
-- Which of these tenants exist.
-- Index: tenants_pkey. No lock.
SELECT tenant FROM tenants WHERE tenant = ANY (%(tenants)s)

-- name: find_replies
-- First answers of requests that were seen before.
-- Index: requests_pkey. No lock.
SELECT r.tenant, r.request_id, r.body_hash, r.reply
  FROM unnest(%(tenants)s::text[], %(request_ids)s::text[]) AS asked (tenant, request_id)
  JOIN requests AS r USING (tenant, request_id)

-- name: purge_replies
-- Answers that are older than they are kept, some at a time.
-- Index: requests_by_age. Lock: the rows.
DELETE FROM requests
 WHERE (tenant, request_id) IN (
    SELECT tenant, request_id FROM requests WHERE created_at < tidewheel_now() - %(kept)s::interval LIMIT 5000
 )

-- name: find_jobs
-- Which of these jobs there are, deleted ones among them.
-- Index: jobs_pkey. No lock: who makes one meanwhile is met on its key.
SELECT job_id FROM jobs WHERE job_id = ANY (%(job_ids)s)

-- name: lock_timers
-- The timers of these jobs: the locks on which edits and firing meet. Before the jobs' own rows, as firing does. Alone,
-- without their versions: what the lock waited for may have brought a version that this statement cannot see.
-- Index: timers_pkey. Lock: each timer, in job_id order, waiting for a firing or an edit under way.
SELECT job_id FROM timers WHERE job_id = ANY (%(job_ids)s) ORDER BY job_id FOR UPDATE

-- name: read_locked_timers
-- The timers just locked, with what firing needs of their versions.
-- Index: timers_pkey, job_versions_pkey. No lock.
SELECT t.job_id, t.tenant, t.shard, t.scheduled_at, t.version, v.schedule, v.handler, v.queue, v.lane, v.overlap,
       v.definition, v.has_deadlines, v.policy, nullif(t.due_at, 'infinity') AS due_at, t.catch_up_end, t.hold_reason, t.overridden
  FROM timers AS t
  JOIN job_versions AS v ON v.job_id = t.job_id AND v.version = t.version
 WHERE t.job_id = ANY (%(job_ids)s)

-- name: lock_jobs
-- The jobs' rows, alone for the same reason as their timers.
-- Index: jobs_pkey. Lock: each job, in job_id order, after its timer; triggers, which share its key, go on.
SELECT job_id FROM jobs WHERE job_id = ANY (%(job_ids)s) ORDER BY job_id FOR NO KEY UPDATE

-- name: lock_jobs_to_delete
-- The same against triggers too: no run is made for a job while its open ones are being cancelled.
-- Index: jobs_pkey. Lock: each job's row and key, in job_id order, after its timer; waiting for as long as the session's
-- patience lasts, for a user's own transaction that triggers a job has its key.
SELECT job_id FROM jobs WHERE job_id = ANY (%(job_ids)s) ORDER BY job_id FOR UPDATE

-- name: read_locked_jobs
-- The jobs just locked, with the schedule in force.
-- Index: jobs_pkey, job_versions_pkey. No lock.
SELECT j.job_id, j.tenant, j.key, j.shard, j.version, j.spec_hash, j.interval_anchor, j.interval_us, j.paused, j.paused_until,
       j.consecutive_failures, (v.spec ->> 'pause_on_failure')::integer AS pause_on_failure, j.created_at, j.finished_at,
       j.deleted_at, v.schedule, v.policy,
       EXISTS (SELECT FROM timers AS t WHERE t.job_id = j.job_id AND t.hold_reason = 'quarantine') AS quarantined
  FROM jobs AS j
  LEFT JOIN job_versions AS v ON v.job_id = j.job_id AND v.version = j.version
 WHERE j.job_id = ANY (%(job_ids)s)

-- name: enter_calendar
-- A place for a calendar that may be new, so that two who put it meet on the row and not on nothing.
-- Index: calendars_pkey. Lock: the new row; waits for an uncommitted twin.
INSERT INTO calendars (tenant, name, version, days, weekdays, updated_at)
VALUES (%(tenant)s, %(name)s, 0, '{}', '{}', tidewheel_now())
    ON CONFLICT DO NOTHING

-- name: lock_calendar
-- A calendar, against its jobs' submits and other changes of it; before the timers of its jobs.
-- Index: calendars_pkey. Lock: the row, waiting.
SELECT version, days, weekdays, source FROM calendars WHERE tenant = %(tenant)s AND name = %(name)s FOR UPDATE

-- name: lock_calendars_for_share
-- Holds calendars against change until the versions that name them are written; before any timer. What they are joined with
-- are the statement's own parameters, which no wait makes older.
-- Index: calendars_pkey. Lock: the rows, shared, by tenant and name.
SELECT c.name
  FROM unnest(%(tenants)s::text[], %(names)s::text[]) AS wanted (tenant, name)
  JOIN calendars AS c USING (tenant, name)
 ORDER BY c.tenant, c.name
   FOR SHARE OF c

-- name: calendar_names
-- The calendars of a tenant, to say which one may have been meant.
-- Index: calendars_pkey. No lock.
SELECT name FROM calendars WHERE tenant = %(tenant)s ORDER BY name LIMIT 1000

-- name: update_calendar
-- A calendar's days.
-- Index: calendars_pkey. Lock: a row already locked.
UPDATE calendars
   SET version = version + 1, days = %(days)s::date[], weekdays = %(weekdays)s::smallint[], source = %(source)s,
       updated_at = tidewheel_now(), since = coalesce(%(since)s, since)
 WHERE tenant = %(tenant)s AND name = %(name)s

-- name: delete_calendar
-- A calendar that no job names.
-- Index: calendars_pkey. Lock: a row already locked.
DELETE FROM calendars WHERE tenant = %(tenant)s AND name = %(name)s

-- name: find_calendar_jobs
-- The jobs whose current version names a calendar; no further one can come while it is locked.
-- Index: job_calendars_pkey. No lock.
SELECT job_id FROM job_calendars WHERE tenant = %(tenant)s AND name = %(name)s

-- name: name_calendar_jobs
-- How many jobs name a calendar, and the first of their keys; no row when none does.
-- Index: job_calendars_pkey, jobs_pkey. No lock.
SELECT min(j.key), count(*)
  FROM job_calendars AS c
  JOIN jobs AS j ON j.job_id = c.job_id
 WHERE c.tenant = %(tenant)s AND c.name = %(name)s
HAVING count(*) > 0

-- name: drop_job_calendars
-- What these jobs named so far.
-- Index: job_calendars_by_job. Lock: the rows, under their jobs' locks.
DELETE FROM job_calendars WHERE job_id = ANY (%(job_ids)s)

-- name: add_job_calendars
-- What these jobs name from now on.
-- Index: job_calendars_pkey. Lock: new rows; shares the keys of calendars that are held already.
INSERT INTO job_calendars (tenant, name, job_id)
SELECT tenant, name, job_id
  FROM unnest(%(tenants)s::text[], %(names)s::text[], %(job_ids)s::uuid[]) AS named (tenant, name, job_id)

-- name: read_timerless
-- Jobs whose timer has gone, as it would be read: a change of their days may give them occurrences again.
-- Index: jobs_pkey, job_versions_pkey. No lock: the jobs are locked.
SELECT j.job_id, j.tenant, j.shard, %(now)s::timestamptz AS scheduled_at, j.version, v.schedule, v.handler, v.queue, v.lane,
       v.overlap, v.definition, v.has_deadlines, v.policy, NULL::timestamptz AS due_at, true AS overridden
  FROM jobs AS j
  JOIN job_versions AS v ON v.job_id = j.job_id AND v.version = j.version
 WHERE j.job_id = ANY (%(job_ids)s) AND j.deleted_at IS NULL
   AND NOT EXISTS (SELECT FROM timers AS t WHERE t.job_id = j.job_id)

-- name: revive_jobs
-- Jobs that have occurrences again.
-- Index: jobs_pkey. Lock: rows already locked.
UPDATE jobs SET finished_at = NULL WHERE job_id = ANY (%(job_ids)s)

-- name: lock_jobs_for_share
-- Holds jobs against deletion until their triggered runs are written; alone for the same reason as lock_timers.
-- Index: jobs_pkey. Lock: each job's key, shared, so that triggers and firing do not wait for each other.
SELECT job_id FROM jobs WHERE job_id = ANY (%(job_ids)s) ORDER BY job_id FOR KEY SHARE

-- name: read_shared_jobs
-- What triggered runs need of the jobs just held.
-- Index: jobs_pkey, job_versions_pkey. No lock.
SELECT j.job_id, j.shard, j.version, j.deleted_at, v.handler, v.queue, v.lane, v.overlap, v.definition
  FROM jobs AS j
  JOIN job_versions AS v ON v.job_id = j.job_id AND v.version = j.version
 WHERE j.job_id = ANY (%(job_ids)s)

-- name: update_jobs
-- The jobs' rows after a submit.
-- Index: jobs_pkey. Lock: rows already locked.
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

-- name: put_timers
-- Timers of jobs that have something to fire. A moved occurrence that has not fired may be due before the next instant.
-- Index: timers_pkey, overrides_pkey; timers_due changes. Lock: rows already locked, or new.
INSERT INTO timers (job_id, tenant, shard, due_at, scheduled_at, version, hold_reason, overridden)
SELECT new.job_id, new.tenant, new.shard,
       CASE WHEN new.hold_reason IS NULL THEN least(new.due_at, said.moved_to) ELSE new.due_at END,
       new.scheduled_at, new.version, new.hold_reason, said.overrides > 0
  FROM unnest(
        %(job_ids)s::uuid[], %(tenants)s::text[], %(shards)s::smallint[], %(due_at)s::timestamptz[],
        %(scheduled_at)s::timestamptz[], %(versions)s::integer[], %(held)s::text[]
       ) AS new (job_id, tenant, shard, due_at, scheduled_at, version, hold_reason)
 CROSS JOIN LATERAL (
    SELECT count(*) AS overrides, min(v.moved_to) FILTER (WHERE v.done_at IS NULL) AS moved_to
      FROM overrides AS v
     WHERE v.job_id = new.job_id
       AND (v.scheduled_at >= new.scheduled_at OR (v.kind = 'move' AND v.done_at IS NULL))
  ) AS said
    ON CONFLICT (job_id) DO UPDATE
   SET due_at = excluded.due_at, scheduled_at = excluded.scheduled_at, version = excluded.version,
       hold_reason = excluded.hold_reason, overridden = excluded.overridden, catch_up_end = NULL

-- name: read_timers
-- When these jobs fire next, for replies: what is written ahead, else their timers, but for those that are held.
-- Index: timers_pkey, job_versions_pkey, open_runs_by_job. No lock.
SELECT t.job_id, t.due_at, t.overridden OR v.policy LIKE '%%calendars":["%%',
       (SELECT min(o.scheduled_at) FROM open_runs AS o
         WHERE o.job_id = t.job_id AND o.cause = 'timer' AND o.attempt = 0 AND o.scheduled_at > (SELECT tidewheel_now()))
  FROM timers AS t
  JOIN job_versions AS v ON v.job_id = t.job_id AND v.version = t.version
 WHERE t.job_id = ANY (%(job_ids)s) AND t.hold_reason IS NULL

-- name: read_timer_runs
-- Where these runs stand, of those that there are.
-- Index: the partition's primary key, open_runs_pkey. No lock: timers make them under locks which the caller has.
SELECT r.run_id, coalesce(o.state, r.state)
  FROM job_runs AS r
  LEFT JOIN open_runs AS o ON o.run_id = r.run_id
 WHERE r.run_id = ANY (%(run_ids)s)

-- name: pause_jobs
-- The jobs' rows after a pause. finished_at is lifted where a timer came back.
-- Index: jobs_pkey. Lock: rows already locked.
UPDATE jobs AS j
   SET paused = true, paused_at = coalesce(j.paused_at, %(now)s), paused_by = new.maker, pause_reason = new.reason,
       paused_until = new.until, updated_at = %(now)s,
       finished_at = CASE WHEN new.revived THEN NULL ELSE j.finished_at END
  FROM unnest(
        %(job_ids)s::uuid[], %(reasons)s::text[], %(untils)s::timestamptz[], %(makers)s::text[], %(revived)s::boolean[]
       ) AS new (job_id, reason, until, maker, revived)
 WHERE j.job_id = new.job_id

-- name: resume_jobs
-- The jobs' rows after a resume.
-- Index: jobs_pkey. Lock: rows already locked.
UPDATE jobs
   SET paused = false, paused_at = NULL, paused_by = NULL, pause_reason = NULL, paused_until = NULL, consecutive_failures = 0,
       updated_at = %(now)s
 WHERE job_id = ANY (%(job_ids)s)

-- name: delete_jobs
-- Tombstones: the versions stay, so that they never repeat for a job_id.
-- Index: jobs_pkey. Lock: rows already locked.
UPDATE jobs
   SET deleted_at = %(now)s, updated_at = %(now)s, paused = false, paused_at = NULL, paused_by = NULL, pause_reason = NULL,
       paused_until = NULL
 WHERE job_id = ANY (%(job_ids)s)

-- name: retire_versions
-- The version a job was deleted under stops being in force.
-- Index: job_versions_pkey. Lock: the rows, under their jobs' locks.
UPDATE job_versions AS v
   SET retired_at = %(now)s
  FROM unnest(%(job_ids)s::uuid[], %(versions)s::integer[]) AS gone (job_id, version)
 WHERE v.job_id = gone.job_id AND v.version = gone.version

-- name: read_coming_overrides
-- What people said about occurrences that are still to come, also where their instant has passed and they were moved.
-- Index: overrides_pkey. No lock: they are changed under their jobs' locks alone.
SELECT v.job_id, v.scheduled_at, v.moved_to, v.done_at IS NOT NULL
  FROM overrides AS v
 WHERE v.job_id = ANY (%(job_ids)s)
   AND (v.scheduled_at > %(now)s OR v.moved_to > %(now)s OR (v.kind = 'move' AND v.done_at IS NULL))
 ORDER BY v.job_id, v.scheduled_at

-- name: put_overrides
-- What people say about single occurrences from now on, in place of what they said before.
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
-- Occurrences about which nothing is said any more.
-- Index: overrides_pkey. Lock: the rows, under their jobs' locks.
DELETE FROM overrides AS v
 USING unnest(%(job_ids)s::uuid[], %(instants)s::timestamptz[]) AS gone (job_id, scheduled_at)
 WHERE v.job_id = gone.job_id AND v.scheduled_at = gone.scheduled_at

-- name: drop_moves
-- Moved occurrences whose own instant has passed and which are not to fire any more: they were left out by hand.
-- Index: overrides_pkey. Lock: the rows, under their jobs' locks.
WITH given_up AS (
    UPDATE overrides AS v
       SET done_at = %(now)s
      FROM unnest(%(job_ids)s::uuid[], %(instants)s::timestamptz[], %(versions)s::integer[])
           AS gone (job_id, scheduled_at, job_version)
     WHERE v.job_id = gone.job_id AND v.scheduled_at = gone.scheduled_at
    RETURNING v.job_id, v.tenant, gone.job_version, v.scheduled_at
)
INSERT INTO skips (job_id, tenant, job_version, reason, first_at, last_at, occurrences, created_at)
SELECT job_id, tenant, job_version, %(reason)s, scheduled_at, scheduled_at, 1, %(now)s
  FROM given_up

-- name: read_wanted_versions
-- Versions to go back to; they never change.
-- Index: job_versions_pkey. No lock.
SELECT v.job_id, v.spec, v.definition
  FROM unnest(%(job_ids)s::uuid[], %(versions)s::integer[]) AS wanted (job_id, version)
  JOIN job_versions AS v USING (job_id, version)

-- name: read_earliest_versions
-- From which version on jobs have theirs.
-- Index: job_versions_pkey. No lock.
SELECT v.job_id, min(v.version) FROM job_versions AS v WHERE v.job_id = ANY (%(job_ids)s) GROUP BY v.job_id

-- name: lock_unbegun
-- Some open runs of these jobs that no attempt has begun, in run_id order.
-- Index: open_runs_by_job. Lock: each row, waiting for a claim under way (which then has begun it).
SELECT run_id, attempt FROM open_runs
 WHERE job_id = ANY (%(job_ids)s) AND attempt = 0 AND state = ANY (%(states)s)
 ORDER BY run_id
 LIMIT %(most)s
   FOR UPDATE

-- name: add_job_cancellation
-- From its commit on no claim takes a run of these jobs that was made so far and never began; the scheduler ends them.
-- No index, no lock.
INSERT INTO cancellations (tenant, job_id, created_before, created_by)
SELECT tenant, job_id, %(now)s, 'job_deleted'
  FROM unnest(%(tenants)s::text[], %(job_ids)s::uuid[]) AS gone (tenant, job_id)

-- name: lock_run
-- One open run, to cancel it.
-- Index: open_runs_pkey. Lock: the row; none is returned where somebody has it, or the run is over.
SELECT state, attempt, executor_id FROM open_runs WHERE run_id = %(run_id)s AND tenant = %(tenant)s FOR UPDATE SKIP LOCKED

-- name: read_open
-- Which of these runs are open, whoever has them in hand.
-- Index: open_runs_pkey. No lock.
SELECT run_id, state FROM open_runs WHERE run_id = ANY (%(run_ids)s::uuid[])

-- name: wait_for_runs
-- Open runs that somebody has in hand. What was waited for is read by a later statement.
-- Index: open_runs_pkey. Lock: each row in run_id order, waiting for as long as the session's patience lasts.
SELECT run_id FROM open_runs WHERE run_id = ANY (%(run_ids)s::uuid[]) ORDER BY run_id FOR UPDATE

-- name: read_patience
-- How long this session waits for a lock.
-- No index, no lock.
SELECT current_setting('lock_timeout')

-- name: set_patience
-- How long it waits until the end of this transaction.
-- No index, no lock.
SELECT set_config('lock_timeout', %(patience)s, true)

-- name: want_cancel
-- A run to be cancelled that somebody has in hand: the scheduler does it once it is free.
-- Index: pending_cancels_pkey. Lock: the new row.
INSERT INTO pending_cancels (run_id, tenant, reason) VALUES (%(run_id)s, %(tenant)s, %(reason)s)

-- name: read_run
-- A run's job and final state.
-- Index: the partition's primary key. No lock.
SELECT job_id, job_version, state FROM job_runs WHERE run_id = %(run_id)s AND tenant = %(tenant)s

-- name: read_retried
-- Runs of which new ones are to be made, with what they carried. What is over never changes.
-- Index: primary keys of the partitions and of open_runs. No lock.
SELECT r.run_id, r.tenant, r.job_id, r.job_version, coalesce(o.state, r.state) AS state, r.scheduled_at, r.root_run_id,
       i.payload, i.payload_content_type, i.labels, i.traceparent
  FROM job_runs AS r
  LEFT JOIN open_runs AS o ON o.run_id = r.run_id
  LEFT JOIN run_inputs AS i ON i.run_id = r.run_id AND i.run_id = ANY (%(run_ids)s)
 WHERE r.run_id = ANY (%(run_ids)s)

-- name: reset_plan_mode
-- Until the end of the savepoint, tables may be read whole or by bitmap.
-- No index, no lock.
SELECT set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true)

-- name: find_labelled_jobs
-- The jobs of a tenant that have all of these labels.
-- Index: jobs_by_key, for a tenant with few of the jobs; else the table is read whole. No lock.
SELECT job_id FROM jobs
 WHERE tenant = %(tenant)s AND labels @> %(labels)s AND version > 0 AND deleted_at IS NULL
 LIMIT %(most)s

-- name: number_cancellation
-- The id of a cancellation that is about to be written.
-- No index, no lock.
SELECT nextval(pg_get_serial_sequence('cancellations', 'id'))

-- name: add_cancelled_jobs
-- The jobs that a cancellation by labels is about.
-- Index: cancelled_jobs_pkey. Lock: new rows.
INSERT INTO cancelled_jobs (cancellation_id, job_id, tenant)
SELECT %(id)s, job_id, %(tenant)s FROM unnest(%(job_ids)s::uuid[]) AS named (job_id)

-- name: hold_claims
-- Waits for the claims under way and lets no other begin until the end of this transaction: those see what it has written.
-- No index. Lock: the advisory one `claims`, which every batch of claims shares.
SELECT pg_advisory_xact_lock(hashtext('tidewheel.claims'))

-- name: add_cancellation
-- From its commit on no claim takes what it names; the scheduler ends it.
-- Index: cancellations_pkey. Lock: the new row.
INSERT INTO cancellations (id, tenant, job_id, labels, queue, lane, handler, cause, created_before, include_started, reason, created_by)
OVERRIDING SYSTEM VALUE
VALUES (%(id)s, %(tenant)s, %(job_id)s, %(labels)s, %(queue)s, %(lane)s, %(handler)s, %(cause)s, %(created_before)s, %(include_started)s,
        %(reason)s, 'asked')

-- name: lock_attempts
-- Open runs that somebody outside speaks for.
-- Index: open_runs_pkey. Lock: each row in run_id order; rows that somebody has are passed over.
SELECT run_id, job_id, job_version, state, attempt, failed_attempts, executor_id
  FROM open_runs
 WHERE run_id = ANY (%(run_ids)s::uuid[])
 ORDER BY run_id
   FOR UPDATE SKIP LOCKED

-- name: read_ended
-- How runs ended that are not open. A later statement than the one that looked for their open rows.
-- Index: the partition's primary key. No lock.
SELECT run_id, state FROM job_runs WHERE run_id = ANY (%(run_ids)s::uuid[])

-- name: extend_deadlines
-- Waiting runs that have given a sign of life: until when the next one has to come.
-- Index: open_runs_pkey; open_runs_deadline changes. Lock: rows already locked, and so where they were found.
UPDATE open_runs AS o
   SET deadline_at = least(o.schedule_to_close_at, o.external_deadline_at, (SELECT tidewheel_now()) + told.heartbeat)
  FROM unnest(%(run_ids)s::uuid[], %(heartbeats)s::interval[]) AS told (run_id, heartbeat)
 CROSS JOIN LATERAL (SELECT p.ctid AS at FROM open_runs AS p WHERE p.run_id = told.run_id OFFSET 0) AS found
 WHERE o.ctid = found.at

-- name: take_partition
-- Makes a partition of a topic this intake's own; the raised epoch fences the previous owner off.
-- Index: intake_offsets_pkey. Lock: the row.
INSERT INTO intake_offsets (topic, partition, topic_id, next_offset, epoch, owner)
VALUES (%(topic)s, %(partition)s, %(topic_id)s, %(first_offset)s, 1, %(owner)s)
ON CONFLICT (topic, partition) DO UPDATE
   SET epoch = intake_offsets.epoch + 1, owner = excluded.owner
RETURNING next_offset, epoch, topic_id

-- name: move_offsets
-- The fence of a batch: moves the offsets only where this owner's epoch and last position still stand.
-- Index: intake_offsets_pkey. Lock: the rows.
UPDATE intake_offsets AS o
   SET next_offset = moved.next_offset
  FROM unnest(
        %(topics)s::text[], %(partitions)s::integer[], %(epochs)s::bigint[], %(bases)s::bigint[],
        %(next_offsets)s::bigint[]
       ) AS moved (topic, partition, epoch, base, next_offset)
 WHERE o.topic = moved.topic
   AND o.partition = moved.partition
   AND o.epoch = moved.epoch
   AND o.next_offset = moved.base
RETURNING o.partition

-- name: read_backfilled_jobs
-- What backfills need of the jobs just locked, with how many are unfinished and when the last one was made.
-- Index: jobs_pkey, backfills_by_job. No lock.
SELECT j.job_id, j.key, j.shard, j.version, j.deleted_at, known.unfinished, known.last_made_at
  FROM jobs AS j
 CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE b.state IN ('running', 'paused')) AS unfinished, max(b.created_at) AS last_made_at
      FROM backfills AS b
     WHERE b.job_id = j.job_id
  ) AS known
 WHERE j.job_id = ANY (%(job_ids)s)

-- name: find_backfill
-- A backfill that was accepted before, under a request that has come again.
-- Index: backfills_pkey. No lock: they are made under their jobs' locks.
SELECT wanted FROM backfills WHERE backfill_id = %(backfill_id)s

-- name: add_backfill
-- A backfill that was accepted.
-- Index: backfills_pkey. Lock: the new row, under its job's lock.
INSERT INTO backfills (backfill_id, tenant, job_id, shard, state, first_at, last_at, what, versions, job_version, overlap,
                       newest_first, max_concurrent, occurrences, wanted, cursor_at, request_id, traceparent, reason,
                       created_at)
VALUES (%(backfill_id)s, %(tenant)s, %(job_id)s, %(shard)s, %(state)s, %(first_at)s, %(last_at)s, %(what)s, %(versions)s,
        %(job_version)s, %(overlap)s, %(newest_first)s, %(max_concurrent)s, %(occurrences)s, %(wanted)s, %(cursor_at)s,
        %(request_id)s, %(traceparent)s, %(reason)s, %(created_at)s)

-- name: lock_backfill
-- A backfill that is to be paused, resumed or cancelled.
-- Index: backfills_pkey. Lock: the row, waiting for a batch of its runs that is being made.
SELECT backfill_id, tenant, job_id, shard, job_version, state, first_at, last_at, what, versions, overlap, newest_first,
       max_concurrent, occurrences, wanted, cursor_at, request_id, traceparent, reason, created_at, made, passed_over
  FROM backfills
 WHERE backfill_id = %(backfill_id)s AND tenant = %(tenant)s
   FOR UPDATE

-- name: read_job_key
-- The key of a backfill's job.
-- Index: jobs_pkey. No lock.
SELECT key FROM jobs WHERE job_id = %(job_id)s

-- name: move_backfill
-- A backfill that was paused, resumed or cancelled.
-- Index: backfills_pkey. Lock: the row, locked already.
UPDATE backfills
   SET state = %(state)s, reason = %(reason)s, finished_at = %(finished_at)s
 WHERE backfill_id = %(backfill_id)s

-- name: lock_unbegun_of_backfill
-- The runs of a backfill that no attempt has begun: at most as many as may be open at once, which is a thousand.
-- Index: open_runs_pkey. Lock: each row in run_id order, waiting for a claim under way (which then has begun it).
SELECT run_id FROM open_runs
 WHERE run_id BETWEEN %(first_run_id)s AND %(last_run_id)s AND job_id = %(job_id)s AND cause = 'backfill' AND attempt = 0
   AND state = ANY (%(states)s)
 ORDER BY run_id
   FOR UPDATE
