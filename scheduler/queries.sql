-- name: lock_retention
-- Keeps retention to this scheduler.
-- Lock: retention_lock, not waited for.
LOCK TABLE retention_lock IN SHARE ROW EXCLUSIVE MODE NOWAIT

-- name: find_days_in_use
-- Returns the days on which open runs were created, and those on which their attempts started. Runs whose inputs are
-- still to move count as open.
-- No index: all open runs are read, when there is an old partition. No lock.
SELECT (created_at AT TIME ZONE 'UTC')::date, (started_at AT TIME ZONE 'UTC')::date FROM job_runs
 UNION
SELECT (inputs_at AT TIME ZONE 'UTC')::date, NULL FROM deferred_effects WHERE inputs_at IS NOT NULL

-- name: delete_old_audit
-- Deletes some entries of the audit log that are older than its retention.
-- Index: audit_log_pkey. Lock: the deleted rows, which are written once.
DELETE FROM audit_log
 WHERE (at, id) IN (SELECT at, id FROM audit_log WHERE at < %(before)s::timestamptz ORDER BY at, id LIMIT %(limit)s)

-- name: delete_old_redrives
-- Deletes some redrives that ended longer ago than the retention of runs.
-- No index: a row for each request of an operator, once an hour. Lock: the deleted rows, which have ended.
DELETE FROM redrives
 WHERE redrive_id IN (SELECT redrive_id FROM redrives WHERE finished_at < %(before)s::timestamptz LIMIT %(limit)s)

-- name: delete_old_works
-- Deletes some works that ended longer ago than the retention of runs.
-- No index: a row for each request of an operator, once an hour. Lock: the deleted rows, which have ended.
DELETE FROM works
 WHERE work_id IN (SELECT work_id FROM works WHERE finished_at < %(before)s::timestamptz LIMIT %(limit)s)

-- name: delete_old_backfills
-- Deletes some backfills that ended longer ago than the retention of runs.
-- No index: a row for each request of an operator, once an hour. Lock: the deleted rows, which have ended.
DELETE FROM backfills
 WHERE backfill_id IN (SELECT backfill_id FROM backfills WHERE finished_at < %(before)s::timestamptz LIMIT %(limit)s)

-- name: delete_old_cancellations
-- Deletes some filters of cancellations that ended longer ago than the retention of runs.
-- No index: a row for each request of an operator, once an hour. Lock: the deleted rows, which no claim reads.
DELETE FROM cancellations
 WHERE id IN (SELECT id FROM cancellations WHERE finished_at < %(before)s::timestamptz LIMIT %(limit)s)

-- name: delete_old_skips
-- Deletes some skips that were recorded longer ago than the retention of runs.
-- Index: skips_pkey, from its front: ids ascend with the time. Lock: the old rows; those that another transaction holds stay.
-- Why arrays: a join would read the whole table for each page.
WITH oldest AS MATERIALIZED (
    SELECT s.skip_id, s.created_at FROM skips AS s ORDER BY s.skip_id LIMIT %(limit)s
), free AS MATERIALIZED (
    SELECT s.skip_id
      FROM skips AS s
     WHERE s.skip_id = ANY (ARRAY (SELECT o.skip_id FROM oldest AS o WHERE o.created_at < %(before)s::timestamptz))
       FOR UPDATE SKIP LOCKED
)
DELETE FROM skips WHERE skip_id = ANY (ARRAY (SELECT f.skip_id FROM free AS f))

-- name: delete_old_overrides
-- Deletes some overrides of occurrences that lie further back than the retention of runs.
-- No index: a row for each request of an operator, once an hour. Lock: the rows; those that another transaction holds stay.
-- Why timers: a paused job has not decided about its instants yet.
DELETE FROM overrides
 WHERE (job_id, scheduled_at) IN (
    SELECT v.job_id, v.scheduled_at
      FROM overrides AS v
     WHERE greatest(v.scheduled_at, v.moved_to) < %(before)s::timestamptz
       AND NOT EXISTS (SELECT FROM timers AS t WHERE t.job_id = v.job_id AND t.scheduled_at <= v.scheduled_at)
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED)

-- name: delete_old_failed_runs
-- Deletes some copies of failed runs that ended longer ago than their retention.
-- Index: failed_runs_by_end, failed_runs_pkey. Lock: the rows, which are written once.
DELETE FROM failed_runs
 WHERE run_id IN (SELECT run_id FROM failed_runs WHERE finished_at < %(before)s::timestamptz
                   ORDER BY finished_at LIMIT %(limit)s)

-- name: delete_old_dead_letters
-- Deletes some dead letters that are older than their retention.
-- Index: dead_letters_pkey, from its front: ids ascend with the time. Lock: the rows; those that a redrive holds stay.
DELETE FROM dead_letters
 WHERE id IN (SELECT d.id
                FROM dead_letters AS d
               WHERE d.id IN (SELECT f.id FROM dead_letters AS f ORDER BY f.id LIMIT %(limit)s)
                 AND d.created_at < %(before)s::timestamptz
                 FOR UPDATE SKIP LOCKED)

-- name: delete_old_quarantine
-- Deletes some old rows of the quarantine, but not of a job that is quarantined still.
-- Index: timers_pkey; quarantine is small. Lock: the deleted rows, which are written once.
DELETE FROM quarantine
 WHERE id IN (SELECT q.id
                FROM quarantine AS q
               WHERE q.created_at < %(before)s::timestamptz
                 AND NOT EXISTS (SELECT FROM timers AS t WHERE t.job_id = q.job_id AND t.hold_reason = 'quarantine')
               LIMIT %(limit)s)

-- name: delete_old_api_keys
-- Deletes some API keys that were revoked, or expired, longer ago than the retention of the audit log that names them.
-- No index: a row for each key. Lock: the rows.
DELETE FROM api_keys
 WHERE key_id IN (SELECT key_id FROM api_keys WHERE least(revoked_at, expires_at) < %(before)s::timestamptz
                   LIMIT %(limit)s)

-- name: delete_old_deletions
-- Deletes some deletions of tenants whose names are free again.
-- No index: a row for each deleted tenant. Lock: the rows, which a new tenant of the name deletes too.
DELETE FROM tenant_deletions
 WHERE tenant IN (SELECT d.tenant FROM tenant_deletions AS d WHERE NOT {{tidewheel.transitions.is_reserved(d)}} LIMIT %(limit)s)

-- name: begin_days
-- Writes the rows of days that were over an hour ago, and have none; notes the transactions of this database that are open.
-- Index: run_days_pkey. Lock: the new rows.
-- Why an hour: a transaction may begin that much later than the instant that it writes. One that only holds the lock of retention or of
-- the archive writes nothing, and a role without rights on tables or functions can write no run.
INSERT INTO run_days (day, waits_for)
SELECT d.day, ARRAY(SELECT l.virtualtransaction
                      FROM pg_locks AS l
                      JOIN pg_stat_activity AS a USING (pid)
                     WHERE l.locktype = 'virtualxid' AND a.datname = current_database() AND l.pid <> pg_backend_pid()
                       AND NOT EXISTS (SELECT FROM pg_locks AS h
                                        WHERE h.pid = l.pid AND h.mode = 'ShareRowExclusiveLock'
                                          AND h.relation IN ('retention_lock'::regclass, 'archive_lock'::regclass))
                       AND EXISTS (SELECT FROM pg_roles AS r
                                    WHERE pg_has_role(a.usesysid, r.oid, 'MEMBER')
                                      AND (has_table_privilege(r.oid, 'outbox', 'INSERT')
                                           OR EXISTS (SELECT FROM pg_proc AS p
                                                       WHERE p.proname LIKE 'tidewheel\_%%' AND p.prosecdef
                                                         AND p.proname <> 'tidewheel_restamp_events' -- of PUBLIC; it writes no run
                                                         AND p.pronamespace = current_schema()::regnamespace
                                                         AND has_function_privilege(r.oid, p.oid, 'EXECUTE')))))
  FROM unnest(%(days)s::date[]) AS d (day)
 WHERE (d.day + 1)::timestamp AT TIME ZONE 'UTC' < tidewheel_now() - interval '1 hour'
ON CONFLICT (day) DO NOTHING

-- name: find_ended_waits
-- Returns the days that are not closed, and whose noted transactions have all ended or are prepared.
-- No index: a row for each day. No lock.
SELECT d.day
  FROM run_days AS d
 WHERE d.closed_at IS NULL
   AND NOT EXISTS (SELECT FROM pg_locks AS l WHERE l.locktype = 'virtualxid' AND l.virtualtransaction = ANY (d.waits_for))

-- name: close_days
-- Closes days to which no open transaction can add a run; none while a transaction of this database is prepared.
-- No index: a row for each day. Lock: the rows.
-- Why any prepared one: it has lost the virtual id that begin_days has noted, so its begin is unknown.
UPDATE run_days AS d SET closed_at = tidewheel_now(), waits_for = '{}'
 WHERE d.day = ANY (%(days)s::date[]) AND d.closed_at IS NULL
   AND NOT EXISTS (SELECT FROM pg_prepared_xacts AS p WHERE p.database = current_database())

-- name: find_days_to_count
-- Returns the closed days that are not counted, the oldest first, with an estimate of their runs and the position in each.
-- No index: a row for each day. No lock.
SELECT d.day, coalesce(c.reltuples::bigint, 0), d.after_job, d.after_at
  FROM run_days AS d
  LEFT JOIN pg_class AS c ON c.oid = to_regclass('finished_runs_' || to_char(d.day, 'YYYYMMDD'))
 WHERE d.closed_at IS NOT NULL AND d.counted_at IS NULL
 ORDER BY d.day

-- name: find_counted_days
-- Returns the days that are counted.
-- No index: a row for each day. No lock.
SELECT day FROM run_days WHERE counted_at IS NOT NULL

-- part: bucket(x)
-- The bucket of a number of milliseconds: tidewheel/activity.py has the same bounds.
CASE WHEN x.ms <= 1 THEN 0 ELSE ceil(ln(x.ms) / ln(1.1))::bigint END

-- part: merged(x)
-- The buckets of a list in which each may come several times.
(SELECT coalesce(array_agg((m.bucket << 32) + m.runs ORDER BY m.bucket), '{}')
   FROM (SELECT u.packed >> 32 AS bucket, sum(u.packed & 4294967295)::bigint AS runs
           FROM unnest(x.listed) AS u (packed)
          GROUP BY u.packed >> 32) AS m)

-- name: count_slice
-- Adds the runs of a slice of the jobs to their counts.
-- Index: job_days_pkey; it reads the whole day. Lock: the counts; one scheduler counts at a time.
WITH part AS MATERIALIZED (
    SELECT f.job_id, f.tenant, f.state, f.attempt, f.run_id, extract(epoch FROM f.finished_at - f.started_at)::float8 AS took,
           (SELECT {{bucket(x)}}
              FROM (SELECT (extract(epoch FROM f.finished_at - f.started_at) * 1000)::float8 AS ms) AS x
             WHERE f.started_at IS NOT NULL) AS duration,
           (SELECT {{bucket(x)}}
              FROM (SELECT (extract(epoch FROM f.started_at - f.publish_at) * 1000)::float8 AS ms) AS x
             WHERE f.started_at IS NOT NULL AND isfinite(f.publish_at)) AS late
      FROM finished_runs AS f
     WHERE f.finished_at >= %(first)s AND f.finished_at < %(end)s
       AND f.job_id >= %(after_job)s AND (f.job_id, f.scheduled_at) > (%(after_job)s, %(after_at)s)
       AND (%(end_job)s::uuid IS NULL OR f.job_id < %(end_job)s::uuid)
), durations AS (
    SELECT b.job_id, array_agg((b.duration << 32) + b.runs ORDER BY b.duration) AS buckets
      FROM (SELECT p.job_id, p.duration, count(*) AS runs FROM part AS p WHERE p.duration IS NOT NULL GROUP BY p.job_id, p.duration) AS b
     GROUP BY b.job_id
), lateness AS (
    SELECT b.job_id, array_agg((b.late << 32) + b.runs ORDER BY b.late) AS buckets
      FROM (SELECT p.job_id, p.late, count(*) AS runs FROM part AS p WHERE p.late IS NOT NULL GROUP BY p.job_id, p.late) AS b
     GROUP BY b.job_id
), longest AS (
    SELECT DISTINCT ON (p.job_id) p.job_id, p.took, p.run_id
      FROM part AS p
     WHERE p.took IS NOT NULL
     ORDER BY p.job_id, p.took DESC
)
INSERT INTO job_days AS d (job_id, day, tenant, succeeded, failed, timed_out, cancelled, skipped, attempts, durations, lateness,
                           longest, longest_run_id)
SELECT c.job_id, %(day)s::date, c.tenant, c.succeeded, c.failed, c.timed_out, c.cancelled, c.skipped, c.attempts,
       coalesce(o.buckets, '{}'), coalesce(l.buckets, '{}'), m.took, m.run_id
  FROM (SELECT p.job_id, min(p.tenant) AS tenant, count(*) FILTER (WHERE p.state = 'succeeded') AS succeeded,
               count(*) FILTER (WHERE p.state = 'failed') AS failed, count(*) FILTER (WHERE p.state = 'timed_out') AS timed_out,
               count(*) FILTER (WHERE p.state = 'cancelled') AS cancelled, count(*) FILTER (WHERE p.state = 'skipped') AS skipped,
               sum(p.attempt) AS attempts
          FROM part AS p
         GROUP BY p.job_id) AS c
  LEFT JOIN durations AS o USING (job_id)
  LEFT JOIN lateness AS l USING (job_id)
  LEFT JOIN longest AS m USING (job_id)
ON CONFLICT (job_id, day) DO UPDATE
   SET succeeded = d.succeeded + excluded.succeeded, failed = d.failed + excluded.failed,
       timed_out = d.timed_out + excluded.timed_out, cancelled = d.cancelled + excluded.cancelled,
       skipped = d.skipped + excluded.skipped, attempts = d.attempts + excluded.attempts,
       durations = (SELECT {{merged(x)}} FROM (SELECT d.durations || excluded.durations AS listed) AS x),
       lateness = (SELECT {{merged(x)}} FROM (SELECT d.lateness || excluded.lateness AS listed) AS x),
       longest = greatest(d.longest, excluded.longest),
       longest_run_id = CASE WHEN d.longest >= excluded.longest OR excluded.longest IS NULL THEN d.longest_run_id
                             ELSE excluded.longest_run_id END

-- name: advance_count
-- Stores the position of the count of a day; without one the day is counted.
-- Index: run_days_pkey. Lock: the row.
UPDATE run_days
   SET after_job = %(after_job)s, after_at = %(after_at)s,
       counted_at = CASE WHEN %(after_job)s::uuid IS NULL THEN tidewheel_now() END
 WHERE day = %(day)s

-- name: delete_old_job_days
-- Deletes some counts of days that are older than their period.
-- Index: job_days_by_day, job_days_pkey. Lock: the rows, which are written once.
DELETE FROM job_days
 WHERE (job_id, day) IN (SELECT o.job_id, o.day FROM job_days AS o
                          WHERE o.day < (%(before)s::timestamptz AT TIME ZONE 'UTC')::date LIMIT %(limit)s)

-- name: find_oldest_activity
-- Returns the begin of the oldest figures of a grain.
-- Index: activity_by_grain. No lock.
SELECT min(a.at) FROM activity AS a WHERE a.grain = %(grain)s

-- name: find_tenants_of_activity
-- Returns the tenants with figures of a grain in a slice of time.
-- Index: activity_by_grain. No lock.
SELECT DISTINCT a.tenant FROM activity AS a WHERE a.grain = %(grain)s AND a.at >= %(first)s AND a.at < %(end)s

-- name: merge_activity
-- Merges figures of a grain, of some tenants in a slice of time, into rows of the next grain.
-- Index: activity_pkey; of few tenants activity_by_grain. Lock: the rows, which are written once; one scheduler merges at a time.
WITH gone AS MATERIALIZED (
    DELETE FROM activity AS a
     WHERE a.grain = %(grain)s AND a.at >= %(first)s AND a.at < %(end)s AND a.tenant = ANY (%(tenants)s)
    RETURNING a.tenant, date_bin(%(into)s::interval, a.at, '1970-01-01 00:00:00+00') AS at, a.queue, a.lane, a.state, a.runs,
              a.stages, a.took, a.slowest
), late AS (
    SELECT b.tenant, b.at, b.queue, b.lane, b.state, array_agg((b.bucket << 32) + b.runs ORDER BY b.bucket) AS stages
      FROM (SELECT g.tenant, g.at, g.queue, g.lane, g.state, u.packed >> 32 AS bucket, sum(u.packed & 4294967295)::bigint AS runs
              FROM gone AS g CROSS JOIN unnest(g.stages) AS u (packed)
             GROUP BY g.tenant, g.at, g.queue, g.lane, g.state, u.packed >> 32) AS b
     GROUP BY b.tenant, b.at, b.queue, b.lane, b.state
), slow AS (
    SELECT r.tenant, r.at, r.queue, r.lane, r.state, array_agg(r.took ORDER BY r.place) AS took,
           array_agg(r.run_id ORDER BY r.place) AS slowest
      FROM (SELECT g.tenant, g.at, g.queue, g.lane, g.state, u.took, u.run_id,
                   row_number() OVER (PARTITION BY g.tenant, g.at, g.queue, g.lane, g.state ORDER BY u.took DESC, u.run_id) AS place
              FROM gone AS g CROSS JOIN unnest(g.took, g.slowest) AS u (took, run_id)) AS r
     WHERE r.place <= 3
     GROUP BY r.tenant, r.at, r.queue, r.lane, r.state
)
INSERT INTO activity (tenant, at, grain, queue, lane, state, runs, stages, took, slowest)
SELECT c.tenant, c.at, %(grain)s + 1, c.queue, c.lane, c.state, c.runs, coalesce(l.stages, '{}'), coalesce(s.took, '{}'),
       coalesce(s.slowest, '{}')
  FROM (SELECT g.tenant, g.at, g.queue, g.lane, g.state, sum(g.runs)::bigint AS runs
          FROM gone AS g
         GROUP BY g.tenant, g.at, g.queue, g.lane, g.state) AS c
  LEFT JOIN late AS l USING (tenant, at, queue, lane, state)
  LEFT JOIN slow AS s USING (tenant, at, queue, lane, state)

-- name: delete_old_activity
-- Deletes some figures that are older than their period.
-- Index: activity_by_grain, activity_pkey. Lock: the rows, which are written once.
DELETE FROM activity
 WHERE (tenant, at, id) IN (SELECT o.tenant, o.at, o.id FROM activity AS o
                             WHERE o.grain = ANY ('{0,1,2}') AND o.at < %(before)s LIMIT %(limit)s)

-- name: find_archived_days
-- Returns the days whose runs are in the archive; no row without one.
-- No index: a row for each day. No lock.
SELECT day FROM archived_days

-- name: find_dropped_days
-- Returns the days whose runs are no longer known to be complete.
-- No index: a row for each day. No lock.
SELECT day FROM run_days WHERE dropped_at IS NOT NULL

-- name: lock_kept_since
-- Keeps requests that rely on the first kept day waiting until the commit.
-- Lock: kept_since_lock, which they and audits share, not waited for: an audit may take hours.
LOCK TABLE kept_since_lock IN SHARE ROW EXCLUSIVE MODE NOWAIT

-- name: begin_drops
-- Marks days as dropped, before their partitions are.
-- Index: run_days_pkey. Lock: the rows.
INSERT INTO run_days AS d (day, waits_for, dropped_at)
SELECT g.day, '{}', tidewheel_now() FROM unnest(%(days)s::date[]) AS g (day)
ON CONFLICT (day) DO UPDATE SET dropped_at = coalesce(d.dropped_at, excluded.dropped_at)

-- name: find_needed_since
-- Returns the time from which open occurrences of workflows need runs, and that from which open backfills of missing
-- occurrences need finished runs; null for none.
-- Index: workflows_open, backfills_open. No lock.
SELECT (SELECT min(least(w.created_at, w.graph_at)) FROM workflows AS w WHERE w.finished_at IS NULL),
       (SELECT min(b.first_at) FROM backfills AS b WHERE b.state IN ('running', 'paused') AND b.what = 'missing_only')

-- name: find_tenant_periods
-- Returns the shorter periods of tenants, with their positions.
-- No index: a row for each tenant that has one, once an hour. No lock.
SELECT tenant, state, keep, kept_since, removing FROM tenant_periods WHERE keep IS NOT NULL ORDER BY tenant, state

-- name: has_open_backfill
-- Returns true if an open backfill of missing occurrences of a tenant begins before an instant.
-- Index: backfills_open. No lock.
SELECT EXISTS (SELECT FROM backfills AS b
                WHERE b.state IN ('running', 'paused') AND b.tenant = %(tenant)s AND b.what = 'missing_only' AND b.first_at < %(end)s)

-- name: move_tenant_period
-- Stores the position of a tenant's period: before the runs of a day go, and when they are gone.
-- Index: tenant_periods_pkey. Lock: the row.
UPDATE tenant_periods SET kept_since = %(kept_since)s, removing = %(removing)s WHERE tenant = %(tenant)s AND state = %(state)s

-- name: find_runs_to_remove
-- Returns the next runs of a tenant and a day that may go: no open occurrence of a workflow needs them.
-- Index: the day's index by tenant, workflows_open. No lock: nothing else writes to the day.
SELECT f.run_id
  FROM finished_runs AS f
 WHERE f.finished_at >= %(first)s AND f.finished_at < %(end)s AND f.tenant = %(tenant)s AND f.run_id > %(after)s
   AND (%(state)s = 'any' OR f.state = %(state)s)
   AND NOT EXISTS (SELECT FROM workflows AS w WHERE w.root_run_id = f.workflow_run_id AND w.finished_at IS NULL)
 ORDER BY f.run_id
 LIMIT %(limit)s

-- name: remove_runs
-- Deletes runs of a day, with what they have on this day and the day before.
-- Index: the partitions' indexes by run. Lock: the rows, which nothing else writes.
-- Why two days: a run that has begun earlier leaves rows to the drop of their day, rather than a look into every partition.
WITH runs AS (
    DELETE FROM finished_runs WHERE run_id = ANY (%(run_ids)s::uuid[]) AND finished_at >= %(first)s AND finished_at < %(end)s
), tried AS (
    DELETE FROM attempts WHERE run_id = ANY (%(run_ids)s::uuid[]) AND started_at >= %(before)s AND started_at < %(end)s
), written AS (
    DELETE FROM attempt_outputs WHERE run_id = ANY (%(run_ids)s::uuid[]) AND started_at >= %(before)s AND started_at < %(end)s
)
DELETE FROM run_inputs WHERE run_id = ANY (%(run_ids)s::uuid[]) AND created_at >= %(before)s AND created_at < %(end)s

-- name: record_pass
-- Records a pass of retention.
-- Index: retention_state_pkey. Lock: the row.
INSERT INTO retention_state AS s (passed_at, behind, held_by) VALUES (tidewheel_now(), %(behind)s, %(held_by)s)
ON CONFLICT (one) DO UPDATE SET passed_at = excluded.passed_at, behind = excluded.behind, held_by = excluded.held_by

-- name: read_job_round
-- Returns the last job that a pass looked at; no row, or null, at the begin of a round.
-- Index: retention_state_pkey. No lock.
SELECT after_job FROM retention_state

-- name: advance_job_round
-- Stores the last job that a pass looked at.
-- Index: retention_state_pkey. Lock: the row.
INSERT INTO retention_state AS s (after_job) VALUES (%(after)s)
ON CONFLICT (one) DO UPDATE SET after_job = excluded.after_job

-- name: scan_ended_jobs
-- Returns the last of the next jobs, and those of them that were deleted or finished before an instant.
-- Index: jobs_pkey. No lock: the result is checked again under a lock.
SELECT (array_agg(p.job_id ORDER BY p.job_id DESC))[1],
       coalesce(array_agg(p.job_id ORDER BY p.job_id) FILTER (WHERE p.ended_at < %(before)s), '{}')
  FROM (SELECT job_id, coalesce(deleted_at, finished_at) AS ended_at
          FROM jobs
         WHERE job_id > %(after)s
         ORDER BY job_id
         LIMIT %(limit)s) AS p

-- name: lock_ended_jobs
-- Locks those of these jobs that are still ended, with their keys: so no trigger and no edit comes before the commit.
-- Index: jobs_pkey. Lock: each job, in job_id order; those that another transaction holds are skipped.
SELECT job_id
  FROM jobs
 WHERE job_id = ANY (%(job_ids)s::uuid[]) AND coalesce(deleted_at, finished_at) < %(before)s
 ORDER BY job_id
   FOR UPDATE SKIP LOCKED

-- name: find_unused_jobs
-- Returns those of these jobs that no run, dead letter, backfill or edge in force needs.
-- Index: timers_pkey, job_runs_by_job, finished_runs_by_job in every partition, dead_letters_by_job, backfills_by_job,
-- job_edges_pkey, job_edges_by_child. No lock: lock_ended_jobs has locked them.
-- Why a later statement than the lock: it sees the runs of triggers that the lock has waited for.
SELECT j.job_id
  FROM unnest(%(job_ids)s::uuid[]) AS j (job_id)
 WHERE NOT EXISTS (SELECT FROM timers AS t WHERE t.job_id = j.job_id)
   AND NOT EXISTS (SELECT FROM job_runs AS r WHERE r.job_id = j.job_id)
   AND NOT EXISTS (SELECT FROM finished_runs AS f WHERE f.job_id = j.job_id)
   AND NOT EXISTS (SELECT FROM dead_letters AS d WHERE d.job_id = j.job_id)
   AND NOT EXISTS (SELECT FROM backfills AS b WHERE b.job_id = j.job_id)
   AND NOT EXISTS (SELECT FROM job_edges AS p WHERE p.parent_job_id = j.job_id AND p.until_at IS NULL)
   AND NOT EXISTS (SELECT FROM job_edges AS c WHERE c.child_job_id = j.job_id AND c.until_at IS NULL)

-- name: remove_jobs
-- Deletes jobs with their versions, closed edges, calendars, overrides and skips.
-- Index: jobs_pkey, job_versions_pkey, job_edges_pkey, job_edges_by_child, job_calendars_by_job, overrides_pkey, skips_by_job.
-- Lock: the rows; lock_ended_jobs has locked the jobs.
WITH versions AS (
    DELETE FROM job_versions WHERE job_id = ANY (%(job_ids)s::uuid[])
), edges AS (
    DELETE FROM job_edges WHERE parent_job_id = ANY (%(job_ids)s::uuid[]) OR child_job_id = ANY (%(job_ids)s::uuid[])
), named AS (
    DELETE FROM job_calendars WHERE job_id = ANY (%(job_ids)s::uuid[])
), moved AS (
    DELETE FROM overrides WHERE job_id = ANY (%(job_ids)s::uuid[])
), skipped AS (
    DELETE FROM skips WHERE job_id = ANY (%(job_ids)s::uuid[])
)
DELETE FROM jobs WHERE job_id = ANY (%(job_ids)s::uuid[])

-- name: find_edited_jobs
-- Returns jobs whose second stored version was in force before an instant: their first one may be needed no more.
-- Index: jobs_pkey, job_versions_pkey. No lock: the versions are looked at again under a lock.
SELECT j.job_id
  FROM jobs AS j
 WHERE j.job_id > %(after)s AND j.job_id <= %(last)s AND j.version > 1 AND j.created_at < %(before)s
   AND (SELECT v.effective_at FROM job_versions AS v WHERE v.job_id = j.job_id ORDER BY v.version OFFSET 1 LIMIT 1) < %(before)s
 ORDER BY j.job_id

-- name: remove_versions
-- Deletes the oldest versions of a job that nothing needs: they were superseded before an instant, and by the longest delay
-- before each instant of a stored run, of the timer, of a pending override and of a backfill.
-- Index: job_versions_pkey, job_runs_by_job, timers_pkey, overrides_pkey; by job in every partition, backfills_by_job.
-- Lock: the rows; lock_backfilled_job has locked the job.
-- Why the longest delay: a run that was created under a version has its instant by then.
DELETE FROM job_versions
 WHERE job_id = %(job_id)s
   AND version IN (
    SELECT o.version
      FROM (SELECT v.version, lead(v.effective_at) OVER (ORDER BY v.version) AS superseded_at
              FROM (SELECT w.version, w.effective_at
                      FROM job_versions AS w
                     WHERE w.job_id = %(job_id)s
                     ORDER BY w.version
                     LIMIT %(limit)s + 1) AS v) AS o
     WHERE o.superseded_at < least(
            %(before)s,
            (SELECT min(r.scheduled_at) FROM job_runs AS r WHERE r.job_id = %(job_id)s) - %(delay)s::interval,
            (SELECT min(f.scheduled_at) FROM finished_runs AS f WHERE f.job_id = %(job_id)s) - %(delay)s::interval,
            (SELECT t.scheduled_at FROM timers AS t WHERE t.job_id = %(job_id)s) - %(delay)s::interval,
            (SELECT min(m.scheduled_at) FROM overrides AS m
              WHERE m.job_id = %(job_id)s AND m.done_at IS NULL) - %(delay)s::interval,
            (SELECT min(b.first_at) FROM backfills AS b WHERE b.job_id = %(job_id)s) - %(delay)s::interval)
       AND o.version < coalesce((SELECT t.version FROM timers AS t WHERE t.job_id = %(job_id)s), o.version + 1))

-- name: delete_old_batch_runs
-- Deletes some runs' names of batches that ended before the retention of runs.
-- Index: workflows_by_end, batch_runs_pkey. Lock: the rows, and the occurrence; one that a resume holds is skipped.
DELETE FROM batch_runs
 WHERE (batch_id, ref) IN (SELECT r.batch_id, r.ref
                             FROM workflows AS w
                             JOIN batch_runs AS r ON r.batch_id = w.root_run_id
                            WHERE w.finished_at < %(before)s::timestamptz
                            LIMIT %(limit)s FOR UPDATE OF w SKIP LOCKED)

-- name: delete_old_run_edges
-- Deletes some edges of batches that ended before the retention of runs.
-- Index: workflows_by_end, run_edges_pkey. Lock: the rows, and the occurrence; one that a resume holds is skipped.
DELETE FROM run_edges
 WHERE (batch_id, parent_run_id, child_run_id) IN (SELECT e.batch_id, e.parent_run_id, e.child_run_id
                                                     FROM workflows AS w
                                                     JOIN run_edges AS e ON e.batch_id = w.root_run_id
                                                    WHERE w.finished_at < %(before)s::timestamptz
                                                    LIMIT %(limit)s FOR UPDATE OF w SKIP LOCKED)

-- name: delete_old_batches
-- Deletes some batches that ended before the retention of runs.
-- Index: workflows_by_end, batches_pkey. Lock: the rows, and the occurrence; one that a resume holds is skipped.
DELETE FROM batches
 WHERE batch_id IN (SELECT b.batch_id
                      FROM workflows AS w
                      JOIN batches AS b ON b.batch_id = w.root_run_id
                     WHERE w.finished_at < %(before)s::timestamptz
                     LIMIT %(limit)s FOR UPDATE OF w SKIP LOCKED)

-- name: delete_old_workflows
-- Deletes some occurrences of workflows that ended before the retention of runs.
-- Index: workflows_by_end, workflows_pkey. Lock: the rows; one that a resume holds is skipped, and one that it has opened stays.
DELETE FROM workflows
 WHERE root_run_id IN (SELECT root_run_id FROM workflows WHERE finished_at < %(before)s::timestamptz
                        ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
   AND finished_at < %(before)s::timestamptz

-- name: probe_timers
-- Returns the database's clock, and the earliest due_at of each of these shards.
-- Index: timers_due, one descent a shard, from its low-water mark. No lock.
SELECT s.shard, earliest.due_at, (SELECT tidewheel_now()) AS now
  FROM unnest(%(shards)s::smallint[], %(marks)s::timestamptz[]) AS s (shard, mark)
  LEFT JOIN LATERAL (
    SELECT t.due_at
      FROM timers AS t
     WHERE t.shard = s.shard AND t.due_at > s.mark AND t.due_at < '9999-12-30' -- no client reads a later one
     ORDER BY t.due_at
     LIMIT 1
  ) AS earliest ON true

-- part: no_freeze_holds(timer)
-- True if no freeze names the version `v` of the timer and ends at the timer's position or later.
-- Index: freezes_pkey, frozen_jobs_pkey for a freeze by jobs. No lock.
-- Why also thawed ones: whether an instant came under a freeze does not depend on when a scheduler looks.
CASE WHEN (SELECT EXISTS (SELECT FROM freezes))
     THEN NOT EXISTS (SELECT FROM freezes AS z WHERE {{tidewheel.transitions.holds(timer)}} OFFSET 0)
     ELSE true END

-- name: lock_due_timers
-- Locks due timers and returns them with the columns of their versions that firing needs.
-- Index: timers_due, job_versions_pkey. Lock: each timer; rows that another transaction holds are skipped.
-- Why: a pause ends at its instant, never ahead of it. A timer that a freeze may hold is returned as held by it. A definition
-- longer than 8 KiB is returned empty: two thousand may have 500 MB.
SELECT t.job_id, t.tenant, t.shard, t.scheduled_at, t.version, v.schedule_json, v.handler, v.queue, v.lane, v.overlap,
       CASE WHEN octet_length(v.definition) <= 8192 THEN v.definition ELSE '' END AS definition, v.has_deadlines, v.concurrency_key,
       v.priority, v.ordering_key, v.passes, v.policy_json, t.due_at, t.catch_up_end,
       CASE WHEN {{no_freeze_holds(t)}} THEN t.hold_reason ELSE 'freeze' END AS hold_reason, t.overridden, t.repeats_until
  FROM unnest(%(shards)s::smallint[], %(since)s::timestamptz[]) AS s (shard, since)
 CROSS JOIN LATERAL (
    SELECT d.job_id, d.tenant, d.shard, d.scheduled_at, d.version, d.due_at, d.catch_up_end, d.hold_reason, d.overridden,
           d.repeats_until
      FROM timers AS d
     WHERE d.shard = s.shard AND d.due_at > s.since AND d.due_at <= %(until)s
       AND (d.hold_reason IS NULL OR d.due_at <= %(now)s)
     ORDER BY d.due_at
     LIMIT %(per_shard)s
       FOR UPDATE SKIP LOCKED
  ) AS t
  JOIN job_versions AS v ON v.job_id = t.job_id AND v.version = t.version

-- name: lock_timer
-- Locks one timer, to fire job by job after a batch has failed.
-- Index: timers_pkey, job_versions_pkey. Lock: the timer, skipped if another transaction holds it.
SELECT t.job_id, t.tenant, t.shard, t.scheduled_at, t.version, v.schedule_json, v.handler, v.queue, v.lane, v.overlap,
       v.definition, v.has_deadlines, v.concurrency_key, v.priority, v.ordering_key, v.passes, v.policy_json, t.due_at, t.catch_up_end,
       CASE WHEN {{no_freeze_holds(t)}} THEN t.hold_reason ELSE 'freeze' END AS hold_reason, t.overridden, t.repeats_until
  FROM timers AS t
  JOIN job_versions AS v ON v.job_id = t.job_id AND v.version = t.version
 WHERE t.job_id = %(job_id)s AND t.due_at <= %(horizon)s AND (t.hold_reason IS NULL OR t.due_at <= %(now)s)
   FOR UPDATE OF t SKIP LOCKED

-- name: find_thaws
-- Returns the freezes that are thawed, and those of which not all jobs and runs written ahead are known to be held.
-- Index: freezes_pkey; a few rows. No lock.
SELECT id, thawed_at FROM freezes WHERE thawed_at IS NOT NULL OR NOT settled ORDER BY id

-- name: has_timer_behind
-- Returns true if a timer may have an undecided instant up to this time, and firing can read it.
-- Index: timers_due, one look a shard and its due timers; job_versions_pkey. No lock.
SELECT EXISTS (SELECT FROM generate_series(0, %(shards)s::integer - 1) AS s (shard)
                CROSS JOIN LATERAL (SELECT FROM timers AS t
                                     WHERE t.shard = s.shard AND t.due_at > '0001-01-02' AND t.due_at <= %(until)s
                                       AND {{tidewheel.transitions.position(t)}} <= %(until)s
                                       AND least(t.scheduled_at, t.catch_up_end, t.repeats_until) > '0001-01-02'
                                       AND greatest(t.scheduled_at, t.catch_up_end, t.repeats_until) < '9999-12-30'
                                       AND EXISTS (SELECT FROM job_versions AS v
                                                    WHERE v.job_id = t.job_id AND v.version = t.version OFFSET 0)
                                     LIMIT 1) AS due)

-- name: find_written_ahead
-- Returns the next jobs with runs that were written ahead of instants under these freezes, each with the begin of the first such freeze.
-- Index: freezes_pkey; job_runs_by_job for a freeze by jobs, else the runs of job_runs_due that are due since its begin;
-- overrides_pkey. No lock.
SELECT n.job_id, min(n.created_at)
  FROM (SELECT r.job_id, z.created_at
          FROM freezes AS z
          JOIN frozen_jobs AS k ON k.freeze_id = z.id
          JOIN job_runs AS r ON r.job_id = k.job_id
         WHERE z.id = ANY (%(ids)s) AND z.by_job
           AND (z.queue IS NULL OR z.queue = r.queue)
           AND r.state = ANY (%(sources)s) AND r.gates & %(holds)s = 0 AND r.job_id > %(after)s AND {{tidewheel.transitions.written_ahead(r)}}
        UNION ALL
        SELECT r.job_id, z.created_at
          FROM freezes AS z
          JOIN job_runs AS r ON r.publish_at >= z.created_at
         WHERE z.id = ANY (%(ids)s) AND NOT z.by_job
           AND (z.queue IS NULL OR z.queue = r.queue) AND (z.tenant IS NULL OR z.tenant = r.tenant)
           AND r.state = ANY (%(sources)s) AND r.gates & %(holds)s = 0 AND r.job_id > %(after)s AND {{tidewheel.transitions.written_ahead(r)}}) AS n
 GROUP BY n.job_id
 ORDER BY n.job_id
 LIMIT %(limit)s

-- name: find_runs_before_edit
-- Returns the runs of these jobs that were written ahead of instants since the begin of a freeze, by a version that an edit has replaced,
-- or has left without a timer.
-- Index: jobs_pkey, job_runs_by_job, overrides_pkey. No lock.
SELECT r.run_id
  FROM unnest(%(job_ids)s::uuid[], %(began)s::timestamptz[]) AS given (job_id, began)
  JOIN jobs AS j ON j.job_id = given.job_id AND j.deleted_at IS NULL
  JOIN job_runs AS r ON r.job_id = j.job_id AND (r.job_version < j.version OR j.schedule_kind IN ('manual', 'after'))
 WHERE r.cause = 'timer' AND r.attempt = 0 AND r.state = ANY (%(sources)s) AND r.gates & %(holds)s = 0
   AND coalesce((SELECT m.moved_to FROM overrides AS m WHERE m.job_id = r.job_id AND m.scheduled_at = r.scheduled_at),
                r.scheduled_at) > greatest(given.began, r.created_at)
 LIMIT %(limit)s

-- name: find_held_timers
-- Returns some timers that a freeze has held, in job_id order, and whether they are released.
-- Index: timers_frozen, job_versions_pkey, freezes_pkey, frozen_jobs_pkey. No lock.
SELECT t.job_id, {{tidewheel.transitions.is_released(t)}}
  FROM (SELECT h.job_id, h.version, h.scheduled_at
          FROM timers AS h
         WHERE h.hold_reason = 'freeze' AND h.job_id > %(after)s
         ORDER BY h.job_id
         LIMIT %(limit)s) AS t
  JOIN job_versions AS v ON v.job_id = t.job_id AND v.version = t.version
 ORDER BY t.job_id

-- name: unhold_timer
-- Leaves the instants of a held timer up to now to firing, past its freezes: they are not read here.
-- Index: timers_pkey. Lock: the row; if another transaction holds it, it is skipped, and found again.
UPDATE timers
   SET due_at = greatest(scheduled_at, '0001-01-02'), catch_up_end = tidewheel_now(), hold_reason = NULL
 WHERE job_id IN (SELECT t.job_id
                    FROM timers AS t
                   WHERE t.job_id = %(job_id)s AND t.hold_reason = 'freeze'
                     FOR UPDATE SKIP LOCKED)

-- name: drop_thawed
-- Deletes thawed freezes that hold no timer any more, and their jobs.
-- Index: freezes_pkey, frozen_jobs_pkey. Lock: the rows.
WITH gone AS (DELETE FROM freezes WHERE id = ANY (%(ids)s) AND thawed_at IS NOT NULL RETURNING id)
DELETE FROM frozen_jobs WHERE freeze_id IN (SELECT id FROM gone)

-- name: begin_settling
-- Records the transactions that may have missed a freeze: all that have an id by now.
-- Index: freezes_pkey. Lock: the rows.
UPDATE freezes SET settles_at = pg_snapshot_xmax(pg_current_snapshot())
 WHERE id = ANY (%(ids)s) AND settles_at IS NULL AND thawed_at IS NULL

-- name: find_settled
-- Returns those of these freezes whose transactions have all ended.
-- Index: freezes_pkey. No lock.
SELECT id FROM freezes WHERE id = ANY (%(ids)s) AND settles_at <= pg_snapshot_xmin(pg_current_snapshot())

-- name: resolve_freezes
-- Adds the jobs of freezes by labels or key prefix that are not in their rows yet.
-- Index: jobs_by_key for a tenant with few of the jobs; frozen_jobs_pkey. Lock: new rows.
INSERT INTO frozen_jobs (freeze_id, job_id, tenant)
SELECT f.id, j.job_id, j.tenant
  FROM freezes AS f
  JOIN jobs AS j ON j.tenant = f.tenant
 WHERE f.id = ANY (%(ids)s) AND f.by_job AND f.thawed_at IS NULL AND j.version > 0 AND j.deleted_at IS NULL
   AND (f.labels IS NULL OR j.labels @> f.labels)
   AND (f.key_prefix IS NULL OR starts_with(j.key, f.key_prefix))
    ON CONFLICT DO NOTHING

-- name: settle_freezes
-- Records that all jobs of these freezes are known, and their runs written ahead retracted. A later statement than these.
-- Index: freezes_pkey. Lock: the rows.
UPDATE freezes SET settled = true WHERE id = ANY (%(ids)s)

-- name: quarantine_timer
-- Disables the timer of a quarantined job, unless an edit came first; an edit enables it again.
-- Index: timers_pkey. Lock: the row.
UPDATE timers
   SET due_at = 'infinity', hold_reason = 'quarantine'
 WHERE job_id = %(job_id)s AND version = %(version)s AND scheduled_at = %(scheduled_at)s AND due_at < 'infinity'
RETURNING tenant, shard, version

-- name: postpone_timer
-- Lets a timer be tried again later, unless an edit or another scheduler came first.
-- Index: timers_pkey. Lock: the row.
-- Why due_at: a pause that was set meanwhile keeps its end.
UPDATE timers
   SET due_at = %(until)s
 WHERE job_id = %(job_id)s AND version = %(version)s AND scheduled_at = %(scheduled_at)s AND due_at = %(due_at)s

-- name: quarantine_job
-- Records the error of a job that could not be fired.
-- No index, no lock.
INSERT INTO quarantine (kind, tenant, job_id, error, created_at)
VALUES ('job', %(tenant)s, %(job_id)s, %(error)s, tidewheel_now())

-- name: lock_quarantined_timers
-- Locks the timers of jobs to free.
-- Index: timers_pkey. Lock: each timer, in job_id order; waits for an edit or a release.
-- Why: alone, since a transaction that it waited for may have released or paused the job.
SELECT job_id FROM timers WHERE job_id = ANY (%(job_ids)s::uuid[]) ORDER BY job_id FOR UPDATE

-- name: read_pause_ends
-- Returns the ends of these jobs' pauses.
-- Index: jobs_pkey. No lock: a pause changes under its timer's lock, which the caller has.
-- Why not due_at: firing may have postponed the timer of a pause that had ended.
SELECT job_id, paused_until FROM jobs WHERE job_id = ANY (%(job_ids)s) AND paused_until IS NOT NULL

-- name: resume_jobs
-- Resumes jobs whose paused_until has passed.
-- Index: jobs_pkey. Lock: the jobs' rows, in job_id order, after their timers'.
UPDATE jobs AS j
   SET paused = false, paused_at = NULL, paused_by = NULL, pause_reason = NULL, paused_until = NULL, consecutive_failures = 0,
       updated_at = %(now)s
 WHERE j.job_id = ANY (%(job_ids)s) AND j.paused
RETURNING j.job_id, j.tenant, j.key, j.shard, j.version

-- name: read_key
-- Returns a job's key, for the event job.quarantined.
-- Index: jobs_pkey. No lock.
SELECT key FROM jobs WHERE job_id = %(job_id)s

-- name: lock_tzdata
-- Returns the tzdata version of the timers, or the progress of a change to another one, and the database's clock.
-- Index: settings_pkey. Lock: the row, before any timer; skipped if another scheduler holds it.
SELECT value, tidewheel_now() FROM settings WHERE name = 'tzdata' FOR UPDATE SKIP LOCKED

-- name: store_tzdata
-- Stores the progress of a change of tzdata after a batch of timers.
-- Index: settings_pkey. Lock: the row, already locked.
UPDATE settings SET value = %(value)s WHERE name = 'tzdata'

-- name: record_tzdata_change
-- Appends a change of tzdata to the list that an audit shows.
-- Index: settings_pkey. Lock: the row, after that of tzdata.
INSERT INTO settings (name, value)
VALUES ('tzdata_changes', jsonb_build_array(%(change)s::jsonb))
    ON CONFLICT (name) DO UPDATE SET value = settings.value || excluded.value

-- name: scan_timers
-- Returns some timers in the order of their jobs.
-- Index: timers_pkey. No lock.
SELECT job_id FROM timers WHERE job_id > %(after)s ORDER BY job_id LIMIT %(limit)s

-- name: read_cron_timers
-- Returns those of these timers that have a cron schedule and a future instant.
-- Index: timers_pkey, job_versions_pkey. No lock.
SELECT t.job_id, t.tenant, t.shard, t.scheduled_at, t.version, v.schedule_json, v.handler, v.queue, v.lane, v.overlap,
       v.definition, v.has_deadlines, v.concurrency_key, v.priority, v.ordering_key, v.passes, v.policy_json, nullif(t.due_at, 'infinity') AS due_at, t.catch_up_end, t.hold_reason, t.overridden
  FROM timers AS t
  JOIN job_versions AS v ON v.job_id = t.job_id AND v.version = t.version
 WHERE t.job_id = ANY (%(job_ids)s)
   AND t.scheduled_at > %(now)s
   AND t.hold_reason IS DISTINCT FROM 'quarantine'
   AND v.schedule_json LIKE '%%"kind":"cron"%%'

-- name: read_written_ahead
-- Returns the future instants of these jobs whose runs exist.
-- Index: job_runs_by_job. No lock.
SELECT job_id, scheduled_at FROM job_runs
 WHERE job_id = ANY (%(job_ids)s) AND cause = 'timer' AND scheduled_at > %(now)s

-- name: lock_rescheduled_timers
-- Locks the timers to reschedule.
-- Index: timers_pkey. Lock: each timer, in job_id order; waits for a firing or an edit.
-- Why: alone, since a transaction that it waited for may have stored another version.
SELECT job_id FROM timers WHERE job_id = ANY (%(job_ids)s) ORDER BY job_id FOR UPDATE

-- name: lock_rescheduled_jobs
-- Locks the jobs of rescheduled timers, since a job that can never fire again is finished.
-- Index: jobs_pkey. Lock: each job, in job_id order, after its timer and before its open runs.
SELECT job_id FROM jobs WHERE job_id = ANY (%(job_ids)s) ORDER BY job_id FOR NO KEY UPDATE

-- name: delete_moves
-- Deletes moves of instants that are no occurrences any more.
-- Index: overrides_pkey. Lock: the rows, under their timers' locks.
DELETE FROM overrides AS v
 USING unnest(%(job_ids)s::uuid[], %(instants)s::timestamptz[]) AS gone (job_id, scheduled_at)
 WHERE v.job_id = gone.job_id AND v.scheduled_at = gone.scheduled_at

-- name: find_missing_timers
-- Returns jobs of a shard that should have a timer and have none: something outside Tidewheel deleted it.
-- Index: jobs_pkey (a shard is a range of job_id), timers_pkey; once a minute, one shard. No lock.
-- Why: the two indexes are compared first. Of ten million jobs one shard has 160,000, whose rows are spread over the table.
WITH without_timer AS MATERIALIZED (
    SELECT j.job_id
      FROM jobs AS j
     WHERE j.job_id BETWEEN %(first)s AND %(last)s
       AND NOT EXISTS (
            SELECT FROM timers AS t WHERE t.job_id = j.job_id AND t.job_id BETWEEN %(first)s AND %(last)s)
)
SELECT found.job_id
  FROM without_timer
 CROSS JOIN LATERAL (
    SELECT j.job_id, j.schedule_kind, j.deleted_at, j.finished_at, j.paused FROM jobs AS j WHERE j.job_id = without_timer.job_id LIMIT 1
  ) AS found
 WHERE found.schedule_kind IN ('once', 'interval', 'fixed_delay', 'cron')
   AND found.deleted_at IS NULL AND found.finished_at IS NULL AND NOT found.paused
 LIMIT 1000

-- name: release_held_chains
-- Releases timers of fixed_delay jobs that wait for a run that is not open, and returns the jobs.
-- Index: jobs_fixed_delay, timers_pkey, job_runs_by_job; once a minute. Lock: the timers, skipped if held.
-- Why: the run is that of the timer's instant. Runs from before a deletion of the job may be open too.
WITH stuck AS (
    SELECT t.job_id
      FROM jobs AS j
      JOIN timers AS t USING (job_id)
     WHERE j.schedule_kind = 'fixed_delay' AND j.deleted_at IS NULL AND t.hold_reason = 'run'
       AND NOT EXISTS (SELECT FROM deferred_effects AS l WHERE l.job_id = t.job_id)
       AND NOT EXISTS (SELECT FROM job_runs AS o
                        WHERE o.job_id = t.job_id AND o.scheduled_at = t.scheduled_at AND o.cause = 'timer')
       FOR UPDATE OF t SKIP LOCKED
)
UPDATE timers AS t
   SET hold_reason = NULL, scheduled_at = tidewheel_now(), due_at = tidewheel_now()
  FROM stuck
 WHERE t.job_id = stuck.job_id
   AND NOT EXISTS (SELECT FROM job_runs AS o
                    WHERE o.job_id = t.job_id AND o.scheduled_at = t.scheduled_at AND o.cause = 'timer')
RETURNING t.job_id

-- name: lock_job_without_timer
-- Locks a job without a timer and returns it, unless an edit has restored the timer.
-- Index: jobs_pkey, timers_pkey. Lock: the job's row.
SELECT j.tenant, j.shard, j.version, v.schedule_json,
       (SELECT max(r.scheduled_at) FROM runs AS r WHERE r.job_id = j.job_id AND r.cause = 'timer') AS last_at,
       j.updated_at, (SELECT tidewheel_now()) AS now
  FROM jobs AS j
  JOIN job_versions AS v ON v.job_id = j.job_id AND v.version = j.version
 WHERE j.job_id = %(job_id)s
   AND j.deleted_at IS NULL AND j.finished_at IS NULL AND NOT j.paused
   AND NOT EXISTS (SELECT FROM timers AS t WHERE t.job_id = j.job_id)
   FOR UPDATE OF j

-- name: repair_timer
-- Inserts the missing timer of a job, with its overrides: a moved occurrence may be due before the next one.
-- Index: timers_pkey, overrides_pkey. Lock: the new row.
INSERT INTO timers (job_id, tenant, shard, due_at, scheduled_at, version, overridden, repeats_until)
SELECT %(job_id)s, %(tenant)s, %(shard)s, least(%(scheduled_at)s::timestamptz, pending.moved_to), %(scheduled_at)s,
       %(version)s, pending.overrides > 0, (SELECT tidewheel_now()) + interval '5 minutes'
  FROM (
    SELECT count(*) AS overrides, min(v.moved_to) FILTER (WHERE v.done_at IS NULL) AS moved_to
      FROM overrides AS v
     WHERE v.job_id = %(job_id)s
       AND (v.scheduled_at >= %(scheduled_at)s OR (v.kind = 'move' AND v.done_at IS NULL))
  ) AS pending
ON CONFLICT (job_id) DO NOTHING

-- name: find_cancellations
-- Returns the cancellations by filter that are not finished; those of deleted tenants are worked off elsewhere.
-- Index: cancellations_open, which holds only these. No lock.
SELECT id, tenant, job_id, labels IS NOT NULL AS by_labels, queue, lane, handler, cause, created_before, include_started,
       coalesce(reason, created_by) AS reason
  FROM cancellations
 WHERE finished_at IS NULL AND created_by IS DISTINCT FROM %(deletion)s
 ORDER BY id
 LIMIT 100

-- name: next_cancelled_job
-- Returns the next job of a cancellation by labels that has open runs.
-- Index: cancelled_jobs_pkey, job_runs_by_job. No lock.
SELECT j.job_id
  FROM cancelled_jobs AS j
 WHERE j.cancellation_id = %(id)s AND j.job_id > %(after)s
   AND (%(job_id)s::uuid IS NULL OR j.job_id = %(job_id)s)
   AND EXISTS (SELECT FROM job_runs AS o WHERE o.job_id = j.job_id OFFSET 0)
 ORDER BY j.job_id
 LIMIT 1

-- name: find_cancelled_of_job
-- Returns some runs of one job that a cancellation matches, and the last run that was scanned.
-- Index: job_runs_by_job, scanned from the last position. No lock: each run is locked when it ends.
SELECT s.run_id, s.job_id, greatest(least(s.scheduled_at, '9999-12-30'), '0001-01-02') AS scheduled_at, s.state, s.cause, s.attempt, s.executor_id, fits.named,
       s.position = %(scan_limit)s AS last_scanned
  FROM (
    SELECT o.*, row_number() OVER (ORDER BY o.scheduled_at, o.run_id) AS position
      FROM job_runs AS o
     WHERE o.job_id = %(job_id)s AND (o.scheduled_at, o.run_id) > (%(after_at)s, %(after_id)s)
     ORDER BY o.scheduled_at, o.run_id
     LIMIT %(scan_limit)s
  ) AS s
 CROSS JOIN LATERAL (
    SELECT s.tenant = %(tenant)s AND s.created_at <= %(created_before)s AND s.state = ANY (%(states)s)
           AND (%(include_started)s OR s.attempt = 0)
           AND (%(queue)s::text IS NULL OR s.queue = %(queue)s)
           AND (%(lane)s::text IS NULL OR s.lane = %(lane)s)
           AND (%(handler)s::text IS NULL OR s.handler = %(handler)s)
           AND (%(cause)s::text IS NULL OR s.cause = %(cause)s) AS named
  ) AS fits
 WHERE fits.named OR s.position = %(scan_limit)s
 ORDER BY s.scheduled_at, s.run_id
 LIMIT %(limit)s

-- name: find_cancelled
-- Returns the same of all jobs.
-- Index: job_runs_pkey, scanned from the last position. No lock: each run is locked when it ends.
SELECT s.run_id, s.job_id, greatest(least(s.scheduled_at, '9999-12-30'), '0001-01-02') AS scheduled_at, s.state, s.cause, s.attempt, s.executor_id, fits.named,
       s.position = %(scan_limit)s AS last_scanned
  FROM (
    SELECT o.*, row_number() OVER (ORDER BY o.run_id) AS position
      FROM job_runs AS o
     WHERE o.run_id > %(after_id)s
     ORDER BY o.run_id
     LIMIT %(scan_limit)s
  ) AS s
 CROSS JOIN LATERAL (
    SELECT s.tenant = %(tenant)s AND s.created_at <= %(created_before)s AND s.state = ANY (%(states)s)
           AND (%(include_started)s OR s.attempt = 0)
           AND (%(queue)s::text IS NULL OR s.queue = %(queue)s)
           AND (%(lane)s::text IS NULL OR s.lane = %(lane)s)
           AND (%(handler)s::text IS NULL OR s.handler = %(handler)s)
           AND (%(cause)s::text IS NULL OR s.cause = %(cause)s) AS named
  ) AS fits
 WHERE fits.named OR s.position = %(scan_limit)s
 ORDER BY s.run_id
 LIMIT %(limit)s

-- name: lock_cancellation
-- Locks a cancellation for a batch of its runs.
-- Index: cancellations_pkey. Lock: the row, skipped if another scheduler holds it.
SELECT id FROM cancellations WHERE id = %(id)s AND finished_at IS NULL FOR UPDATE SKIP LOCKED

-- name: lock_cancelled_chains
-- Locks the timers of fixed_delay jobs whose runs are about to end, before the runs.
-- Index: timers_pkey, jobs_pkey. Lock: each timer, in job_id order; waits for an edit.
SELECT t.job_id
  FROM timers AS t
 WHERE t.job_id = ANY (%(job_ids)s::uuid[])
   AND EXISTS (SELECT FROM jobs AS j WHERE j.job_id = t.job_id AND j.schedule_kind = 'fixed_delay')
 ORDER BY t.job_id
   FOR UPDATE OF t

-- name: lock_cancelled
-- Locks those of these runs that are still running.
-- Index: job_runs_pkey. Lock: each row in run_id order; rows that another transaction holds (an end, a release) are skipped.
SELECT run_id FROM job_runs
 WHERE run_id = ANY (%(run_ids)s::uuid[]) AND state = ANY (%(states)s)
 ORDER BY run_id
   FOR UPDATE SKIP LOCKED

-- name: count_cancelled
-- Adds to the number of runs that a cancellation has ended or requested to stop.
-- Index: cancellations_pkey. Lock: the row, already locked.
UPDATE cancellations SET cancelled_count = cancelled_count + %(more)s WHERE id = %(id)s

-- name: finish_cancellation
-- Finishes a cancellation that matches no open run. Claims do not consult it any more.
-- Index: cancellations_pkey. Lock: the row.
UPDATE cancellations SET finished_at = tidewheel_now() WHERE id = %(id)s AND finished_at IS NULL

-- name: delete_cancelled_jobs
-- Deletes the jobs of a finished cancellation.
-- Index: cancelled_jobs_pkey. Lock: the rows.
DELETE FROM cancelled_jobs WHERE cancellation_id = %(id)s

-- name: find_deferred_effects
-- Returns the runs of some deferred effects.
-- Index: deferred_effects_pkey. No lock: each row is locked when it is applied.
SELECT run_id FROM deferred_effects WHERE run_id <> ALL (%(left)s::uuid[]) ORDER BY run_id LIMIT %(limit)s

-- name: find_pending_cancels
-- Returns pending cancels with their runs; a run that has ended has no job_id.
-- Index: pending_cancels_pkey, job_runs_pkey. No lock: each run is locked when it ends.
SELECT w.id, w.run_id, w.reason, o.job_id, o.state, o.cause, o.attempt, o.executor_id
  FROM pending_cancels AS w
  LEFT JOIN job_runs AS o ON o.run_id = w.run_id
 WHERE w.id > %(after)s
 ORDER BY w.id
 LIMIT %(limit)s

-- name: delete_pending_cancels
-- Deletes pending cancels that were applied or came too late.
-- Index: pending_cancels_pkey. Lock: the rows; waits for another scheduler that deletes the same row.
DELETE FROM pending_cancels WHERE id = ANY (%(ids)s)

-- name: scan_active_runs
-- Returns some active runs that have waiters, and whether their run is still open or its occurrence keeps the place.
-- Index: active_runs_waiting, job_runs_pkey. No lock: the result is checked again under a lock.
SELECT w.job_id, w.held_by IS NOT NULL OR EXISTS (SELECT FROM job_runs AS o WHERE o.run_id = w.run_id OFFSET 0)
  FROM (
    SELECT t.job_id, t.run_id, t.held_by FROM active_runs AS t WHERE t.has_waiters AND t.job_id > %(after)s ORDER BY t.job_id LIMIT %(limit)s
  ) AS w
 ORDER BY w.job_id

-- name: lock_active_runs
-- Locks active runs whose holder may be gone.
-- Index: active_runs_pkey. Lock: each row, in job_id order; rows that another transaction holds are skipped, since it transfers
-- them.
SELECT job_id FROM active_runs WHERE job_id = ANY (%(job_ids)s) ORDER BY job_id FOR UPDATE SKIP LOCKED

-- name: find_unmarked_waiters
-- Returns jobs of a shard with buffered runs whose active run is not marked has_waiters: a manual change.
-- Index: job_runs_by_job (a shard is a range of job_id), active_runs_waiting; once a minute, one shard. No lock.
SELECT DISTINCT o.job_id, o.tenant
  FROM job_runs AS o
 WHERE o.job_id BETWEEN %(first)s AND %(last)s
   AND o.state = %(buffered)s
   AND o.waits_for IS NULL
   AND NOT EXISTS (SELECT FROM active_runs AS t WHERE t.job_id = o.job_id AND t.has_waiters)
 LIMIT 1000

-- part: mine(k)
-- The keys whose ids fall into these shards.
mod(mod(k.key_id, %(count)s::bigint) + %(count)s::bigint, %(count)s::bigint) = ANY (%(shards)s::integer[])

-- name: find_woken_keys
-- Returns the keys whose waiting runs may get a place now, the longest due first, without those left out.
-- Index: run_keys_wake. No lock: the result is checked again under a lock.
SELECT k.key_id
  FROM run_keys AS k
 WHERE k.wake_at <= (SELECT tidewheel_now())
   AND k.key_id <> ALL (%(left)s::bigint[])
   AND {{mine(k)}}
 ORDER BY k.wake_at
 LIMIT %(limit)s

-- name: probe_keys
-- Returns the seconds until the next key is due, of those not left out; no row if none is.
-- Index: run_keys_wake. No lock.
SELECT extract(epoch FROM k.wake_at - (SELECT tidewheel_now()))::float8
  FROM run_keys AS k
 WHERE k.wake_at < '9999-12-30'
   AND k.key_id <> ALL (%(left)s::bigint[])
   AND {{mine(k)}}
 ORDER BY k.wake_at
 LIMIT 1

-- part: idle(k)
-- The condition that nothing uses a key. With a rate whose starts are not all free it is in use: without its row they were.
k.running = 0 AND NOT k.has_waiters AND (k.key <> '' OR k.at_once IS NULL) AND (k.tat IS NULL OR k.tat <= (SELECT tidewheel_now()))
AND k.used_at < (SELECT tidewheel_now()) - %(idle_after)s::interval

-- name: scan_keys
-- Returns the position up to which keys were read, and the keys up to there: whether each is idle, has waiting runs, and
-- whether its counters differ from its runs. Reads so many keys and so many open runs.
-- Index: run_keys_pkey, job_runs_by_key. No lock: checked again under a lock.
-- Why: the last key of a full read may have more runs, so the next read begins with it. One that fills a read is left
-- out. An end in a client's own transaction keeps its place until its deferred effect is applied.
WITH listed AS MATERIALIZED (
    SELECT * FROM run_keys WHERE key_id > %(after)s ORDER BY key_id LIMIT %(limit)s
), opened AS MATERIALIZED (
    SELECT r.key_id, r.gates, r.started_at
      FROM job_runs AS r
     WHERE r.key_id > %(after)s AND r.key_id <= (SELECT max(l.key_id) FROM listed AS l)
     ORDER BY r.key_id
     LIMIT %(budget)s
), reached AS MATERIALIZED (
    SELECT CASE WHEN count(*) < %(budget)s THEN (SELECT max(l.key_id) FROM listed AS l)
                WHEN min(o.key_id) = max(o.key_id) THEN max(o.key_id)
                ELSE max(o.key_id) - 1 END AS key_id,
           CASE WHEN count(*) = %(budget)s AND min(o.key_id) = max(o.key_id) THEN max(o.key_id) END AS left_out
      FROM opened AS o
), held AS MATERIALIZED (
    SELECT o.key_id, count(*) AS places, count(*) FILTER (WHERE o.started_at IS NULL) AS unclaimed
      FROM opened AS o
     WHERE o.gates & %(holds)s <> 0
     GROUP BY o.key_id
), deferred AS MATERIALIZED (
    SELECT d.key_id, count(*) AS places FROM deferred_effects AS d WHERE d.key_id IS NOT NULL GROUP BY d.key_id
)
SELECT reached.key_id, k.key_id, {{idle(k)}}, k.has_waiters,
       k.key_id IS DISTINCT FROM reached.left_out AND k.key <> ''
       AND (k.running <> coalesce(held.places, 0) + coalesce(deferred.places, 0)
            OR k.unclaimed <> coalesce(held.unclaimed, 0))
  FROM reached
  LEFT JOIN listed AS k ON k.key_id <= reached.key_id
  LEFT JOIN held ON held.key_id = k.key_id
  LEFT JOIN deferred ON deferred.key_id = k.key_id

-- name: remove_idle_keys
-- Deletes keys that are idle still.
-- Index: run_keys_pkey. Lock: each row, locked rows are skipped: another transaction uses them.
DELETE FROM run_keys
 WHERE key_id IN (SELECT k.key_id
                    FROM run_keys AS k
                   WHERE k.key_id = ANY (%(key_ids)s::bigint[])
                     AND {{idle(k)}}
                   ORDER BY k.key_id
                     FOR UPDATE SKIP LOCKED)

-- name: lock_keys
-- Locks keys to repair.
-- Index: run_keys_pkey. Lock: each key in key_id order.
SELECT key_id FROM run_keys WHERE key_id = ANY (%(key_ids)s::bigint[]) ORDER BY key_id FOR UPDATE

-- name: repair_keys
-- Sets the counters of keys to the numbers of runs that hold a place, and of those that have not started.
-- Index: run_keys_pkey, job_runs_by_key. Lock: rows that lock_keys has locked.
-- Why: a later statement than the lock: a transaction that changes places of a key holds its row until its commit.
WITH deferred AS MATERIALIZED (
    SELECT d.key_id, count(*) AS places FROM deferred_effects AS d WHERE d.key_id IS NOT NULL GROUP BY d.key_id
)
UPDATE run_keys AS k
   SET running = held.places + held.deferred, unclaimed = held.unclaimed
  FROM (
    SELECT w.key_id, o.places, o.unclaimed,
           coalesce((SELECT d.places FROM deferred AS d WHERE d.key_id = w.key_id), 0) AS deferred
      FROM unnest(%(key_ids)s::bigint[]) AS w (key_id)
     CROSS JOIN LATERAL (
        SELECT count(*) AS places, count(*) FILTER (WHERE r.started_at IS NULL) AS unclaimed
          FROM job_runs AS r
         WHERE r.key_id = w.key_id AND r.gates & %(holds)s <> 0
     ) AS o
  ) AS held
 WHERE k.key_id = held.key_id AND (k.running <> held.places + held.deferred OR k.unclaimed <> held.unclaimed)

-- name: find_tenant_keys
-- Returns the tenants that limit their runs in flight, or whose row counts some still; true where that row is missing or has
-- another limit.
-- Index: run_keys_by_key, and a row for each tenant; once a minute. No lock: the result is checked again under a lock.
SELECT t.tenant, k.key_id IS NULL OR k.at_once IS DISTINCT FROM t.in_flight
  FROM tenants AS t
  LEFT JOIN run_keys AS k ON k.tenant = t.tenant AND k.key COLLATE "C" = ''
 WHERE t.in_flight IS NOT NULL OR k.key_id IS NOT NULL
 ORDER BY t.tenant

-- name: restore_tenant_key
-- Writes the row that counts a tenant's runs in flight, with the tenant's limit.
-- Index: tenants_pkey, run_keys_pkey. Lock: the tenant for share, then the key, as a change of the limit.
INSERT INTO run_keys (key_id, tenant, key, at_once, burst)
SELECT %(key_id)s, t.tenant, '', t.in_flight, 1 FROM tenants AS t WHERE t.tenant = %(tenant)s FOR SHARE
    ON CONFLICT (key_id) DO UPDATE SET at_once = excluded.at_once

-- name: lock_tenant_repair
-- Returns a row if no other scheduler repairs the counts of tenants until this transaction ends.
-- Index: settings_pkey. Lock: the row of the number of shards, which never changes, skipped if it is taken.
-- Why: two schedulers that measure the same difference would add it twice.
SELECT 1 FROM settings WHERE name = 'shards' FOR NO KEY UPDATE SKIP LOCKED

-- name: measure_tenant_key
-- Returns the number of a tenant's open runs, what its counters lack, and true if runs wait unmarked. Reads so many runs.
-- Index: run_keys_pkey, job_runs_by_tenant, job_runs_waiting; deferred_effects is nearly empty. No lock.
-- Why one statement: it sees the counters and the runs of the same commits.
SELECT held.runs, (held.places + deferred.places - k.running)::integer, (held.unclaimed - k.unclaimed)::integer,
       NOT k.has_waiters AND EXISTS (SELECT FROM job_runs AS w WHERE w.waits_for = k.key_id)
  FROM run_keys AS k
 CROSS JOIN (
    SELECT count(*) AS runs, count(*) FILTER (WHERE o.holds) AS places,
           count(*) FILTER (WHERE o.holds AND o.started_at IS NULL) AS unclaimed
      FROM (SELECT r.gates & %(holds)s <> 0 AS holds, r.started_at
              FROM job_runs AS r
             WHERE r.tenant = %(tenant)s AND r.shard >= 0
             LIMIT %(limit)s) AS o
 ) AS held
 CROSS JOIN (
    SELECT count(*) AS places FROM deferred_effects AS d WHERE d.tenant = %(tenant)s AND d.held_tenant
 ) AS deferred
 WHERE k.key_id = %(key_id)s

-- name: repair_tenant_key
-- Adds to the counters of a tenant's row what they lack, and marks that runs wait.
-- Index: run_keys_pkey, job_runs_waiting. Lock: the row; waits for a claim or an end under way.
-- Why a difference: claims and ends change the counters and the runs alike, so it stays what was measured.
UPDATE run_keys AS k
   SET running = greatest(k.running + %(places)s::integer, 0), unclaimed = greatest(k.unclaimed + %(unclaimed)s::integer, 0),
       has_waiters = k.has_waiters OR EXISTS (SELECT FROM job_runs AS w WHERE w.waits_for = k.key_id)
 WHERE k.key_id = %(key_id)s

-- name: find_tenants_to_count
-- Returns the tenants whose limit of runs in flight has begun, and whether that was long ago.
-- Index: tenants_to_count, empty most of the time. No lock.
SELECT tenant, in_flight_since < tidewheel_now() - %(counted_for)s::interval
  FROM tenants
 WHERE in_flight_since IS NOT NULL AND in_flight IS NOT NULL

-- name: end_count
-- Records that the started runs of a tenant are counted, unless its limit has begun again.
-- Index: tenants_pkey. Lock: the row.
UPDATE tenants
   SET in_flight_since = NULL
 WHERE tenant = %(tenant)s AND in_flight_since < tidewheel_now() - %(counted_for)s::interval

-- name: drop_stale_signals
-- Deletes signals of ended runs that no executor has read: it has died.
-- No index: a handful of rows, once a minute. Lock: the rows.
DELETE FROM signals WHERE kind = %(terminate)s AND created_at < tidewheel_now() - %(stale_after)s::interval

-- name: find_open_backfills
-- Returns running backfills of these shards, and paused ones whose job was deleted.
-- Index: backfills_open, job_versions_pkey. No lock.
SELECT b.backfill_id
  FROM backfills AS b
 WHERE b.state IN ('running', 'paused')
   AND b.shard = ANY (%(shards)s)
   AND (b.state = 'running'
        OR EXISTS (SELECT FROM job_versions AS v
                    WHERE v.job_id = b.job_id AND v.version >= b.job_version AND v.retired_at IS NOT NULL))
 ORDER BY b.backfill_id
 LIMIT 1000

-- name: lock_open_backfill
-- Locks an open backfill and returns it.
-- Index: backfills_pkey. Lock: the row, skipped if a request or another scheduler holds it.
SELECT backfill_id, tenant, job_id, shard, job_version, state, first_at, last_at, what, versions, overlap, newest_first,
       max_concurrent, occurrences, expected_count, cursor_at, request_id, requested_from, traceparent, reason, created_at,
       created_count, existing_count
  FROM backfills
 WHERE backfill_id = %(backfill_id)s AND state IN ('running', 'paused')
   FOR UPDATE SKIP LOCKED

-- name: lock_backfilled_job
-- Locks a backfill's job, so that no other backfill finds the same instant missing and no request deletes the job.
-- Index: jobs_pkey. Lock: the row, skipped if an edit or a deletion holds it; triggers go on.
SELECT job_id FROM jobs WHERE job_id = %(job_id)s FOR NO KEY UPDATE SKIP LOCKED

-- name: read_backfill_progress
-- Returns the progress of a backfill: its job's key, whether the job was deleted, and the number of its open runs. The run
-- of a root counts until its occurrence has ended.
-- Index: jobs_pkey, job_versions_pkey, job_runs_pkey; releases_by_root and workflows_open, if there are many. No lock.
SELECT j.key,
       EXISTS (SELECT FROM job_versions AS v
                WHERE v.job_id = j.job_id AND v.version >= %(job_version)s AND v.retired_at IS NOT NULL) AS gone,
       (SELECT count(*)
          FROM (SELECT o.run_id
                  FROM job_runs AS o
                 WHERE o.run_id BETWEEN %(first_run_id)s AND %(last_run_id)s
                   AND o.job_id = %(job_id)s AND o.cause = 'backfill'
                UNION
                SELECT r.root_run_id
                  FROM releases AS r
                 WHERE r.root_run_id BETWEEN %(first_run_id)s AND %(last_run_id)s AND r.run_id = r.root_run_id
                   AND r.job_id = %(job_id)s
                UNION
                SELECT w.root_run_id
                  FROM workflows AS w
                 WHERE w.root_run_id BETWEEN %(first_run_id)s AND %(last_run_id)s AND w.finished_at IS NULL
                   AND w.root_job_id = %(job_id)s) AS unended) AS open,
       (SELECT tidewheel_now()) AS now
  FROM jobs AS j
 WHERE j.job_id = %(job_id)s

-- name: read_version_facts
-- Returns the columns of versions that their runs need.
-- Index: job_versions_pkey. No lock: versions do not change.
SELECT version, handler, queue, lane, overlap, definition, concurrency_key, priority, ordering_key, passes
  FROM job_versions
 WHERE job_id = %(job_id)s AND version = ANY (%(versions)s)

-- name: advance_backfill
-- Adds a batch to a backfill's counts and moves its cursor.
-- Index: backfills_pkey. Lock: the row, already locked.
UPDATE backfills
   SET created_count = created_count + %(created)s, existing_count = existing_count + %(existing)s, cursor_at = %(cursor_at)s
 WHERE backfill_id = %(backfill_id)s

-- name: end_backfill
-- Sets the state of a backfill: finished, cancelled with its job, or paused by an error.
-- Index: backfills_pkey. Lock: the row, already locked.
UPDATE backfills
   SET state = %(state)s, reason = coalesce(%(reason)s, reason), finished_at = %(finished_at)s
 WHERE backfill_id = %(backfill_id)s

-- name: find_stalled_workflows
-- Returns open occurrences of graphs of a shard without a release, all of whose open runs are blocked; or those of these occurrences.
-- A run that is about to be cancelled is not: its end writes a release.
-- Index: workflows_open, releases_by_root, job_runs_by_workflow, pending_cancels_by_run; once a minute, one shard. No lock: one
-- snapshot, and the result is checked again under the occurrence's lock.
SELECT w.root_run_id
  FROM workflows AS w
 WHERE w.finished_at IS NULL
   AND w.shard = %(shard)s
   AND w.state <> 'paused'
   AND w.root_job_id <> %(no_job)s
   AND (%(roots)s::uuid[] IS NULL OR w.root_run_id = ANY (%(roots)s::uuid[]))
   AND NOT EXISTS (SELECT FROM releases AS r WHERE r.root_run_id = w.root_run_id)
   AND NOT EXISTS (
        SELECT FROM job_runs AS o
         WHERE o.workflow_run_id = w.root_run_id
           AND (o.state <> %(blocked)s OR EXISTS (SELECT FROM pending_cancels AS p WHERE p.run_id = o.run_id)))
 ORDER BY w.root_run_id
 LIMIT 100

-- name: find_lost_places
-- Returns the places of a shard's roots that occurrences hold which have ended.
-- Index: active_runs_held, workflows_pkey. No lock: an occurrence that has ended holds no place again under this run.
SELECT t.job_id, t.run_id
  FROM active_runs AS t
 WHERE t.held_by IS NOT NULL
   AND t.job_id BETWEEN %(first)s AND %(last)s
   AND NOT EXISTS (SELECT FROM workflows AS w WHERE w.root_run_id = t.held_by AND w.finished_at IS NULL)

-- name: find_overdue_workflows
-- Returns some occurrences whose deadline has passed, the longest ago first, without those that are left for now.
-- Index: workflows_deadline. No lock: the deadline is applied under the lock of the row.
SELECT w.root_run_id
  FROM workflows AS w
 WHERE w.deadline_at <= (SELECT tidewheel_now()) AND w.state IN ('open', 'paused') AND w.root_run_id <> ALL (%(left)s::uuid[])
 ORDER BY w.deadline_at
 LIMIT %(limit)s

-- name: probe_deadlines
-- Returns the database's clock, and the earliest deadline within `ahead` of a run that no executor owns.
-- Index: job_runs_deadline. No lock.
-- Why: few runs near their deadline are owned by an executor, since it ends them itself.
SELECT (SELECT tidewheel_now()),
       (SELECT greatest(o.deadline_at, '0001-01-02')
          FROM job_runs AS o
         WHERE o.deadline_at <= (SELECT tidewheel_now()) + %(ahead)s::interval
           AND o.state = ANY (%(states)s::text[])
           AND o.run_id <> ALL (%(left)s::uuid[])
         ORDER BY o.deadline_at
         LIMIT 1)

-- name: find_overdue_runs
-- Returns some runs whose deadline has passed, the longest ago first.
-- Index: job_runs_deadline. No lock.
SELECT o.run_id, o.job_id, o.job_version, o.cause
  FROM job_runs AS o
 WHERE o.deadline_at <= (SELECT tidewheel_now())
   AND o.state = ANY (%(states)s::text[])
   AND o.run_id <> ALL (%(left)s::uuid[])
 ORDER BY o.deadline_at
 LIMIT %(limit)s

-- name: lock_overdue_runs_timers
-- Locks the timers of fixed_delay jobs whose runs may end, before the runs.
-- Index: timers_pkey. Lock: each timer, in job_id order; waits for an edit.
SELECT job_id FROM timers WHERE job_id = ANY (%(job_ids)s::uuid[]) ORDER BY job_id FOR UPDATE

-- name: lock_overdue_runs_jobs
-- Locks jobs whose consecutive failures are counted, after the timers and before the runs.
-- Index: jobs_pkey. Lock: each job, in job_id order; waits for an edit.
SELECT job_id FROM jobs WHERE job_id = ANY (%(job_ids)s::uuid[]) ORDER BY job_id FOR NO KEY UPDATE

-- name: lock_overdue_runs
-- Locks and returns those of these runs that no executor owns and whose deadline has passed.
-- Index: job_runs_pkey. Lock: each row in run_id order; rows that another transaction holds (a heartbeat, a result, a
-- cancel, another scheduler) are skipped.
SELECT o.run_id, o.job_id, o.job_version, o.state, o.attempt, o.failed_attempts, o.executor_id, o.deadline_at, o.schedule_to_close_at,
       o.external_deadline_at, (SELECT tidewheel_now()) AS now,
       o.state <> %(waiting)s AND NOT {{tidewheel.transitions.not_frozen(o)}} AS frozen
  FROM job_runs AS o
 WHERE o.run_id = ANY (%(run_ids)s::uuid[])
   AND o.deadline_at <= (SELECT tidewheel_now())
   AND o.state = ANY (%(states)s::text[])
 ORDER BY o.run_id
   FOR UPDATE SKIP LOCKED

-- part: tenants_of_lanes(parts)
-- Returns each queue, lane and tenant of open runs, as the recursive query of that name.
-- Index: job_runs_due, from one tenant to the next. No lock.
(
    (SELECT o.queue, o.lane, o.tenant FROM job_runs AS o ORDER BY o.queue, o.lane, o.tenant LIMIT 1)
    UNION ALL
    SELECT n.queue, n.lane, n.tenant
      FROM parts AS p
     CROSS JOIN LATERAL (
        SELECT o.queue, o.lane, o.tenant
          FROM job_runs AS o
         WHERE (o.queue, o.lane, o.tenant) > (p.queue, p.lane, p.tenant)
         ORDER BY o.queue, o.lane, o.tenant
         LIMIT 1
      ) AS n
)

-- name: find_unhandled
-- Returns the handlers and queues that due runs need and no live executor has, with the number of runs and the oldest.
-- Index: job_runs_due, from one tenant of a queue and lane to the next, then the head of each. No lock.
-- Why: it checks the oldest runs, since runs that no executor claims stay among them. The tenants of a lane share the limit, and of
-- each a hundred are checked.
WITH RECURSIVE parts AS {{tenants_of_lanes(parts)}}, waiting AS (
    SELECT p.tenant, p.queue, r.handler, count(*) AS runs,
           (array_agg(r.run_id ORDER BY r.publish_at))[1] AS run_id, min(r.publish_at) AS since
      FROM (SELECT each.*, greatest(%(limit)s::bigint / count(*) OVER (PARTITION BY each.queue, each.lane), 100) AS row_limit
              FROM parts AS each) AS p
     CROSS JOIN LATERAL (
        SELECT o.handler, o.run_id, o.publish_at
          FROM job_runs AS o
         WHERE o.queue = p.queue
           AND o.lane = p.lane
           AND o.tenant = p.tenant
           AND o.publish_at <= (SELECT tidewheel_now()) - %(min_age)s::interval
           AND o.state = ANY (%(sources)s)
         ORDER BY o.publish_at
         LIMIT p.row_limit
      ) AS r
     GROUP BY p.tenant, p.queue, r.handler
)
SELECT w.tenant, w.queue, w.handler, w.runs, w.run_id, w.since
  FROM waiting AS w
 WHERE NOT EXISTS (
    SELECT FROM executors AS e
     WHERE w.queue = ANY (e.queues)
       AND w.handler = ANY (e.handlers)
       AND NOT e.stopping
       AND e.last_heartbeat_at > (SELECT tidewheel_now()) - %(silent_for)s::interval
 )
 ORDER BY w.tenant, w.queue, w.handler

-- name: announce_unhandled
-- Records announcements; returns those that were not announced lately.
-- Index: unhandled_announcements_pkey. Lock: the rows, in the order of their keys.
INSERT INTO unhandled_announcements AS u (tenant, queue, handler, announced_at)
SELECT w.tenant, w.queue, w.handler, tidewheel_now()
  FROM unnest(%(tenants)s::text[], %(queues)s::text[], %(handlers)s::text[]) AS w (tenant, queue, handler)
    ON CONFLICT (tenant, queue, handler) DO UPDATE SET announced_at = excluded.announced_at
 WHERE u.announced_at <= excluded.announced_at - %(quiet_for)s::interval
RETURNING tenant, queue, handler, announced_at

-- name: purge_unhandled
-- Deletes announcements that have not been repeated for long.
-- No index: a handful of rows. Lock: the rows.
DELETE FROM unhandled_announcements WHERE announced_at < (SELECT tidewheel_now()) - %(kept_for)s::interval

-- name: read_unhandled_jobs
-- Returns the jobs of the runs that an announcement names.
-- Index: job_runs_pkey, jobs_pkey. No lock.
SELECT o.run_id, o.job_id, j.key, o.shard, o.job_version
  FROM job_runs AS o
  JOIN jobs AS j USING (job_id)
 WHERE o.run_id = ANY (%(run_ids)s::uuid[])

-- name: measure_runs
-- Returns of each queue and lane the number of due runs, the time for which the oldest is due, and the number of orphans.
-- Index: job_runs_due, from one tenant of a queue and lane to the next, then the head of each. No lock.
-- Why: an attempt of an executor that is silent for twice its lease should have been ended by another executor. More executors
-- would not start a frozen run. The tenants of a lane are counted one after another, up to the limit in all.
WITH RECURSIVE parts AS {{tenants_of_lanes(parts)}}
SELECT l.queue, l.lane, m.due, coalesce((SELECT tidewheel_now()) - m.since, interval '0') AS age, m.orphaned
  FROM (SELECT DISTINCT p.queue, p.lane FROM parts AS p) AS l
 CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE r.state = ANY (%(sources)s)) AS due,
           (SELECT min(first.publish_at)
              FROM parts AS p
             CROSS JOIN LATERAL (
                SELECT o.publish_at
                  FROM job_runs AS o
                 WHERE o.queue = p.queue AND o.lane = p.lane AND o.tenant = p.tenant
                   AND o.publish_at <= (SELECT tidewheel_now())
                   AND o.state = ANY (%(sources)s)
                   AND {{tidewheel.transitions.not_frozen(o)}}
                 ORDER BY o.publish_at
                 LIMIT 1
              ) AS first
             WHERE p.queue = l.queue AND p.lane = l.lane) AS since,
           count(*) FILTER (WHERE r.state = ANY (%(owned)s) AND r.executor_id <> ALL (ARRAY(
               SELECT e.executor_id
                 FROM executors AS e
                WHERE e.last_heartbeat_at > (SELECT tidewheel_now()) - 2 * coalesce(e.lease, %(lease)s::interval)
           ))) AS orphaned
      FROM (
        SELECT o.state, o.executor_id
          FROM parts AS p
         CROSS JOIN LATERAL (
            SELECT each.state, each.executor_id
              FROM job_runs AS each
             WHERE each.queue = p.queue AND each.lane = p.lane AND each.tenant = p.tenant
               AND each.publish_at <= (SELECT tidewheel_now())
               AND (each.state = ANY (%(owned)s) OR {{tidewheel.transitions.not_frozen(each)}})
             ORDER BY each.publish_at
             LIMIT %(limit)s
          ) AS o
         WHERE p.queue = l.queue AND p.lane = l.lane
         LIMIT %(limit)s
      ) AS r
  ) AS m

-- name: measure_outbox
-- Returns of each slice and lane with due messages their number, and the time for which the oldest is due.
-- Index: outbox_due, its head. No lock.
SELECT s.slice_lane, m.due, (SELECT tidewheel_now()) - m.since AS age
  FROM unnest(%(slice_lanes)s::smallint[]) AS s (slice_lane)
 CROSS JOIN LATERAL (
    SELECT count(*) AS due, min(r.publish_at) AS since
      FROM (
        SELECT o.publish_at
          FROM outbox AS o
         WHERE o.slice_lane = s.slice_lane AND o.publish_at <= (SELECT tidewheel_now())
         ORDER BY o.publish_at, o.id
         LIMIT %(limit)s
      ) AS r
  ) AS m
 WHERE m.due > 0

-- name: measure_timers
-- Returns the number of overdue timers, the time for which the oldest is due, and the database's clock.
-- Index: timers_due, the head of each shard. No lock.
SELECT coalesce(sum(m.overdue), 0)::bigint AS overdue,
       coalesce((SELECT tidewheel_now()) - min(m.since), interval '0') AS age, (SELECT tidewheel_now()) AS now
  FROM unnest(%(shards)s::smallint[]) AS s (shard)
 CROSS JOIN LATERAL (
    SELECT count(*) AS overdue, min(r.due_at) AS since
      FROM (
        SELECT t.due_at
          FROM timers AS t
         WHERE t.shard = s.shard AND t.due_at <= (SELECT tidewheel_now()) - %(late)s::interval
         ORDER BY t.due_at
         LIMIT %(limit)s
      ) AS r
  ) AS m

-- name: read_overdue_timers
-- Returns overdue timers, the same number of each shard, with the columns of their versions that a decision needs.
-- The definition is empty, for a decision needs none.
-- Index: timers_due, the head of each shard; job_versions_pkey. No lock.
SELECT t.job_id, t.tenant, t.shard, t.scheduled_at, t.version, v.schedule_json, v.handler, v.queue, v.lane, v.overlap,
       ''::bytea AS definition, v.has_deadlines, v.concurrency_key, v.priority, v.ordering_key, v.passes, v.policy_json, t.due_at, t.catch_up_end, t.hold_reason, t.overridden, t.repeats_until
  FROM unnest(%(shards)s::smallint[]) AS s (shard)
 CROSS JOIN LATERAL (
    SELECT d.job_id, d.tenant, d.shard, d.scheduled_at, d.version, d.due_at, d.catch_up_end, d.hold_reason, d.overridden,
           d.repeats_until
      FROM timers AS d
     WHERE d.shard = s.shard AND d.due_at <= (SELECT tidewheel_now()) - %(late)s::interval
     ORDER BY d.due_at
     LIMIT %(limit)s
  ) AS t
  JOIN job_versions AS v ON v.job_id = t.job_id AND v.version = t.version

-- name: measure_lock_waits
-- Returns the number of this installation's sessions that wait for a lock, and the time for which the first of them has waited.
-- No index: the locks and sessions of the server. No lock.
-- Why pg_locks: it shows the waits of all roles. pg_stat_activity hides those of other roles from a scheduler. A session holds or awaits
-- the lock of a table in the schema of its installation, whatever it waits for.
SELECT count(*), coalesce(clock_timestamp() - min(l.waitstart), interval '0')
  FROM pg_locks AS l
  JOIN pg_stat_activity AS s ON s.pid = l.pid
 WHERE NOT l.granted AND s.datname = current_database() AND starts_with(s.application_name, 'tidewheel-')
   AND EXISTS (SELECT FROM pg_locks AS o
                 JOIN pg_class AS c ON c.oid = o.relation
                WHERE o.pid = l.pid AND c.relnamespace = current_schema()::regnamespace)

-- name: measure_leases
-- Returns the largest part of a lease that has passed without a heartbeat, of executors that have a lease of their own.
-- No index: as many rows as executors. No lock.
SELECT coalesce(max(extract(epoch FROM (SELECT tidewheel_now()) - e.last_heartbeat_at) / extract(epoch FROM e.lease)), 0)::float8
  FROM executors AS e
 WHERE e.lease > interval '0'

-- name: measure_blocked_keys
-- Returns the number of ordering keys that a failed run blocks, up to a limit, and the time for which the first of them is.
-- Index: order_keys_blocked as a whole, a few rows. No lock.
SELECT count(*), coalesce((SELECT tidewheel_now()) - min(k.blocked_at), interval '0')
  FROM (SELECT o.blocked_at FROM order_keys AS o WHERE o.blocked_by IS NOT NULL LIMIT %(limit)s) AS k

-- name: find_due_releases
-- The ids of some due releases of these shards, the oldest first.
-- Index: releases_due. No lock.
{{tidewheel.transitions.due_releases(r)}}

-- name: delete_old_windows
-- Deletes some windows of triggers with dedupe that are over: the next trigger begins a new one in any case.
-- Index: dedupes_by_end. Lock: the rows, locked rows are skipped.
DELETE FROM dedupes
 WHERE dedupe_id IN (SELECT d.dedupe_id
                       FROM dedupes AS d
                      WHERE d.until_at <= tidewheel_now()
                      ORDER BY d.until_at
                      LIMIT %(limit)s
                        FOR UPDATE SKIP LOCKED)

-- name: find_open_deletions
-- The tenants that are being deleted, and those whose time of grace is over, with true.
-- Index: tenant_deletions_open, tenants_to_delete. No lock.
SELECT tenant, false AS is_due FROM tenant_deletions WHERE finished_at IS NULL
 UNION ALL
SELECT tenant, true FROM tenants WHERE delete_at <= (SELECT tidewheel_now())
 ORDER BY is_due, tenant

-- name: lock_deletion
-- Locks the deletion of a tenant for a step of it.
-- Index: tenant_deletions_pkey. Lock: the row, skipped if another scheduler holds it.
SELECT tenant, created_at, accepted_at, state, waits_for IS NOT NULL AS begun, removed, round, round_rows, at_table, at_page, at_key
  FROM tenant_deletions
 WHERE tenant = %(tenant)s AND finished_at IS NULL
   FOR UPDATE SKIP LOCKED

-- name: begin_deletion
-- Notes the transactions of this database that are open: those that have found the tenant are among them.
-- Index: tenant_deletions_pkey. Lock: the row, already locked.
UPDATE tenant_deletions
   SET waits_for = ARRAY(SELECT l.virtualtransaction
                           FROM pg_locks AS l
                           JOIN pg_stat_activity AS a USING (pid)
                          WHERE l.locktype = 'virtualxid' AND a.datname = current_database() AND l.pid <> pg_backend_pid())
 WHERE tenant = %(tenant)s

-- name: count_stopped
-- Adds to the numbers of jobs that a deletion has deleted, and of runs that it has ended or requested to stop.
-- Index: tenant_deletions_pkey. Lock: the row, already locked.
UPDATE tenant_deletions SET jobs = jobs + %(jobs)s, runs = runs + %(runs)s WHERE tenant = %(tenant)s

-- name: stop_backfills_of
-- Cancels the backfills of a tenant.
-- Index: backfills_by_tenant. Lock: the rows; waits for a batch of theirs.
UPDATE backfills SET state = 'cancelled', reason = %(reason)s, finished_at = tidewheel_now()
 WHERE tenant = %(tenant)s AND state IN ('running', 'paused')

-- name: lock_failed_runs
-- Locks failed and timed-out runs, so that one retry by filter at a time sees whether they have a retry.
-- Index: failed_runs_pkey. Lock: each row in run_id order.
SELECT FROM failed_runs AS f WHERE f.run_id = ANY (%(run_ids)s) ORDER BY f.run_id FOR UPDATE

-- name: lock_dead_letters_of
-- Locks the dead letters of runs, which a redrive locks too.
-- Index: dead_letters_run_id_key. Lock: each row in id order.
SELECT FROM dead_letters AS d WHERE d.run_id = ANY (%(run_ids)s) ORDER BY d.id FOR UPDATE

-- name: stop_old_redrives_of
-- Cancels the rows of a tenant's works in redrives.
-- Index: redrives_by_tenant. Lock: the rows, before those of works; waits for a batch of theirs.
UPDATE redrives SET state = 'cancelled', reason = %(reason)s, finished_at = tidewheel_now()
 WHERE tenant = %(tenant)s AND state IN ('running', 'paused')

-- name: stop_works_of
-- Cancels the works of a tenant.
-- Index: works_by_tenant. Lock: the rows; waits for a batch of theirs.
UPDATE works SET state = 'cancelled', reason = %(reason)s, finished_at = tidewheel_now()
 WHERE tenant = %(tenant)s AND state IN ('running', 'paused')

-- name: find_jobs_of
-- The next jobs of a tenant that are not deleted, in the order of their keys, and the last job that was scanned.
-- Index: jobs_by_key, from the last position. No lock: each job is locked after its timer.
SELECT s.job_id, s.key, s.is_live, s.position = %(scan_limit)s AS last_scanned
  FROM (
    SELECT job_id, key, deleted_at IS NULL AS is_live, row_number() OVER (ORDER BY key COLLATE "C") AS position
      FROM jobs
     WHERE tenant = %(tenant)s AND key COLLATE "C" > %(after)s
     ORDER BY key COLLATE "C"
     LIMIT %(scan_limit)s
  ) AS s
 WHERE s.is_live OR s.position = %(scan_limit)s
 ORDER BY s.key COLLATE "C"
 LIMIT %(limit)s

-- name: lock_timers_to_drop
-- Locks the timers of jobs that are to be deleted.
-- Index: timers_pkey. Lock: each timer, in job_id order; those that a firing or a request holds are skipped.
SELECT job_id FROM timers WHERE job_id = ANY (%(job_ids)s::uuid[]) ORDER BY job_id FOR UPDATE SKIP LOCKED

-- name: lock_jobs_to_drop
-- Locks those of these jobs whose timers are locked, or that have none.
-- Index: jobs_pkey, timers_pkey. Lock: each job, in job_id order; those that a request or a trigger holds are skipped.
SELECT j.job_id, j.tenant, j.key, j.version, j.shard
  FROM jobs AS j
 WHERE j.job_id = ANY (%(job_ids)s::uuid[]) AND j.deleted_at IS NULL
   AND (j.job_id = ANY (%(locked)s::uuid[]) OR NOT EXISTS (SELECT FROM timers AS t WHERE t.job_id = j.job_id))
 ORDER BY j.job_id
   FOR UPDATE OF j SKIP LOCKED

-- name: drop_calendars_of_jobs
-- Deletes the calendars that these jobs name.
-- Index: job_calendars_by_job. Lock: the rows, under their jobs' locks.
DELETE FROM job_calendars WHERE job_id = ANY (%(job_ids)s::uuid[])

-- name: mark_jobs_deleted
-- Marks jobs as deleted: no trigger and no child finds them from the commit on.
-- Index: jobs_pkey. Lock: rows that are locked already.
UPDATE jobs SET deleted_at = %(now)s, updated_at = %(now)s WHERE job_id = ANY (%(job_ids)s::uuid[])

-- name: find_workflows_of
-- The next occurrences of workflows and batches of a tenant that go on.
-- Index: workflows_open, from the last position. No lock.
-- Why: the index has the tenant, so those of other tenants cost an entry of it each.
SELECT root_run_id
  FROM workflows
 WHERE finished_at IS NULL AND root_run_id > %(after)s AND tenant = %(tenant)s AND state IN ('open', 'paused')
 ORDER BY root_run_id
 LIMIT %(limit)s

-- name: find_runs_of
-- The next open runs of a tenant that are not being cancelled.
-- Index: job_runs_by_tenant, from the last position. No lock: each run is locked when it ends.
-- Why: with `tenant =` the planner may walk job_runs_pkey, past the rows of other tenants.
SELECT run_id, job_id, scheduled_at, state, cause, attempt, executor_id, true AS named, false AS last_scanned
  FROM job_runs
 WHERE (tenant, run_id) > (%(tenant)s, %(after)s::uuid) AND (tenant, run_id) <= (%(tenant)s, %(last)s::uuid) AND shard >= 0
   AND state = ANY (%(states)s)
 ORDER BY tenant, run_id
 LIMIT %(limit)s

-- name: has_settled
-- True if all transactions have ended that were open when the deletion of a tenant began.
-- Index: tenant_deletions_pkey. No lock.
SELECT NOT EXISTS (SELECT FROM pg_locks AS l WHERE l.locktype = 'virtualxid' AND l.virtualtransaction = ANY (d.waits_for))
  FROM tenant_deletions AS d
 WHERE d.tenant = %(tenant)s

-- name: is_quiet
-- True if a tenant has no open run, and no end of one that a drain is to pass on.
-- Index: job_runs_by_tenant, releases_due. No lock.
-- Why: a release that is not due is quarantined, or of a paused occurrence, and the deletion has ended those. With so many that are
-- due as the limit the drain has a backlog: a later pass looks again.
SELECT NOT EXISTS (SELECT FROM job_runs WHERE tenant = %(tenant)s AND shard >= 0)
   AND (SELECT count(*) < %(limit)s AND count(*) FILTER (WHERE r.tenant = %(tenant)s) = 0
          FROM (SELECT d.tenant
                  FROM releases AS d
                 WHERE d.shard = ANY (%(shards)s::smallint[]) AND d.due_at < 'infinity'
                 LIMIT %(limit)s) AS r)

-- name: begin_removing
-- Begins to remove the rows of a tenant.
-- Index: tenant_deletions_pkey. Lock: the row, already locked.
UPDATE tenant_deletions SET state = 'removing' WHERE tenant = %(tenant)s

-- name: end_cancellation_of
-- Deletes the cancellation of all runs of a tenant. There are none: claims are free to consult it no more.
-- Index: cancellations_open. Lock: the row.
DELETE FROM cancellations WHERE finished_at IS NULL AND tenant = %(tenant)s AND created_by = %(reason)s

-- name: find_tenant_tables
-- Those of the given tables that have a tenant, partitions each by itself and the newest first, with: the other columns of an index
-- that begins with the tenant and has all rows, and their collations; null without one. Then the number of pages.
-- Index: pg_class, pg_attribute, pg_inherits, pg_index. No lock.
SELECT c.relname::text AS name, i.columns, i.collations,
       coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::bigint AS pages
  FROM pg_class AS c
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attisdropped
  LEFT JOIN pg_inherits AS h ON h.inhrelid = c.oid
  LEFT JOIN pg_class AS p ON p.oid = h.inhparent
  LEFT JOIN LATERAL (
    SELECT coalesce(array_agg(b.attname::text ORDER BY k.number) FILTER (WHERE k.number > 1), '{}') AS columns,
           coalesce(array_agg(l.collname::text ORDER BY k.number) FILTER (WHERE k.number > 1), '{}') AS collations
      FROM pg_index AS x
     CROSS JOIN LATERAL unnest(x.indkey::smallint[], x.indcollation::oid[]) WITH ORDINALITY AS k (attnum, collated, number)
      JOIN pg_attribute AS b ON b.attrelid = c.oid AND b.attnum = k.attnum
      LEFT JOIN pg_collation AS l ON l.oid = k.collated
     WHERE x.indrelid = c.oid AND x.indkey[0] = a.attnum AND x.indpred IS NULL AND x.indexprs IS NULL AND x.indisvalid
       AND k.number <= x.indnkeyatts
     GROUP BY x.indexrelid
     ORDER BY x.indexrelid
     LIMIT 1
  ) AS i ON true
 WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace
   AND coalesce(p.relname, c.relname)::text = ANY (%(names)s::text[])
   AND NOT (c.relispartition AND right(c.relname, 8) < %(oldest)s)
 ORDER BY c.relispartition, CASE WHEN c.relispartition THEN right(c.relname, 8) END DESC, c.relname

-- name: advance_deletion
-- Stores the position and the counts of a deletion.
-- Index: tenant_deletions_pkey. Lock: the row, already locked.
UPDATE tenant_deletions
   SET removed = %(removed)s, round = %(round)s, round_rows = %(round_rows)s, at_table = %(at_table)s, at_page = %(at_page)s,
       at_key = %(at_key)s
 WHERE tenant = %(tenant)s

-- name: finish_deletion
-- Ends the deletion of a tenant, and reserves its name.
-- Index: tenant_deletions_pkey. Lock: the row, already locked.
UPDATE tenant_deletions
   SET state = 'removed', finished_at = tidewheel_now(), free_at = tidewheel_now() + %(keep)s::interval, waits_for = '{}'
 WHERE tenant = %(tenant)s

-- name: drop_intake_offsets
-- Deletes the stored offsets of a tenant's own topic: intake reads it no more.
-- Index: intake_offsets_pkey. Lock: the rows, under the lock of the deletion, for which a new owner waits.
DELETE FROM intake_offsets WHERE topic = %(topic)s
