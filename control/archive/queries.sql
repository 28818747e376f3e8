-- name: lock_archive
-- Keeps the archive to this process.
-- Lock: archive_lock, not waited for.
LOCK TABLE archive_lock IN SHARE ROW EXCLUSIVE MODE NOWAIT

-- name: is_archive_locked
-- Returns true while a process writes the archive.
-- No index, no lock.
SELECT EXISTS (SELECT FROM pg_locks AS l
                WHERE l.relation = 'archive_lock'::regclass AND l.mode = 'ShareRowExclusiveLock' AND l.granted
                  AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()))

-- name: lock_retention
-- Waits for a pass of retention, and keeps schedulers from beginning another one.
-- Lock: retention_lock.
LOCK TABLE retention_lock IN SHARE ROW EXCLUSIVE MODE

-- name: lock_old_retention
-- Does so with schedulers of 0.1, unless a stranger holds their lock.
-- No index. Lock: an advisory one.
SELECT pg_advisory_xact_lock(k.key)
  FROM (SELECT hashtext('tidewheel.retention')::bigint AS key) AS k
 WHERE {{tidewheel.no_stranger(k)}}

-- name: find_dropped_days
-- Returns the days that retention has dropped, or is about to.
-- No index: a row for each day. No lock.
SELECT day FROM run_days WHERE dropped_at IS NOT NULL

-- name: find_days_to_archive
-- Returns the closed days that are not archived, the oldest first.
-- Index: archived_days_pkey; a row of run_days for each day. No lock.
SELECT d.day
  FROM run_days AS d
 WHERE d.closed_at IS NOT NULL AND d.dropped_at IS NULL AND NOT EXISTS (SELECT FROM archived_days AS a WHERE a.day = d.day)
 ORDER BY d.day

-- name: find_archived_days
-- Returns the archived days, the oldest first.
-- No index: a row for each day. No lock.
SELECT day, runs, bytes, archived_at FROM archived_days ORDER BY day

-- name: find_days_of_run
-- Returns the archived days with a run whose id has this day, the latest first.
-- No index: a row for each day. No lock.
SELECT day FROM archived_days WHERE id_days @> ARRAY[%(id_day)s::integer] ORDER BY day DESC

-- name: record_archived_day
-- Records a day as archived; retention may drop its partitions.
-- Index: archived_days_pkey. Lock: the row.
INSERT INTO archived_days (day, runs, bytes, id_days)
VALUES (%(day)s, %(runs)s, %(bytes)s, %(id_days)s)
    ON CONFLICT (day) DO UPDATE SET runs = EXCLUDED.runs, bytes = EXCLUDED.bytes, id_days = EXCLUDED.id_days

-- name: delete_archived_day
-- Deletes the record of a day.
-- Index: archived_days_pkey. Lock: the row.
DELETE FROM archived_days WHERE day = %(day)s

-- name: delete_archived_days
-- Deletes the records of all days: retention waits for the archive no more.
-- No index: a row for each day. Lock: the rows.
DELETE FROM archived_days

-- name: count_runs_of_day
-- Returns the number of runs that ended within a span for each tenant, without those of tenants that are being deleted.
-- Index: finished_runs_by_tenant of one partition, tenant_deletions_pkey. No lock.
SELECT f.tenant, count(*)
  FROM finished_runs AS f
 WHERE f.finished_at >= %(since)s AND f.finished_at < %(until)s
   AND NOT EXISTS (SELECT FROM tenant_deletions AS d WHERE d.tenant = f.tenant)
 GROUP BY f.tenant

-- name: find_deleted_tenants
-- Returns the tenants that are being deleted, or were.
-- No index: a row for each deletion. No lock.
SELECT tenant FROM tenant_deletions

-- name: read_runs_of_day
-- Returns the next runs of a day, by tenant and id, with the job's key and labels and the version's handler.
-- Index: finished_runs_by_tenant of one partition, jobs_pkey, job_versions_pkey. No lock.
SELECT f.run_id::text, f.tenant, f.job_id::text, j.key AS job_key, coalesce(j.labels, '{}') AS job_labels, f.job_version, v.handler,
       f.shard, f.cause, f.queue, f.lane, f.state, f.scheduled_at, nullif(f.publish_at, 'infinity') AS publish_at,
       f.created_at, f.started_at, f.finished_at, f.attempt, f.executor_id::text, f.claimed_from, f.parent_run_id::text,
       f.root_run_id::text, f.request_id, f.requested_from, f.reason, f.error_type, f.workflow_run_id::text, f.generation,
       f.concurrency_key
  FROM finished_runs AS f
  LEFT JOIN jobs AS j ON j.job_id = f.job_id
  LEFT JOIN job_versions AS v ON v.job_id = f.job_id AND v.version = f.job_version
 WHERE f.finished_at >= %(since)s AND f.finished_at < %(until)s AND (f.tenant, f.run_id) > (%(tenant)s::text, %(run_id)s::uuid)
 ORDER BY f.tenant, f.run_id
 LIMIT %(limit)s

-- name: read_definitions
-- Returns the definitions of versions.
-- Index: job_versions_pkey. No lock.
SELECT v.job_id::text, v.version, v.definition
  FROM unnest(%(job_ids)s::uuid[], %(versions)s::integer[]) AS w (job_id, version)
  JOIN job_versions AS v ON v.job_id = w.job_id AND v.version = w.version

-- name: weigh_runs
-- Returns the bytes of the inputs and attempts of runs, of those that have any.
-- Index: run_inputs_pkey and attempts_pkey of the partitions. No lock.
SELECT w.run_id::text, sum(w.bytes)::bigint
  FROM (
    SELECT i.run_id, coalesce(octet_length(i.payload), 0) + 200 AS bytes
      FROM run_inputs AS i
     WHERE i.run_id = ANY (%(run_ids)s::uuid[]) AND i.created_at >= %(since)s AND i.created_at < %(until)s
     UNION ALL
    SELECT a.run_id, coalesce(octet_length(a.error_message), 0) + 200
      FROM attempts AS a
     WHERE a.run_id = ANY (%(run_ids)s::uuid[]) AND a.started_at >= %(since)s AND a.started_at < %(until)s
  ) AS w
 GROUP BY w.run_id

-- name: read_inputs_of_runs
-- Returns the inputs of runs.
-- Index: run_inputs_pkey of the partitions. No lock.
SELECT i.run_id::text, i.created_at, i.payload, i.payload_content_type, coalesce(i.labels, '{}') AS labels, i.overlap,
       i.traceparent, i.late_ms
  FROM run_inputs AS i
 WHERE i.run_id = ANY (%(run_ids)s::uuid[]) AND i.created_at >= %(since)s AND i.created_at < %(until)s

-- name: read_attempts_of_runs
-- Returns the attempts of runs that did not succeed.
-- Index: attempts_pkey of the partitions. No lock.
SELECT a.run_id::text, a.attempt, a.outcome, a.started_at, a.finished_at, a.executor_id::text, a.claimed_from, a.error_type,
       a.error_message
  FROM attempts AS a
 WHERE a.run_id = ANY (%(run_ids)s::uuid[]) AND a.started_at >= %(since)s AND a.started_at < %(until)s
 ORDER BY a.run_id, a.attempt

-- name: read_facts
-- Returns the rows of a span that say which runs there had to be.
-- No index: it reads the tables, once for each archived day. No lock.
SELECT 'job_versions' AS kind, v.tenant, v.job_id::text, v.effective_at AS at, to_jsonb(v)::text AS row
  FROM job_versions AS v
 WHERE v.effective_at < %(until)s::timestamptz AND (v.effective_at >= %(since)s::timestamptz OR v.retired_at >= %(since)s)
 UNION ALL
SELECT 'job_edges', e.tenant, e.child_job_id::text, e.from_at, to_jsonb(e)::text
  FROM job_edges AS e
 WHERE e.from_at < %(until)s AND (e.from_at >= %(since)s OR e.until_at >= %(since)s)
 UNION ALL
SELECT 'skips', s.tenant, s.job_id::text, s.created_at, to_jsonb(s)::text
  FROM skips AS s
 WHERE s.created_at >= %(since)s AND s.created_at < %(until)s
 UNION ALL
SELECT 'overrides', o.tenant, o.job_id::text, o.created_at, to_jsonb(o)::text
  FROM overrides AS o
 WHERE o.created_at < %(until)s AND (o.created_at >= %(since)s OR o.done_at >= %(since)s)
 UNION ALL
SELECT 'calendars', c.tenant, NULL, c.updated_at, to_jsonb(c)::text
  FROM calendars AS c
 WHERE c.updated_at >= %(since)s AND c.updated_at < %(until)s
 UNION ALL
SELECT 'workflows', w.tenant, w.root_job_id::text, w.finished_at, to_jsonb(w)::text
  FROM workflows AS w
 WHERE w.finished_at >= %(since)s AND w.finished_at < %(until)s AND w.root_job_id <> '00000000-0000-0000-0000-000000000000'

-- name: read_tzdata
-- Returns the version of the time zones that schedulers use.
-- Index: settings_pkey. No lock.
SELECT value FROM settings WHERE name = 'tzdata'

-- name: find_tenants_to_remove
-- Returns deleted tenants whose rows are removed, and that the archive may still have.
-- No index: a row for each deletion. No lock.
SELECT tenant FROM tenant_deletions WHERE state = 'removed' AND NOT left_archive ORDER BY tenant

-- name: record_tenant_removed
-- Records that a deleted tenant has left the archive.
-- Index: tenant_deletions_pkey. Lock: the row.
UPDATE tenant_deletions SET left_archive = true WHERE tenant = %(tenant)s AND state = 'removed'
