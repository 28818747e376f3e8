-- name: read_now
-- The clock that decides what is due; read after the locks were taken.
-- No index, no lock.
SELECT tidewheel_now()

-- name: known_tenants
-- Which of these tenants exist.
-- Index: tenants_pkey. No lock.
SELECT tenant FROM tenants WHERE tenant = ANY (%(tenants)s)

-- name: find_answers
-- First answers of requests that were seen before.
-- Index: requests_pkey. No lock.
SELECT r.tenant, r.request_id, r.body_hash, r.reply
  FROM unnest(%(tenants)s::text[], %(request_ids)s::text[]) AS asked (tenant, request_id)
  JOIN requests AS r USING (tenant, request_id)

-- name: store_answers
-- First answers of new requests; one that is not returned was answered by somebody else meanwhile.
-- Index: requests_pkey. Lock: waits for an uncommitted twin.
INSERT INTO requests (tenant, request_id, body_hash, reply, made_at)
SELECT tenant, request_id, body_hash, reply, tidewheel_now()
  FROM unnest(%(tenants)s::text[], %(request_ids)s::text[], %(body_hashes)s::bytea[], %(replies)s::bytea[])
       AS new (tenant, request_id, body_hash, reply)
 ORDER BY tenant, request_id
    ON CONFLICT DO NOTHING
RETURNING request_id

-- name: forget_answers
-- Answers that are older than they are kept, some at a time.
-- Index: requests_by_age. Lock: the rows.
DELETE FROM requests
 WHERE (tenant, request_id) IN (
    SELECT tenant, request_id FROM requests WHERE made_at < tidewheel_now() - %(kept)s::interval LIMIT 5000
 )

-- name: enter_jobs
-- A place for jobs that may be new, so that two intakes meet on the row and not on nothing.
-- Index: jobs_pkey. Lock: new rows, in job_id order; waits for an uncommitted twin.
INSERT INTO jobs (job_id, tenant, key, bucket, shard, version, created_at, updated_at)
SELECT job_id, tenant, key, bucket, shard, 0, tidewheel_now(), tidewheel_now()
  FROM unnest(%(job_ids)s::uuid[], %(tenants)s::text[], %(keys)s::text[], %(buckets)s::smallint[], %(shards)s::smallint[])
       AS new (job_id, tenant, key, bucket, shard)
 ORDER BY job_id
    ON CONFLICT (job_id) DO NOTHING

-- name: lock_timers
-- The timers of these jobs: the locks on which edits and firing meet. Before the jobs' own rows, as firing does. Alone,
-- without their versions: what the lock waited for may have brought a version that this statement cannot see.
-- Index: timers_pkey. Lock: each timer, in job_id order, waiting for a firing or an edit under way.
SELECT job_id FROM timers WHERE job_id = ANY (%(job_ids)s) ORDER BY job_id FOR UPDATE

-- name: read_locked_timers
-- The timers just locked, with what firing needs of their versions.
-- Index: timers_pkey, job_versions_pkey. No lock.
SELECT t.job_id, t.tenant, t.shard, t.scheduled_at, t.version, v.schedule, v.handler, v.queue, v.lane, v.overlap,
       v.definition
  FROM timers AS t
  JOIN job_versions AS v ON v.job_id = t.job_id AND v.version = t.version
 WHERE t.job_id = ANY (%(job_ids)s)

-- name: lock_jobs
-- The jobs' rows, alone for the same reason as their timers.
-- Index: jobs_pkey. Lock: each job, in job_id order, after its timer; triggers, which share its key, go on.
SELECT job_id FROM jobs WHERE job_id = ANY (%(job_ids)s) ORDER BY job_id FOR NO KEY UPDATE

-- name: lock_jobs_to_delete
-- The same against triggers too: no run is made for a job while its open ones are being cancelled.
-- Index: jobs_pkey. Lock: each job's row and key, in job_id order, after its timer.
SELECT job_id FROM jobs WHERE job_id = ANY (%(job_ids)s) ORDER BY job_id FOR UPDATE

-- name: read_locked_jobs
-- The jobs just locked, with the schedule in force.
-- Index: jobs_pkey, job_versions_pkey. No lock.
SELECT j.job_id, j.tenant, j.key, j.shard, j.version, j.spec_hash, j.anchor, j.every_us, j.paused, j.finished_at,
       j.deleted_at, v.schedule,
       EXISTS (SELECT FROM timers AS t WHERE t.job_id = j.job_id AND t.due_at = 'infinity') AND NOT j.paused AS set_aside
  FROM jobs AS j
  LEFT JOIN job_versions AS v ON v.job_id = j.job_id AND v.version = j.version
 WHERE j.job_id = ANY (%(job_ids)s)

-- name: share_jobs
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
       anchor = new.anchor,
       every_us = new.every_us,
       labels = new.labels,
       paused = new.paused,
       paused_at = CASE WHEN new.paused THEN coalesce(j.paused_at, %(now)s) END,
       paused_by = CASE WHEN new.paused THEN j.paused_by END,
       pause_reason = CASE WHEN new.paused THEN j.pause_reason END,
       updated_at = %(now)s,
       created_at = CASE WHEN j.version = 0 THEN %(now)s ELSE j.created_at END,
       finished_at = CASE WHEN new.finished THEN %(now)s END,
       deleted_at = NULL,
       failures = 0
  FROM unnest(
        %(job_ids)s::uuid[], %(versions)s::integer[], %(spec_hashes)s::bytea[], %(schedule_kinds)s::text[],
        %(anchors)s::timestamptz[], %(every_us)s::bigint[], %(labels)s::jsonb[], %(paused)s::boolean[],
        %(finished)s::boolean[]
       ) AS new (job_id, version, spec_hash, schedule_kind, anchor, every_us, labels, paused, finished)
 WHERE j.job_id = new.job_id

-- name: put_timers
-- Timers of jobs that have something to fire.
-- Index: timers_pkey; timers_due changes. Lock: rows already locked, or new.
INSERT INTO timers (job_id, tenant, shard, due_at, scheduled_at, version)
SELECT job_id, tenant, shard, due_at, scheduled_at, version
  FROM unnest(
        %(job_ids)s::uuid[], %(tenants)s::text[], %(shards)s::smallint[], %(due_at)s::timestamptz[],
        %(scheduled_at)s::timestamptz[], %(versions)s::integer[]
       ) AS new (job_id, tenant, shard, due_at, scheduled_at, version)
    ON CONFLICT (job_id) DO UPDATE
   SET due_at = excluded.due_at, scheduled_at = excluded.scheduled_at, version = excluded.version, catch_up_end = NULL

-- name: read_timers
-- Where these jobs' timers stand, for replies; not of paused jobs.
-- Index: timers_pkey. No lock.
SELECT job_id, scheduled_at FROM timers WHERE job_id = ANY (%(job_ids)s) AND due_at < 'infinity'

-- name: pause_jobs
-- The jobs' rows after a pause. finished_at is lifted where a timer came back.
-- Index: jobs_pkey. Lock: rows already locked.
UPDATE jobs AS j
   SET paused = true, paused_at = %(now)s, paused_by = 'request', pause_reason = new.reason, updated_at = %(now)s,
       finished_at = CASE WHEN new.revived THEN NULL ELSE j.finished_at END
  FROM unnest(%(job_ids)s::uuid[], %(reasons)s::text[], %(revived)s::boolean[]) AS new (job_id, reason, revived)
 WHERE j.job_id = new.job_id

-- name: resume_jobs
-- The jobs' rows after a resume.
-- Index: jobs_pkey. Lock: rows already locked.
UPDATE jobs
   SET paused = false, paused_at = NULL, paused_by = NULL, pause_reason = NULL, paused_until = NULL, updated_at = %(now)s
 WHERE job_id = ANY (%(job_ids)s)

-- name: delete_jobs
-- Tombstones: the versions stay, so that they never repeat for a job_id.
-- Index: jobs_pkey. Lock: rows already locked.
UPDATE jobs
   SET deleted_at = %(now)s, updated_at = %(now)s, paused = false, paused_at = NULL, paused_by = NULL, pause_reason = NULL
 WHERE job_id = ANY (%(job_ids)s)

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
INSERT INTO cancellations (tenant, job_id, made_before, made_by)
SELECT tenant, job_id, %(now)s, 'job_deleted'
  FROM unnest(%(tenants)s::text[], %(job_ids)s::uuid[]) AS gone (tenant, job_id)

-- name: lock_run
-- One open run, to cancel it.
-- Index: open_runs_pkey. Lock: the row, waiting.
SELECT state, attempt, executor_id FROM open_runs WHERE run_id = %(run_id)s AND tenant = %(tenant)s FOR UPDATE

-- name: read_run
-- A run's job and final state.
-- Index: the partition's primary key. No lock.
SELECT job_id, job_version, state FROM job_runs WHERE run_id = %(run_id)s AND tenant = %(tenant)s

-- name: take_partition
-- Makes a partition of the requests topic this intake's own; the raised epoch fences the previous owner off.
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
  FROM unnest(%(partitions)s::integer[], %(epochs)s::bigint[], %(bases)s::bigint[], %(next_offsets)s::bigint[])
       AS moved (partition, epoch, base, next_offset)
 WHERE o.topic = %(topic)s
   AND o.partition = moved.partition
   AND o.epoch = moved.epoch
   AND o.next_offset = moved.base
RETURNING o.partition
