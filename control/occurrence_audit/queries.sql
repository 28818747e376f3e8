-- name: set_time_limit
-- Sets the limit on whole transactions of this session, where the server has one.
-- No index, no lock.
SELECT set_config(p.name, %(limit)s, false) FROM pg_settings AS p WHERE p.name = 'transaction_timeout'

-- name: hold_retention
-- Keeps retention from removing runs until the transaction ends.
-- Lock: kept_since_lock, shared; waits for a pass of retention that marks days, some milliseconds.
LOCK TABLE kept_since_lock IN ROW EXCLUSIVE MODE

-- name: hold_old_retention
-- Keeps schedulers of 0.1 from removing runs until the session ends, unless a stranger holds their lock.
-- No index. Lock: an advisory one, shared; waits as hold_retention.
SELECT pg_advisory_lock_shared(k.key)
  FROM (SELECT hashtext('tidewheel.kept_since')::bigint AS key) AS k
 WHERE {{tidewheel.no_stranger(k)}}

-- name: read_audit_facts
-- Returns the clock, the database's name, the snapshot, the tzdata version of the timers, and the begin of the first day
-- whose runs are all stored, and the tenants that are being deleted.
-- Index: pg_inherits_parent_index, pg_class_oid_index, tenant_deletions_open; run_days has a row for each day, tenant_periods one for each tenant.
-- No lock.
SELECT tidewheel_now() AS taken_at, current_database()::text AS database, pg_current_snapshot()::text AS snapshot,
       (SELECT s.value FROM settings AS s WHERE s.name = 'tzdata') AS stored_tzdata,
       (SELECT s.value FROM settings AS s WHERE s.name = 'tzdata_changes') AS tzdata_changes,
       greatest((SELECT to_date(right(min(c.relname), 8), 'YYYYMMDD')
                   FROM pg_inherits AS i
                   JOIN pg_class AS c ON c.oid = i.inhrelid
                  WHERE i.inhparent = 'finished_runs'::regclass),
                (SELECT max(d.day) + 1 FROM run_days AS d WHERE d.dropped_at IS NOT NULL),
                (SELECT max(p.kept_since)
                   FROM tenant_periods AS p
                  WHERE (%(tenant)s::text IS NULL OR p.tenant = %(tenant)s::text)
                    AND p.tenant NOT IN (SELECT d.tenant FROM tenant_deletions AS d WHERE d.finished_at IS NULL)))::timestamp AT TIME ZONE 'UTC' AS runs_from,
       ARRAY(SELECT d.tenant FROM tenant_deletions AS d WHERE d.finished_at IS NULL ORDER BY d.tenant) AS deleting

-- name: has_versions_before
-- Returns true if a job of the audit had occurrences of its own before an instant.
-- No index: it stops at the first row.
-- No lock.
SELECT EXISTS (
    SELECT 1 FROM job_versions AS v
     WHERE v.effective_at < %(before)s::timestamptz
       AND (%(tenant)s::text IS NULL OR v.tenant = %(tenant)s::text)
       AND (%(job_id)s::uuid IS NULL OR v.job_id = %(job_id)s::uuid)
       AND v.schedule_json !~ '"kind":"(manual|after)"'
)

-- name: read_audited_versions
-- Returns the versions in force in a range, by job and version, each with its job's position.
-- Index: job_versions_pkey, jobs_pkey, timers_pkey, tenant_deletions_open, or scans of the tables.
-- No lock.
-- Why: a `once` that was accepted after its time has an occurrence before its time in force. The timers of a tenant that
-- is being deleted go before its versions, and these before its runs. A job that retention has removed and a client has
-- created again has a second version 1; its versions are later than all before, which a clock that was set back never is
-- by a day.
SELECT f.job_id, j.tenant, j.key, t.scheduled_at AS cursor_at, t.hold_reason, f.version, f.schedule_json, f.policy_json,
       f.after, f.until
  FROM (
    SELECT w.job_id, w.life, w.version, w.schedule_json, w.policy_json, w.effective_at AS after,
           least(w.retired_at, min(w.effective_at) OVER following) AS until
      FROM (
        SELECT v.job_id, v.version, v.schedule_json, v.policy_json, v.effective_at, v.retired_at,
               count(*) FILTER (WHERE v.version = 1) OVER (
                   PARTITION BY v.job_id
                   ORDER BY v.effective_at RANGE BETWEEN UNBOUNDED PRECEDING AND INTERVAL '1 day' FOLLOWING) AS life
          FROM job_versions AS v
         WHERE (%(tenant)s::text IS NULL OR v.tenant = %(tenant)s::text)
           AND (%(job_id)s::uuid IS NULL OR v.job_id = %(job_id)s::uuid)
           AND v.tenant NOT IN (SELECT d.tenant FROM tenant_deletions AS d WHERE d.finished_at IS NULL)
      ) AS w
    WINDOW following AS (PARTITION BY w.job_id ORDER BY w.life, w.version ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)
  ) AS f
  JOIN jobs AS j ON j.job_id = f.job_id
  LEFT JOIN timers AS t ON t.job_id = f.job_id
 WHERE (f.after < %(before)s::timestamptz OR position('"kind":"once"' IN f.schedule_json) > 0)
   AND coalesce(f.until >= %(first)s::timestamptz, true)
   AND coalesce(f.until > f.after, true)
 ORDER BY f.job_id, f.life, f.version

-- name: read_audited_skips
-- Returns the rows of the ledger in a range, by job and instant.
-- Index: skips_by_job of one job, else a scan of the table.
-- No lock.
SELECT s.job_id, s.reason, s.first_at, s.last_at, s.occurrences, s.is_exact
  FROM skips AS s
 WHERE s.last_at >= %(first)s::timestamptz AND s.first_at < %(before)s::timestamptz
   AND (%(tenant)s::text IS NULL OR s.tenant = %(tenant)s::text)
   AND (%(job_id)s::uuid IS NULL OR s.job_id = %(job_id)s::uuid)
 ORDER BY s.job_id, s.first_at, s.skip_id

-- name: read_audited_overrides
-- Returns the skips and moves of single occurrences in a range, by job and instant.
-- Index: overrides_pkey.
-- No lock.
SELECT v.job_id, v.scheduled_at, v.moved_to, v.done_at IS NOT NULL AS done
  FROM overrides AS v
 WHERE v.scheduled_at >= %(first)s::timestamptz AND v.scheduled_at < %(before)s::timestamptz
   AND (%(tenant)s::text IS NULL OR v.tenant = %(tenant)s::text)
   AND (%(job_id)s::uuid IS NULL OR v.job_id = %(job_id)s::uuid)
 ORDER BY v.job_id, v.scheduled_at

-- name: earliest_move
-- Returns the earliest instant to which an occurrence of a range was moved.
-- Index: overrides_pkey.
-- No lock.
SELECT min(v.moved_to)
  FROM overrides AS v
 WHERE v.scheduled_at >= %(first)s::timestamptz AND v.scheduled_at < %(before)s::timestamptz
   AND (%(job_id)s::uuid IS NULL OR v.job_id = %(job_id)s::uuid)

-- name: read_audited_calendars
-- Returns all calendars with the days that held before.
-- Index: calendars_pkey.
-- No lock.
SELECT c.tenant, c.name, c.past FROM calendars AS c WHERE %(tenant)s::text IS NULL OR c.tenant = %(tenant)s::text

-- name: read_timer_runs
-- Returns the scheduled runs of a range, by job and day: their instants as the bytes of big-endian microseconds since
-- 2000, in order, and counts.
-- Index: job_runs_by_job and finished_runs_by_job of one job, else a scan of the days since the range begins;
-- tenant_deletions_open.
-- No lock.
-- Why: one row for each job and day. The server sorts on disk, and the reader compares bytes.
SELECT r.job_id, date_bin('1 day', r.scheduled_at, timestamptz '2000-01-01 00:00:00+00') AS day,
       string_agg(timestamptz_send(r.scheduled_at), ''::bytea ORDER BY r.scheduled_at) AS instants,
       count(*) FILTER (WHERE r.state = 'succeeded') AS succeeded,
       count(*) FILTER (WHERE r.state = 'failed') AS failed,
       count(*) FILTER (WHERE r.state = 'timed_out') AS timed_out,
       count(*) FILTER (WHERE r.state = 'cancelled') AS cancelled,
       count(*) FILTER (WHERE r.state = 'skipped') AS skipped,
       count(*) FILTER (WHERE r.state = 'open') AS open,
       coalesce(sum(r.attempt), 0)::bigint AS attempts,
       count(*) FILTER (WHERE r.by_message) AS by_message,
       count(*) FILTER (WHERE r.by_sweep) AS by_sweep
  FROM (
    SELECT f.job_id, f.scheduled_at, f.state, f.attempt, position('/' IN f.claimed_from) > 0 AS by_message,
           f.claimed_from = 'sweep' AS by_sweep
      FROM finished_runs AS f
     WHERE f.finished_at >= %(ended_from)s::timestamptz
       AND f.scheduled_at >= %(first)s::timestamptz AND f.scheduled_at < %(before)s::timestamptz AND f.cause = 'timer'
       AND (%(tenant)s::text IS NULL OR f.tenant = %(tenant)s::text)
       AND (%(job_id)s::uuid IS NULL OR f.job_id = %(job_id)s::uuid)
       AND f.tenant NOT IN (SELECT d.tenant FROM tenant_deletions AS d WHERE d.finished_at IS NULL)
     UNION ALL
    SELECT o.job_id, o.scheduled_at, 'open', o.attempt, position('/' IN o.claimed_from) > 0, o.claimed_from = 'sweep'
      FROM job_runs AS o
     WHERE o.scheduled_at >= %(first)s::timestamptz AND o.scheduled_at < %(before)s::timestamptz AND o.cause = 'timer'
       AND (%(tenant)s::text IS NULL OR o.tenant = %(tenant)s::text)
       AND (%(job_id)s::uuid IS NULL OR o.job_id = %(job_id)s::uuid)
       AND o.tenant NOT IN (SELECT d.tenant FROM tenant_deletions AS d WHERE d.finished_at IS NULL)
  ) AS r
 GROUP BY r.job_id, day
 ORDER BY r.job_id, day

-- name: read_wrong_attempts
-- Returns ended runs of a range, of any cause, that do not have a record of each attempt, by job.
-- Index: finished_runs_by_job of one job, attempts_pkey, else scans of the days since the range begins.
-- No lock.
-- Why: a success has no row of its own, so most runs are left out before the join.
SELECT f.job_id, f.run_id, f.scheduled_at, f.attempt, (count(a.run_id) + (f.state = 'succeeded')::integer)::bigint AS recorded
  FROM finished_runs AS f
  LEFT JOIN attempts AS a ON a.run_id = f.run_id
 WHERE f.finished_at >= %(ended_from)s::timestamptz
   AND f.scheduled_at >= %(first)s::timestamptz AND f.scheduled_at < %(before)s::timestamptz
   AND f.attempt > (f.state = 'succeeded')::integer
   AND (%(tenant)s::text IS NULL OR f.tenant = %(tenant)s::text)
   AND (%(job_id)s::uuid IS NULL OR f.job_id = %(job_id)s::uuid)
 GROUP BY f.job_id, f.run_id, f.scheduled_at, f.finished_at, f.attempt, f.state
HAVING count(a.run_id) + (f.state = 'succeeded')::integer <> f.attempt
 ORDER BY f.job_id, f.scheduled_at

-- name: read_chains
-- Returns each scheduled run of fixed_delay jobs in a range with the run before it, by job and instant.
-- Index: jobs_fixed_delay, job_runs_by_job, finished_runs_by_job, or scans of the days since the range begins.
-- No lock.
SELECT c.job_id, c.scheduled_at, c.previous_at, c.previous_end
  FROM (
    SELECT r.job_id, r.scheduled_at, lag(r.scheduled_at) OVER by_time AS previous_at,
           lag(r.finished_at) OVER by_time AS previous_end
      FROM (
        SELECT f.job_id, f.scheduled_at, f.finished_at
          FROM finished_runs AS f
         WHERE f.finished_at >= %(ended_from)s::timestamptz AND f.cause = 'timer'
           AND f.scheduled_at >= %(first)s::timestamptz AND f.scheduled_at < %(before)s::timestamptz
         UNION ALL
        SELECT o.job_id, o.scheduled_at, NULL
          FROM job_runs AS o
         WHERE o.scheduled_at >= %(first)s::timestamptz AND o.scheduled_at < %(before)s::timestamptz AND o.cause = 'timer'
      ) AS r
      JOIN jobs AS j ON j.job_id = r.job_id
     WHERE j.schedule_kind = 'fixed_delay' AND j.deleted_at IS NULL
       AND (%(tenant)s::text IS NULL OR j.tenant = %(tenant)s::text)
       AND (%(job_id)s::uuid IS NULL OR j.job_id = %(job_id)s::uuid)
    WINDOW by_time AS (PARTITION BY r.job_id ORDER BY r.scheduled_at)
  ) AS c
 WHERE c.previous_at IS NOT NULL
 ORDER BY c.job_id, c.scheduled_at

-- name: read_missing_children
-- Returns the jobs of ended occurrences of workflows without a run in them, by job.
-- Index: job_edges_pkey, tenant_deletions_open; workflows and the days since the range begins are scanned.
-- No lock.
-- Why: each job of the graph has a run, skipped or not, when an occurrence has succeeded or failed.
WITH RECURSIVE nodes AS (
    SELECT w.root_run_id, w.scheduled_at, w.graph_at, w.root_job_id AS job_id
      FROM workflows AS w
     WHERE w.scheduled_at >= %(first)s::timestamptz AND w.scheduled_at < %(before)s::timestamptz
       AND w.finished_at IS NOT NULL AND w.state IN ('succeeded', 'failed')
       AND w.root_job_id <> '00000000-0000-0000-0000-000000000000'
       AND (%(tenant)s::text IS NULL OR w.tenant = %(tenant)s::text)
       AND w.tenant NOT IN (SELECT d.tenant FROM tenant_deletions AS d WHERE d.finished_at IS NULL)
     UNION
    SELECT n.root_run_id, n.scheduled_at, n.graph_at, e.child_job_id
      FROM nodes AS n
      JOIN job_edges AS e
        ON e.parent_job_id = n.job_id AND e.from_at < n.graph_at AND (e.until_at IS NULL OR n.graph_at <= e.until_at)
)
SELECT n.job_id, n.scheduled_at, n.root_run_id
  FROM nodes AS n
 WHERE (%(job_id)s::uuid IS NULL OR n.job_id = %(job_id)s::uuid)
   AND NOT EXISTS (
           SELECT FROM finished_runs AS f
            WHERE f.job_id = n.job_id AND f.workflow_run_id = n.root_run_id AND f.finished_at >= %(ended_from)s::timestamptz)
 ORDER BY n.job_id, n.scheduled_at

-- name: find_unrecorded_ends
-- Returns the ends among these that no finished run has, with the job and the run as the database has them.
-- Index: the keys of finished_runs and job_runs, by the day of the end and by run. No lock.
SELECT w.run_id, w.job_id, w.finished_at, j.tenant, j.key, r.state, r.finished_at
  FROM unnest(%(run_ids)s::uuid[], %(job_ids)s::uuid[], %(instants)s::timestamptz[]) AS w (run_id, job_id, finished_at)
  LEFT JOIN jobs AS j ON j.job_id = w.job_id
  LEFT JOIN LATERAL (SELECT s.state, s.finished_at FROM runs AS s WHERE s.run_id = w.run_id LIMIT 1) AS r ON true
 WHERE (%(tenant)s::text IS NULL OR j.tenant = %(tenant)s::text)
   AND NOT EXISTS (SELECT FROM finished_runs AS f WHERE f.run_id = w.run_id AND f.finished_at = w.finished_at)
 ORDER BY w.finished_at, w.run_id
