-- name: read_run
-- Returns one run with its error and the last attempt's result.
-- Index: job_runs_pkey, the partitions' indexes by run; failed_runs_pkey. No lock.
-- Why failed_runs: a timeout between two attempts is the error of the run alone. Its last attempt has another one.
SELECT r.run_id, r.job_id, r.state, r.attempt, r.scheduled_at,
       r.started_at, r.finished_at, r.reason,
       r.error_type, coalesce(f.error_message, a.error_message) AS error_message, x.result, i.progress, i.progress_at, r.deadline_at
  FROM runs AS r
  LEFT JOIN attempts AS a ON a.run_id = r.run_id AND a.attempt = r.attempt AND a.error_type = r.error_type
  LEFT JOIN failed_runs AS f ON f.run_id = r.run_id
  LEFT JOIN attempt_outputs AS x ON x.run_id = r.run_id AND x.attempt = r.attempt
  LEFT JOIN run_inputs AS i ON i.run_id = r.run_id
 WHERE r.run_id = %(run_id)s AND r.tenant = %(tenant)s

-- name: enqueue_by_topic
-- Writes a trigger request to the outbox by the SQL function, for drivers other than psycopg; returns its request_id.
-- Index: jobs_by_key. Lock: the new row.
SELECT tidewheel_enqueue(CAST(%(key)s AS text), CAST(CAST(%(payload)s AS text) AS jsonb), CAST(%(tenant)s AS text),
                         CAST(CAST(%(delay)s AS text) AS interval), CAST(CAST(%(run_at)s AS text) AS timestamptz),
                         CAST(CAST(%(labels)s AS text) AS jsonb), CAST(%(request_id)s AS text),
                         CAST(%(concurrency_key)s AS text), CAST(CAST(%(priority)s AS text) AS integer),
                         CAST(%(overlap)s AS text), CAST(%(ordering_key)s AS text), CAST(%(on_failure)s AS text),
                         CAST(%(dedupe_key)s AS text), CAST(CAST(%(dedupe_window)s AS text) AS interval),
                         CAST(%(dedupe_mode)s AS text), CAST(CAST(%(dedupe_longest)s AS text) AS interval))

-- name: cancel_in_transaction
-- Writes a pending cancel by the SQL function; returns the state of the run.
-- Index: job_runs_pkey, the partitions' index by run. Lock: the new row.
SELECT tidewheel_cancel(CAST(CAST(%(run_id)s AS text) AS uuid), CAST(%(tenant)s AS text), CAST(%(reason)s AS text))

-- name: status_in_transaction
-- Returns a run as the caller's transaction sees it.
-- Index: job_runs_pkey, the partitions' indexes by run. No lock.
SELECT job_id, state, attempt, scheduled_at, started_at, finished_at, reason, error_type, error_message, result, progress,
       progress_at, deadline_at
  FROM tidewheel_status(CAST(CAST(%(run_id)s AS text) AS uuid), CAST(%(tenant)s AS text))

-- name: read_logs
-- Returns a run's state and the attempts with output beyond what was read, with that part of it that is stored; at least
-- one row if the run exists.
-- Index: job_runs_pkey, the partitions' indexes by run. No lock.
SELECT r.state, r.attempt AS newest, x.attempt, a.outcome,
       coalesce(x.output_bytes, length(x.output)) AS output_bytes,
       CASE WHEN x.attempt > %(read_attempt)s THEN x.output
            ELSE substr(x.output, 1 + greatest(length(x.output) + %(read_bytes)s - coalesce(x.output_bytes, length(x.output)), 0)::integer)
       END AS output
  FROM runs AS r
  LEFT JOIN attempt_outputs AS x
    ON x.run_id = r.run_id AND x.output IS NOT NULL AND x.attempt >= %(read_attempt)s
   AND (x.attempt > %(read_attempt)s OR coalesce(x.output_bytes, length(x.output)) > %(read_bytes)s)
   AND (%(attempt)s::integer IS NULL OR x.attempt = %(attempt)s)
  LEFT JOIN ended_attempts AS a ON a.run_id = x.run_id AND a.attempt = x.attempt
 WHERE r.run_id = %(run_id)s AND r.tenant = %(tenant)s
 ORDER BY x.attempt
 LIMIT %(limit)s

-- part: next_run_ahead(j)
-- The first run that a timer has created ahead of its time, among the next 100 runs of a job.
-- Index: job_runs_by_job. No lock.
-- Why: triggers may have created a million delayed ones.
SELECT min(w.scheduled_at) FILTER (WHERE w.cause = 'timer' AND w.attempt = 0) AS ahead_at
          FROM (SELECT o.scheduled_at, o.cause, o.attempt FROM job_runs AS o
                 WHERE o.job_id = j.job_id AND o.scheduled_at > tidewheel_now()
                 ORDER BY o.scheduled_at
                 LIMIT 100) AS w

-- part: fails(c)
-- A job with a failure among its last 10 ends of seven days or within five minutes, looked for among its last 20 or 100 runs.
-- Why five minutes: a job that runs each second and fails at times would change to recovered and back.
((SELECT bool_or(e.state IN ('failed', 'timed_out'))
    FROM (SELECT r.state
            FROM (SELECT l.state, l.scheduled_at FROM finished_runs AS l
                   WHERE l.job_id = c.job_id AND l.finished_at > tidewheel_now() - interval '7 days'
                   ORDER BY l.scheduled_at DESC
                   LIMIT 20) AS r
           WHERE r.state <> 'skipped'
           ORDER BY r.scheduled_at DESC
           LIMIT 10) AS e)
 OR EXISTS (SELECT FROM (SELECT l.state FROM finished_runs AS l
                          WHERE l.job_id = c.job_id AND l.scheduled_at > tidewheel_now() - interval '5 min'
                            AND l.finished_at > tidewheel_now() - interval '5 min'
                          ORDER BY l.scheduled_at DESC
                          LIMIT 100) AS r
             WHERE r.state IN ('failed', 'timed_out')))

-- name: find_unwell
-- Returns which of these jobs fail, by the rule of the list of unwell ones.
-- Index: finished_runs_by_job in the partitions of seven days. No lock.
SELECT c.job_id FROM unnest(%(job_ids)s::uuid[]) AS c (job_id) WHERE {{fails(c)}}

-- name: find_jobs_of_page, find_last_jobs_of_page
-- Returns the first matching ids among the first `look` jobs of a tenant by key, or the last, their number, at most `count_limit`,
-- that of all looked at, the last key looked at.
-- Index: jobs_by_key, walked from the page's start; job_versions_pkey. For quarantined jobs only, quarantine is read once,
-- and timers_pkey; for unwell ones also failed_runs_by_tenant, by job in the partitions of seven days, and jobs_pkey in place of
-- jobs_by_key. No lock.
-- Why: unwell are the jobs of the newest 500 failures that fail, and those in quarantine.
WITH failing AS MATERIALIZED (
    SELECT c.job_id
      FROM (SELECT DISTINCT n.job_id
              FROM (SELECT f.job_id FROM failed_runs AS f
                     WHERE %(unwell)s::boolean IS NOT NULL AND (f.tenant, f.run_id) >= (%(tenant)s, '00000000-0000-0000-0000-000000000000')
                       AND (f.tenant, f.run_id) <= (%(tenant)s, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
                     ORDER BY f.tenant DESC, f.run_id DESC
                     LIMIT 500) AS n) AS c
     WHERE {{fails(c)}}
), seen AS MATERIALIZED (
    SELECT key, job_id, version, labels, paused, finished_at, schedule_kind FROM jobs
     WHERE tenant = %(tenant)s AND version > 0 AND deleted_at IS NULL
       AND key COLLATE "C" >= %(prefix)s AND key COLLATE "C" > %(after)s
       AND (%(beyond)s::text IS NULL OR key COLLATE "C" < %(beyond)s)
       AND (%(unwell)s::boolean IS NULL OR %(unwell)s = (job_id = ANY (ARRAY(
            SELECT f.job_id FROM failing AS f UNION ALL
            SELECT q.job_id FROM quarantine AS q JOIN timers AS h USING (job_id) WHERE h.hold_reason = 'quarantine'))))
     ORDER BY key COLLATE "C" {{up}}
     LIMIT %(look)s
), matching AS MATERIALIZED (
    SELECT key, job_id FROM seen
     WHERE CASE WHEN jsonb_typeof(labels) = 'object' THEN labels ELSE '{}' END @> %(labels)s
       AND (%(paused)s::boolean IS NULL OR paused = %(paused)s)
       AND (%(finished)s::boolean IS NULL OR (finished_at IS NOT NULL) = %(finished)s)
       AND (%(kind)s::text IS NULL OR schedule_kind = %(kind)s)
       AND (NOT %(occurs)s OR finished_at IS NULL AND schedule_kind IN ('once', 'interval', 'fixed_delay', 'cron'))
       AND (%(lane)s::text IS NULL AND %(queue)s::text IS NULL OR EXISTS (
            SELECT FROM job_versions AS w
             WHERE w.job_id = seen.job_id AND w.version = seen.version
               AND (%(lane)s::text IS NULL OR w.lane = %(lane)s)
               AND (%(queue)s::text IS NULL OR w.queue = %(queue)s)))
       AND (%(quarantined)s::boolean IS NULL OR %(quarantined)s = (job_id IN (
            SELECT q.job_id FROM quarantine AS q JOIN timers AS h USING (job_id) WHERE h.hold_reason = 'quarantine')))
     LIMIT %(count_limit)s
)
SELECT ARRAY(SELECT job_id FROM matching ORDER BY key COLLATE "C" {{up}} LIMIT %(limit)s) AS job_ids,
       (SELECT count(*) FROM matching) AS matching, (SELECT count(*) FROM seen) AS looked_at,
       (SELECT key FROM seen ORDER BY key COLLATE "C" {{down}} LIMIT 1) AS last_seen

-- name: list_jobs
-- Returns these jobs by key, each with its schedule, timer, first run created ahead, and latest run whose instant has come.
-- Index: jobs_pkey, job_versions_pkey, timers_pkey, job_runs_by_job; by job in every partition of finished_runs. No lock.
SELECT j.key, j.job_id, j.version, v.schedule_json, j.labels, j.paused, j.paused_until, j.finished_at, t.scheduled_at AS next_at,
       nullif(t.due_at, 'infinity') AS due_at, a.ahead_at, t.hold_reason, t.overridden OR v.policy_json LIKE '%%calendars":["%%' AS leaves_out, r.run_id, {{shown_state(r)}} AS state,
       r.scheduled_at, r.started_at, r.finished_at AS ended_at, r.reason, r.error_type
  FROM jobs AS j
  JOIN job_versions AS v ON v.job_id = j.job_id AND v.version = j.version
  LEFT JOIN timers AS t ON t.job_id = j.job_id
  LEFT JOIN LATERAL (
        SELECT * FROM runs AS l
         WHERE l.job_id = j.job_id AND l.scheduled_at <= tidewheel_now()
         ORDER BY l.scheduled_at DESC
         LIMIT 1) AS r ON true
 CROSS JOIN LATERAL ({{next_run_ahead(j)}}) AS a
 WHERE j.job_id = ANY (%(job_ids)s)
 ORDER BY j.key COLLATE "C"

-- name: read_plain_schedules
-- Returns the schedules of those of these jobs whose timers fire each occurrence at its time.
-- Index: jobs_pkey, job_versions_pkey, timers_pkey. No lock.
SELECT j.job_id, v.schedule_json
  FROM jobs AS j
  JOIN job_versions AS v ON v.job_id = j.job_id AND v.version = j.version
  JOIN timers AS t ON t.job_id = j.job_id
 WHERE j.job_id = ANY (%(job_ids)s) AND t.hold_reason IS NULL AND NOT t.overridden
   AND v.policy_json NOT LIKE '%%calendars":["%%'

-- name: find_keys_from
-- Returns the first keys of a tenant from a text on, and the last ones before it.
-- Index: jobs_by_key, from the text in both directions. No lock.
(SELECT j.key FROM jobs AS j
  WHERE j.tenant = %(tenant)s AND j.version > 0 AND j.deleted_at IS NULL AND j.key COLLATE "C" >= %(text)s
  ORDER BY j.key COLLATE "C"
  LIMIT %(limit)s)
UNION ALL
(SELECT j.key FROM jobs AS j
  WHERE j.tenant = %(tenant)s AND j.version > 0 AND j.deleted_at IS NULL AND j.key COLLATE "C" < %(text)s
  ORDER BY j.key COLLATE "C" DESC
  LIMIT %(limit)s)

-- name: show_job
-- Returns one job with its current version as submitted, its pause, its timer and its latest run.
-- Index: jobs_pkey, job_versions_pkey, timers_pkey, job_runs_by_job and by job in every partition. No lock.
SELECT j.key, j.job_id, j.version, v.schedule_json, j.labels, j.paused, j.paused_until, j.finished_at, t.scheduled_at AS next_at,
       nullif(t.due_at, 'infinity') AS due_at, a.ahead_at, t.hold_reason, t.overridden OR v.policy_json LIKE '%%calendars":["%%' AS leaves_out, r.run_id, {{shown_state(r)}} AS state,
       r.scheduled_at, r.started_at, r.finished_at AS ended_at, r.reason, r.error_type,
       v.spec, v.definition, v.effective_at, j.paused_by, j.pause_reason, j.paused_at, j.consecutive_failures, j.created_at
  FROM jobs AS j
  JOIN job_versions AS v ON v.job_id = j.job_id AND v.version = j.version
  LEFT JOIN timers AS t ON t.job_id = j.job_id
  LEFT JOIN LATERAL (
        SELECT * FROM runs AS l
         WHERE l.job_id = j.job_id AND l.scheduled_at <= tidewheel_now()
         ORDER BY l.scheduled_at DESC
         LIMIT 1) AS r ON true
 CROSS JOIN LATERAL ({{next_run_ahead(j)}}) AS a
 WHERE j.job_id = %(job_id)s AND j.deleted_at IS NULL

-- name: read_payload_schema
-- Returns the text of the JSON schema of a handler's payload, as the last executor with it that started has recorded it; or null.
-- Index: settings_pkey. No lock.
SELECT value FROM settings WHERE name = 'payload_schema/' || %(handler)s::text

-- name: list_calendars
-- Returns the calendars of a tenant by name, each with the number of jobs that name it.
-- Index: calendars_pkey, job_calendars_pkey. No lock.
SELECT c.name, c.version, cardinality(c.days) AS days,
       ARRAY(SELECT (ARRAY['SUN', 'MON', 'TUE', 'WED', 'THU', 'FRI', 'SAT'])[day + 1] FROM unnest(c.weekdays) AS day) AS weekdays,
       (SELECT count(*) FROM job_calendars AS n WHERE n.tenant = c.tenant AND n.name = c.name) AS jobs,
       c.source, c.updated_at
  FROM calendars AS c
 WHERE c.tenant = %(tenant)s
 ORDER BY c.name

-- name: show_calendar
-- Returns one calendar with its days, and the first 100 keys of the jobs that name it.
-- Index: calendars_pkey, job_calendars_pkey, jobs_pkey. No lock.
SELECT c.name, c.version, c.days,
       ARRAY(SELECT (ARRAY['SUN', 'MON', 'TUE', 'WED', 'THU', 'FRI', 'SAT'])[day + 1] FROM unnest(c.weekdays) AS day) AS weekdays,
       (SELECT count(*) FROM job_calendars AS n WHERE n.tenant = c.tenant AND n.name = c.name) AS jobs,
       ARRAY(SELECT j.key
               FROM job_calendars AS n
               JOIN jobs AS j ON j.job_id = n.job_id
              WHERE n.tenant = c.tenant AND n.name = c.name
              ORDER BY j.key
              LIMIT 100) AS keys,
       c.source, c.updated_at
  FROM calendars AS c
 WHERE c.tenant = %(tenant)s AND c.name = %(name)s

-- name: set_repeatable_read
-- Makes the transaction read one snapshot and write nothing.
-- No index, no lock.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY

-- name: read_job_position
-- Returns the state of a job, deleted or not, with its timer and the database's clock.
-- Index: jobs_pkey, timers_pkey. No lock.
SELECT j.job_id, j.key, j.tenant, j.version, j.paused, j.paused_at, j.paused_by, j.pause_reason, j.paused_until,
       j.finished_at, j.deleted_at, t.scheduled_at AS cursor_at, nullif(t.due_at, 'infinity') AS due_at, t.hold_reason,
       t.catch_up_end, tidewheel_now() AS now
  FROM jobs AS j
  LEFT JOIN timers AS t ON t.job_id = j.job_id
 WHERE j.job_id = %(job_id)s AND j.version > 0

-- name: read_versions_near
-- Returns the version in force at an instant, if there is one, and its neighbours on either side.
-- Index: job_versions_pkey, walked from the newest, and from the oldest. No lock.
SELECT near.version, near.effective_at, near.retired_at, near.schedule_json, near.policy_json, near.overlap, near.handler, near.queue,
       near.max_runs
  FROM (
    (SELECT v.*, (v.spec ->> 'max_runs')::bigint AS max_runs FROM job_versions AS v
      WHERE v.job_id = %(job_id)s AND v.effective_at < %(at)s ORDER BY v.version DESC LIMIT %(limit)s)
    UNION ALL
    (SELECT v.*, (v.spec ->> 'max_runs')::bigint AS max_runs FROM job_versions AS v
      WHERE v.job_id = %(job_id)s AND v.effective_at >= %(at)s ORDER BY v.version LIMIT %(limit)s)
  ) AS near
 ORDER BY near.version

-- name: read_runs_at
-- Returns the runs of one instant of a job, the timer's first.
-- Index: job_runs_by_job and by job in every partition; primary keys of the other tables. No lock.
SELECT r.run_id, r.cause, r.state, r.reason, r.job_version, r.queue, v.handler, r.created_at,
       CASE WHEN r.finished_at IS NULL THEN nullif(r.publish_at, 'infinity') END AS publish_at, i.late_ms, r.attempt,
       r.started_at, CASE WHEN r.finished_at IS NULL THEN r.executor_id END AS executor_id, r.finished_at, r.error_type,
       r.concurrency_key, q.key AS ordering_key
  FROM runs AS r
  JOIN job_versions AS v ON v.job_id = r.job_id AND v.version = r.job_version
  LEFT JOIN run_inputs AS i ON i.run_id = r.run_id
  LEFT JOIN job_runs AS o ON o.run_id = r.run_id
  LEFT JOIN order_keys AS q ON q.key_id = o.waits_for
 WHERE r.job_id = %(job_id)s AND r.scheduled_at = %(at)s
 ORDER BY r.cause <> 'timer', r.created_at, r.run_id
 LIMIT 20

-- name: find_occurrence_of_child
-- Returns the root above a job in the graph of an instant, its run of that instant, and the occurrence, the newest first.
-- Index: job_edges_by_child, jobs_pkey, job_runs_by_job and by job in every partition, workflows_pkey. No lock.
WITH RECURSIVE above (job_id) AS (
    SELECT %(job_id)s::uuid
     UNION
    SELECT e.parent_job_id
      FROM above AS a
      JOIN job_edges AS e ON e.child_job_id = a.job_id AND e.from_at < %(at)s AND (e.until_at IS NULL OR %(at)s <= e.until_at)
)
SELECT j.job_id AS root_job_id, j.key AS root_key, r.run_id AS root_run_id, r.state AS root_state, r.attempt AS root_attempt,
       w.state, w.generation, w.graph_at
  FROM above AS a
  JOIN jobs AS j ON j.job_id = a.job_id
  LEFT JOIN runs AS r ON r.job_id = j.job_id AND r.scheduled_at = %(at)s AND r.workflow_run_id = r.run_id
  LEFT JOIN workflows AS w ON w.root_run_id = r.run_id
 WHERE a.job_id <> %(job_id)s
   AND NOT EXISTS (SELECT FROM job_edges AS e
                    WHERE e.child_job_id = a.job_id AND e.from_at < %(at)s AND (e.until_at IS NULL OR %(at)s <= e.until_at))
 ORDER BY r.created_at DESC NULLS LAST
 LIMIT 1

-- name: read_child_runs
-- Returns the runs of a child in an occurrence, the latest generation first.
-- Index: job_runs_by_job and by job in every partition. No lock.
SELECT generation::integer, run_id, state, reason
  FROM runs
 WHERE job_id = %(job_id)s AND scheduled_at = %(at)s AND workflow_run_id = %(root_run_id)s
 ORDER BY generation DESC

-- name: list_children
-- Returns the keys of the first jobs that follow a job in a workflow.
-- Index: job_edges_pkey, jobs_pkey. No lock.
SELECT j.key
  FROM job_edges AS e
  JOIN jobs AS j ON j.job_id = e.child_job_id
 WHERE e.parent_job_id = %(job_id)s AND e.until_at IS NULL
 ORDER BY e.child_job_id
 LIMIT %(limit)s

-- name: read_attempts_of
-- Returns the last hundred ended attempts of a run, the oldest first.
-- Index: the partition's primary key. No lock.
SELECT *
  FROM (
    SELECT a.attempt, a.outcome, a.executor_id, a.started_at, a.finished_at, a.error_type, a.error_message
      FROM ended_attempts AS a
     WHERE a.run_id = %(run_id)s
     ORDER BY a.attempt DESC
     LIMIT 100
  ) AS latest
 ORDER BY attempt

-- name: read_skips_at
-- Returns the ledger rows of one instant, the shortest span first, with the newest backfill under way of the instant.
-- Index: skips_by_job, walked back from the instant; backfills_by_job. No lock.
-- Why: the spans of one decision may lie within each other and are a few hundred.
SELECT near.reason, near.first_at, near.last_at, near.occurrences, near.is_exact AS exact, near.created_at, near.job_version,
       (SELECT b.backfill_id FROM backfills AS b
         WHERE b.job_id = %(job_id)s AND b.state IN ('running', 'paused') AND b.first_at <= %(at)s AND b.last_at >= %(at)s
         ORDER BY b.created_at DESC
         LIMIT 1) AS backfill_id
  FROM (
    SELECT s.* FROM skips AS s
     WHERE s.job_id = %(job_id)s AND s.first_at <= %(at)s
     ORDER BY s.first_at DESC
     LIMIT 5000
  ) AS near
 WHERE near.last_at >= %(at)s
 ORDER BY near.last_at - near.first_at
 LIMIT 20

-- name: read_overrides_around
-- Returns skips and moves from an instant on, pending moves, and those of or to another instant.
-- Index: overrides_pkey. No lock.
SELECT v.scheduled_at, v.moved_to, v.created_at, v.created_by, v.reason, v.done_at
  FROM overrides AS v
 WHERE v.job_id = %(job_id)s
   AND (v.scheduled_at >= %(cursor_at)s OR (v.kind = 'move' AND v.done_at IS NULL)
        OR v.scheduled_at = %(at)s OR v.moved_to = %(at)s)
 ORDER BY v.scheduled_at

-- name: find_runs_ahead
-- Returns the timer's runs of a job that were created ahead of their time.
-- Index: job_runs_by_job. No lock.
SELECT run_id, scheduled_at, publish_at FROM job_runs
 WHERE job_id = %(job_id)s AND cause = 'timer' AND attempt = 0 AND state = ANY (%(states)s) AND publish_at > %(now)s
 ORDER BY scheduled_at
 LIMIT %(limit)s

-- name: read_job_error
-- Returns the last error that quarantined a job, and its time.
-- Index: quarantine_by_job. No lock.
SELECT error, created_at FROM quarantine WHERE job_id = %(job_id)s ORDER BY id DESC LIMIT 1

-- name: find_quarantined_jobs
-- Returns some quarantined jobs of a tenant, each with its last error; by id, or by a text in the error.
-- Index: quarantine_by_job, read from `after` on; jobs_pkey, timers_pkey. No lock: the release locks and checks again.
SELECT last.job_id, j.key, last.error, last.created_at
  FROM (
    SELECT DISTINCT ON (q.job_id) q.job_id, q.error, q.created_at
      FROM quarantine AS q
     WHERE q.job_id > %(after)s AND q.tenant = %(tenant)s
       AND (%(job_ids)s::uuid[] IS NULL OR q.job_id = ANY (%(job_ids)s))
     ORDER BY q.job_id, q.id DESC
  ) AS last
  JOIN jobs AS j ON j.job_id = last.job_id
 WHERE (%(error)s::text IS NULL OR strpos(last.error, %(error)s) > 0)
   AND EXISTS (SELECT FROM timers AS t WHERE t.job_id = last.job_id AND t.hold_reason = 'quarantine')
 ORDER BY last.job_id
 LIMIT %(limit)s

-- name: find_jobs
-- Returns those of these jobs that exist.
-- Index: jobs_pkey. No lock.
SELECT job_id FROM jobs WHERE job_id = ANY (%(job_ids)s) AND version > 0 AND deleted_at IS NULL

-- name: find_chain
-- Returns the nearest instants before and after a given one with runs of these causes.
-- Index: job_runs_by_job and by job in every partition. No lock.
-- Why: the occurrences of a fixed_delay are only those with runs, and a job without a schedule has runs alone.
SELECT (SELECT r.scheduled_at FROM runs AS r
         WHERE r.job_id = %(job_id)s AND r.cause = ANY (%(causes)s) AND r.scheduled_at < %(at)s
         ORDER BY r.scheduled_at DESC LIMIT 1) AS before,
       (SELECT r.scheduled_at FROM runs AS r
         WHERE r.job_id = %(job_id)s AND r.cause = ANY (%(causes)s) AND r.scheduled_at > %(at)s
         ORDER BY r.scheduled_at LIMIT 1) AS after

-- name: oldest_day_of_runs
-- Returns the oldest day with finished runs, from the name of its partition.
-- Index: pg_inherits_parent_index, pg_class_oid_index. No lock.
SELECT right(min(c.relname), 8)
  FROM pg_inherits AS i
  JOIN pg_class AS c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'finished_runs'::regclass

-- name: read_versions
-- Returns a job's versions below a number, the newest first, each with the start of the next one.
-- Index: job_versions_pkey, walked backwards. No lock.
SELECT v.version, v.effective_at, v.retired_at, later.effective_at AS superseded_at, v.spec, v.definition
  FROM job_versions AS v
  LEFT JOIN job_versions AS later ON later.job_id = v.job_id AND later.version = v.version + 1
 WHERE v.job_id = %(job_id)s AND v.version < %(before)s
 ORDER BY v.version DESC
 LIMIT %(limit)s

-- name: read_two_versions
-- Returns two versions of a job.
-- Index: job_versions_pkey. No lock.
SELECT v.version, v.effective_at, v.retired_at, NULL::timestamptz AS superseded_at, v.spec, v.definition
  FROM job_versions AS v
 WHERE v.job_id = %(job_id)s AND v.version = ANY (%(versions)s)

-- name: ping
-- Returns a row if the database answers.
-- No index, no lock.
SELECT 1

-- part: fits_run_filter(u)
-- True if a run fits the filters of a list.
-- Index: for labels jobs_pkey, and the primary key of run_inputs in every partition. No lock.
(%(states)s::text[] IS NULL OR u.state = ANY (%(states)s))
   AND (%(queue)s::text IS NULL OR u.queue = %(queue)s) AND (%(lane)s::text IS NULL OR u.lane = %(lane)s)
   AND (%(cause)s::text IS NULL OR u.cause = %(cause)s)
   AND (%(labels)s::jsonb IS NULL
        OR EXISTS (SELECT FROM jobs AS j WHERE j.job_id = u.job_id AND j.labels @> %(labels)s))
   AND (%(run_labels)s::jsonb IS NULL
        OR (SELECT coalesce(j.labels, '{}') FROM jobs AS j WHERE j.job_id = u.job_id)
           || coalesce((SELECT i.labels FROM run_inputs AS i WHERE i.run_id = u.run_id), '{}') @> %(run_labels)s)

-- part: has_ended(u)
-- True if a run ended in the time of a list's filter.
-- No index, no lock.
(%(ended_since)s::timestamptz IS NULL OR u.finished_at >= %(ended_since)s)
   AND (%(ended_until)s::timestamptz IS NULL OR u.finished_at < %(ended_until)s)

-- part: has_key(u)
-- True if a run has the concurrency key of a list's filter.
-- No index, no lock.
(%(concurrency_key)s::text IS NULL OR u.concurrency_key = %(concurrency_key)s)

-- part: has_place(u)
-- True if an open run has a place in the order of a list's filter.
-- No index, no lock.
(%(order_id)s::bigint IS NULL OR (u.key_id = %(order_id)s::bigint AND u.order_no IS NOT NULL))

-- part: page_by_id(seen)
-- The first matching ids of a page in the order of ids, their number, that of all looked at, and the last id.
-- No index, no lock.
SELECT ARRAY(SELECT run_id FROM seen WHERE matches ORDER BY run_id {{down}} LIMIT %(limit)s) AS run_ids,
       (SELECT count(*) FROM seen WHERE matches) AS matching, (SELECT count(*) FROM seen) AS looked_at,
       (SELECT run_id FROM seen ORDER BY run_id {{up}} LIMIT 1) AS last_seen

-- part: page_by_instant(seen)
-- The same in the order of nominal instants.
-- No index, no lock.
SELECT ARRAY(SELECT run_id FROM seen WHERE matches ORDER BY scheduled_at {{down}}, run_id {{down}} LIMIT %(limit)s) AS run_ids,
       (SELECT count(*) FROM seen WHERE matches) AS matching, (SELECT count(*) FROM seen) AS looked_at,
       (SELECT run_id FROM seen ORDER BY scheduled_at {{up}}, run_id {{up}} LIMIT 1) AS last_seen

-- name: find_runs, find_oldest_runs
-- Returns the first matching ids among the newest `look` runs of a tenant, or the oldest, their number, that of all looked at, the
-- last id.
-- Index: job_runs_by_tenant and by tenant in every partition, walked backwards, or forwards. No lock.
-- Why: with `tenant =` the planner may walk job_runs_pkey, past the rows of other tenants.
WITH seen AS MATERIALIZED (
    SELECT u.run_id, {{fits_run_filter(u)}} AND {{has_key(u)}} AND {{has_ended(u)}} AS matches
      FROM (SELECT * FROM runs AS r
             WHERE (r.tenant, r.run_id) < (%(tenant)s, %(before_id)s)
               AND (r.tenant, r.run_id) >= (%(tenant)s, %(first_id)s) AND r.shard >= 0) AS u
     ORDER BY u.tenant {{down}}, u.run_id {{down}}
     LIMIT %(look)s
)
{{page_by_id(seen)}}

-- name: find_unfired
-- Returns the spans and the skipped runs of a job that end after an instant, the newest first.
-- Index: skips_by_job, by job in every partition, walked backwards. No lock.
-- Why: a span may begin long before; the newest 5,000 are read, as for one instant.
SELECT *
  FROM (
    SELECT near.first_at AS at, near.last_at, near.occurrences, near.is_exact AS exact, near.reason, '' AS words
      FROM (
        SELECT s.* FROM skips AS s
         WHERE s.job_id = %(job_id)s AND s.first_at <= %(now)s
         ORDER BY s.first_at DESC
         LIMIT 5000
      ) AS near
     WHERE near.last_at >= %(since)s
     UNION ALL
    (SELECT r.scheduled_at, r.scheduled_at, 1, true, coalesce(r.reason, r.state), ''
       FROM runs AS r
      WHERE r.job_id = %(job_id)s AND r.cause = 'timer' AND r.state = %(skipped)s
        AND r.scheduled_at BETWEEN %(since)s AND %(now)s
      ORDER BY r.scheduled_at DESC
      LIMIT %(limit)s)
  ) AS unfired
 ORDER BY at DESC
 LIMIT %(limit)s

-- name: find_runs_of_job, find_oldest_runs_of_job
-- Returns the same of the newest `look` runs of a job by instant, or the oldest.
-- Index: job_runs_by_job and by job in every partition, walked backwards, or forwards. No lock.
WITH seen AS MATERIALIZED (
    SELECT u.run_id, u.scheduled_at, {{fits_run_filter(u)}} AND {{has_key(u)}} AND {{has_ended(u)}} AS matches
      FROM (SELECT * FROM runs AS r
             WHERE r.job_id = %(job_id)s AND (r.scheduled_at, r.run_id) < (%(before_at)s, %(before_id)s)
               AND (r.scheduled_at, r.run_id) >= (%(since)s, %(first_id)s) AND r.scheduled_at <= %(until)s) AS u
     ORDER BY u.scheduled_at {{down}}, u.run_id {{down}}
     LIMIT %(look)s
)
{{page_by_instant(seen)}}

-- name: find_open_runs, find_oldest_open_runs
-- Returns the same of the newest `look` open runs of a tenant, or the oldest; `ahead` narrows to those before their time, or due,
-- `going_on` to those without an accepted cancel.
-- Index: job_runs_by_tenant, walked backwards, or forwards; for `going_on` cancellations_open, pending_cancels_by_run. No lock.
-- Why: as for find_runs.
WITH seen AS MATERIALIZED (
    SELECT u.run_id, {{fits_run_filter(u)}} AND {{has_key(u)}} AND {{has_place(u)}}
           AND (%(ahead)s::boolean IS NULL OR (u.publish_at > (SELECT tidewheel_now())) = %(ahead)s)
           AND (NOT %(going_on)s::boolean OR {{tidewheel.transitions.no_cancel_of_many(u)}}) AS matches
      FROM job_runs AS u
     WHERE (u.tenant, u.run_id) < (%(tenant)s, %(before_id)s) AND (u.tenant, u.run_id) >= (%(tenant)s, %(first_id)s)
       AND u.shard >= 0
     ORDER BY u.tenant {{down}}, u.run_id {{down}}
     LIMIT %(look)s
)
{{page_by_id(seen)}}

-- name: find_longest_attempts
-- Returns the runs whose open attempts began longest ago, of the oldest `look` open runs of a tenant.
-- Index: job_runs_by_tenant, from the tenant's oldest run. No lock.
WITH seen AS MATERIALIZED (
    SELECT u.run_id, u.state, u.started_at
      FROM job_runs AS u
     WHERE u.tenant = %(tenant)s AND u.run_id < %(before_id)s AND u.shard >= 0
     ORDER BY u.tenant, u.run_id
     LIMIT %(look)s
)
SELECT s.run_id
  FROM seen AS s
 WHERE s.state = ANY (%(states)s::text[]) AND s.started_at <= %(since)s
 ORDER BY s.started_at, s.run_id
 LIMIT %(limit)s

-- name: find_open_runs_of_job, find_oldest_open_runs_of_job
-- Returns the same of the newest `look` open runs of a job by instant, or the oldest.
-- Index: job_runs_by_job, walked backwards, or forwards. No lock.
WITH seen AS MATERIALIZED (
    SELECT u.run_id, u.scheduled_at, {{fits_run_filter(u)}} AND {{has_key(u)}} AND {{has_place(u)}}
           AND (%(ahead)s::boolean IS NULL OR (u.publish_at > (SELECT tidewheel_now())) = %(ahead)s)
           AND (NOT %(going_on)s::boolean OR {{tidewheel.transitions.no_cancel_of_many(u)}}) AS matches
      FROM job_runs AS u
     WHERE u.job_id = %(job_id)s AND (u.scheduled_at, u.run_id) < (%(before_at)s, %(before_id)s)
       AND (u.scheduled_at, u.run_id) >= (%(since)s, %(first_id)s) AND u.scheduled_at <= %(until)s
     ORDER BY u.scheduled_at {{down}}, u.run_id {{down}}
     LIMIT %(look)s
)
{{page_by_instant(seen)}}

-- name: find_failed_runs, find_oldest_failed_runs
-- Returns the same of the newest `look` failed and timed-out runs of a tenant, or the oldest.
-- Index: failed_runs_by_tenant, walked backwards, or forwards. No lock.
WITH seen AS MATERIALIZED (
    SELECT u.run_id, {{fits_run_filter(u)}} AND {{has_ended(u)}} AS matches
      FROM failed_runs AS u
     WHERE (u.tenant, u.run_id) < (%(tenant)s, %(before_id)s) AND (u.tenant, u.run_id) >= (%(tenant)s, %(first_id)s)
     ORDER BY u.tenant {{down}}, u.run_id {{down}}
     LIMIT %(look)s
)
{{page_by_id(seen)}}

-- name: count_states
-- Returns the number of matching runs of a tenant by source and state, and that of all looked at: the newest `look` open runs
-- (source 0), failed ones (1) and ended ones (2).
-- Index: job_runs_by_tenant, failed_runs_by_tenant and by tenant in every partition, walked backwards. No lock.
-- Why: as for find_runs. Failed runs are rare among the newest, and have an index of their own.
SELECT s.source, s.state, count(*) FILTER (WHERE s.matches) AS matching, count(*) AS looked_at
  FROM (
       (SELECT 0 AS source, {{shown_state(u)}} AS state, {{fits_run_filter(u)}} AND {{has_key(u)}} AND {{has_place(u)}} AS matches
          FROM job_runs AS u
         WHERE (u.tenant, u.run_id) < (%(tenant)s, %(before_id)s) AND (u.tenant, u.run_id) >= (%(tenant)s, %(first_id)s)
           AND u.shard >= 0
         ORDER BY u.tenant DESC, u.run_id DESC
         LIMIT %(look)s)
        UNION ALL
       (SELECT 1, u.state, {{fits_run_filter(u)}} AND {{has_ended(u)}}
          FROM failed_runs AS u
         WHERE (u.tenant, u.run_id) < (%(tenant)s, %(before_id)s) AND (u.tenant, u.run_id) >= (%(tenant)s, %(first_id)s)
         ORDER BY u.tenant DESC, u.run_id DESC
         LIMIT %(look)s)
        UNION ALL
       (SELECT 2, u.state, {{fits_run_filter(u)}} AND {{has_key(u)}} AND {{has_ended(u)}}
          FROM finished_runs AS u
         WHERE (u.tenant, u.run_id) < (%(tenant)s, %(before_id)s) AND (u.tenant, u.run_id) >= (%(tenant)s, %(first_id)s)
           AND u.shard >= 0
         ORDER BY u.tenant DESC, u.run_id DESC
         LIMIT %(look)s)) AS s
 GROUP BY 1, 2

-- name: count_states_of_job
-- Returns the same of the newest runs of a job by instant, without source 1.
-- Index: job_runs_by_job and by job in every partition, walked backwards. No lock.
SELECT s.source, s.state, count(*) FILTER (WHERE s.matches) AS matching, count(*) AS looked_at
  FROM (
       (SELECT 0 AS source, {{shown_state(u)}} AS state, {{fits_run_filter(u)}} AND {{has_key(u)}} AND {{has_place(u)}} AS matches
          FROM job_runs AS u
         WHERE u.job_id = %(job_id)s AND u.scheduled_at BETWEEN %(since)s AND %(until)s
         ORDER BY u.scheduled_at DESC, u.run_id DESC
         LIMIT %(look)s)
        UNION ALL
       (SELECT 2, u.state, {{fits_run_filter(u)}} AND {{has_key(u)}} AND {{has_ended(u)}}
          FROM finished_runs AS u
         WHERE u.job_id = %(job_id)s AND u.scheduled_at BETWEEN %(since)s AND %(until)s
         ORDER BY u.scheduled_at DESC, u.run_id DESC
         LIMIT %(look)s)) AS s
 GROUP BY 1, 2

-- name: read_runs
-- Returns the given runs in their current state; of failed runs that retention has dropped the copies.
-- Index: job_runs_pkey, the partitions' indexes by run, jobs_pkey; failed_runs_pkey, if there are many. No lock.
-- Why created_at: a copy lacks it, and the start of its last attempt is the nearest instant.
SELECT r.run_id, j.key, r.job_id, r.job_version, {{shown_state(r)}} AS status, r.cause, r.queue, r.lane,
       r.attempt, r.scheduled_at, r.created_at, CASE WHEN r.finished_at IS NULL THEN nullif(r.publish_at, 'infinity') END AS publish_at,
       r.started_at, r.finished_at, r.reason, r.error_type, r.concurrency_key
  FROM runs AS r
  JOIN jobs AS j ON j.job_id = r.job_id
 WHERE r.run_id = ANY (%(run_ids)s)
 UNION ALL
SELECT f.run_id, coalesce(j.key, f.job_id::text), f.job_id, f.job_version, f.state, f.cause, f.queue, f.lane, f.attempt,
       f.scheduled_at, coalesce(f.started_at, f.finished_at), NULL, f.started_at, f.finished_at, NULL, f.error_type, NULL
  FROM failed_runs AS f
  LEFT JOIN jobs AS j ON j.job_id = f.job_id
 WHERE f.run_id = ANY (%(run_ids)s)
   AND NOT EXISTS (SELECT FROM finished_runs AS r WHERE r.run_id = f.run_id)
   AND NOT EXISTS (SELECT FROM job_runs AS o WHERE o.run_id = f.run_id)

-- name: read_retry_facts
-- Returns what a retry of each of the given runs has to know: of its job, its workflow, its retries and its dead letter.
-- Index: job_runs_pkey, the partitions' indexes by run and by job, jobs_pkey, workflows_pkey, dead_letters_run_id_key. No lock.
-- Why LATERAL with an aggregate: a join of retries would be free to read all runs.
SELECT r.run_id, j.deleted_at IS NOT NULL AS is_deleted, w.root_run_id IS NOT NULL AS is_part, n.retries,
       n.open_retries, d.id AS dead_letter
  FROM runs AS r
  JOIN jobs AS j ON j.job_id = r.job_id
  LEFT JOIN workflows AS w ON w.root_run_id = r.workflow_run_id AND w.root_job_id IS NOT NULL
  LEFT JOIN dead_letters AS d ON d.run_id = r.run_id AND d.redriven_at IS NULL
 CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE n.parent_run_id = r.run_id) AS retries,
           array_agg(n.run_id) FILTER (WHERE n.finished_at IS NULL AND n.run_id <> r.run_id
                                         AND n.root_run_id = coalesce(r.root_run_id, r.run_id)) AS open_retries
      FROM runs AS n
     WHERE n.job_id = r.job_id AND n.scheduled_at = r.scheduled_at
 ) AS n
 WHERE r.run_id = ANY (%(run_ids)s)

-- name: show_run
-- Returns one run with all its details except its attempts; the workflow of a batch has the zero id in place of a root job.
-- Index: primary keys of the partitions, of jobs, job_versions, job_runs, failed_runs, executors and workflows;
-- dead_letters_run_id_key. No lock. Why failed_runs: as in read_run.
SELECT r.run_id, j.key, r.job_id, r.job_version, {{shown_state(r)}} AS status, r.cause, r.queue, r.lane,
       r.attempt, r.scheduled_at, r.created_at, CASE WHEN r.finished_at IS NULL THEN nullif(r.publish_at, 'infinity') END AS publish_at,
       r.started_at, r.finished_at, r.reason, r.error_type, r.concurrency_key,
       v.handler, v.definition, o.failed_attempts, o.lost_attempts, o.deadline_at, o.schedule_to_close_at, o.external_deadline_at, o.executor_id, e.name AS executor, o.claimed_from,
       r.parent_run_id, r.root_run_id, coalesce(j.labels, '{}') || coalesce(i.labels, '{}') AS labels, r.request_id,
       i.traceparent, i.late_ms, i.progress, i.progress_at, i.checkpoint, i.checkpoint_attempt, coalesce(f.error_message, a.error_message) AS error_message,
       x.result, octet_length(i.payload) AS payload_bytes, i.payload_content_type, CASE WHEN w.root_job_id <> '00000000-0000-0000-0000-000000000000' THEN w.root_run_id END AS workflow_run_id,
       CASE WHEN w.root_job_id = '00000000-0000-0000-0000-000000000000' THEN w.root_run_id END AS batch_id, d.id AS dead_letter
  FROM runs AS r
  JOIN jobs AS j ON j.job_id = r.job_id
  JOIN job_versions AS v ON v.job_id = r.job_id AND v.version = r.job_version
  LEFT JOIN job_runs AS o ON o.run_id = r.run_id
  LEFT JOIN executors AS e ON e.executor_id = o.executor_id
  LEFT JOIN run_inputs AS i ON i.run_id = r.run_id
  LEFT JOIN attempts AS a ON a.run_id = r.run_id AND a.attempt = r.attempt AND a.error_type = r.error_type
  LEFT JOIN attempt_outputs AS x ON x.run_id = r.run_id AND x.attempt = r.attempt
  LEFT JOIN failed_runs AS f ON f.run_id = r.run_id
  LEFT JOIN dead_letters AS d ON d.run_id = r.run_id
  LEFT JOIN workflows AS w ON w.root_run_id = r.workflow_run_id AND w.root_job_id IS NOT NULL
 WHERE r.run_id = %(run_id)s AND r.tenant = %(tenant)s

-- name: show_failed_run
-- Returns the copy of a failed run, whose day retention has dropped.
-- Index: failed_runs_by_tenant, jobs_pkey, job_versions_pkey, dead_letters_run_id_key. No lock.
SELECT f.run_id, coalesce(j.key, f.job_id::text) AS key, f.job_id, f.job_version, f.state AS status, f.cause, f.queue, f.lane,
       f.attempt, f.scheduled_at, coalesce(f.started_at, f.finished_at) AS created_at, NULL::timestamptz AS publish_at,
       f.started_at, f.finished_at, NULL::text AS reason, f.error_type, NULL::text AS concurrency_key,
       v.handler, v.definition, coalesce(j.labels, '{}') AS labels, f.error_message, f.trace, d.id AS dead_letter
  FROM failed_runs AS f
  LEFT JOIN jobs AS j ON j.job_id = f.job_id
  LEFT JOIN job_versions AS v ON v.job_id = f.job_id AND v.version = f.job_version
  LEFT JOIN dead_letters AS d ON d.run_id = f.run_id
 WHERE f.run_id = %(run_id)s AND f.tenant = %(tenant)s

-- name: read_past_attempts
-- Returns the last hundred ended attempts of a run, the oldest first, with their stored output and results.
-- Index: the partitions' primary keys, failed_runs_pkey. No lock.
-- Why failed_runs: it has the end of the last trace when output is dropped.
SELECT *
  FROM (
    SELECT a.attempt, a.outcome, a.executor_id, a.started_at, a.finished_at, a.error_type, a.error_message, a.claimed_from,
           coalesce(x.trace, f.trace) AS trace, x.output, x.output_bytes, x.result
      FROM ended_attempts AS a
      LEFT JOIN attempt_outputs AS x ON x.run_id = a.run_id AND x.attempt = a.attempt
      LEFT JOIN failed_runs AS f ON f.run_id = a.run_id AND f.attempt = a.attempt
     WHERE a.run_id = %(run_id)s
     ORDER BY a.attempt DESC
     LIMIT 100
  ) AS latest
 ORDER BY attempt

-- part: shown_state(r)
-- The state of a run as pages and lists show it: `scheduled` is a queued run whose time is ahead.
-- No index, no lock.
CASE WHEN r.state = 'queued' AND r.publish_at > tidewheel_now() THEN 'scheduled' ELSE r.state END

-- name: read_retry_chain
-- Returns the runs of one instant of a job: among them a run's retries, and the runs that it retries.
-- Index: job_runs_by_job and by job in every partition. No lock.
SELECT r.run_id, r.parent_run_id, r.cause, {{shown_state(r)}} AS state, r.created_at
  FROM runs AS r
 WHERE r.job_id = %(job_id)s AND r.scheduled_at = %(scheduled_at)s
 ORDER BY r.created_at, r.run_id
 LIMIT 1000

-- part: cancellation_with_progress(c)
-- A cancellation by filter, whose job is `j`.
-- No index, no lock.
c.id AS cancellation_id, j.key, coalesce(c.labels, '{}') AS labels, c.queue, c.lane, c.handler, c.cause, c.created_before,
       c.include_started, coalesce(c.reason, c.created_by) AS reason, c.created_at, c.named_count, c.cancelled_count, c.finished_at

-- name: read_cancellation
-- Returns a cancellation by filter with its progress.
-- Index: cancellations_pkey, jobs_pkey. No lock.
SELECT {{cancellation_with_progress(c)}}
  FROM cancellations AS c
  LEFT JOIN jobs AS j ON j.job_id = c.job_id
 WHERE c.id = %(id)s AND c.tenant = %(tenant)s

-- name: list_cancellations
-- Returns a page of a tenant's cancellations by filter, the newest first.
-- Index: cancellations_by_tenant, from its end; jobs_pkey. No lock.
SELECT {{cancellation_with_progress(c)}}
  FROM cancellations AS c
  LEFT JOIN jobs AS j ON j.job_id = c.job_id
 WHERE c.tenant = %(tenant)s AND c.id < %(before)s
 ORDER BY c.id DESC
 LIMIT %(limit)s

-- name: read_queues
-- Returns the queues of all versions of all jobs.
-- No index: the table is read whole when the local stack starts. No lock.
-- Why: runs of an old version may be open.
SELECT DISTINCT queue FROM job_versions ORDER BY queue

-- name: count_waiting_dead_letters
-- Returns how many of a tenant's newest `look` dead letters were not redriven, the creation of the oldest and of the newest of these,
-- and the number that was looked at. Those of the jobs in `except_jobs` are left out.
-- Index: dead_letters_by_tenant, walked backwards. No lock.
SELECT count(*) FILTER (WHERE d.waits), min(d.created_at) FILTER (WHERE d.waits), max(d.created_at) FILTER (WHERE d.waits), count(*)
  FROM (SELECT created_at, redriven_at IS NULL AND coalesce(job_id <> ALL (%(except_jobs)s::uuid[]), true) AS waits
          FROM dead_letters WHERE tenant = %(tenant)s ORDER BY created_at DESC, id DESC LIMIT %(look)s) AS d

-- name: read_paused_timers
-- Returns the timers of paused jobs.
-- Index: timers_pkey, job_versions_pkey, jobs_pkey. No lock.
SELECT j.key, t.job_id, t.tenant, t.scheduled_at, v.schedule_json, v.policy_json, t.catch_up_end, t.overridden
  FROM timers AS t
  JOIN job_versions AS v ON v.job_id = t.job_id AND v.version = t.version
  JOIN jobs AS j ON j.job_id = t.job_id
 WHERE t.job_id = ANY (%(job_ids)s::uuid[]) AND t.tenant = %(tenant)s AND t.hold_reason = 'pause'
 ORDER BY t.job_id
 LIMIT %(limit)s

-- name: list_executors
-- Returns a page of the executors by id.
-- Index: executors_pkey. No lock.
SELECT executor_id, name, queues, handlers, slots, stopping, started_at, last_heartbeat_at,
       last_heartbeat_at <= tidewheel_now() - coalesce(lease, %(lease)s::interval) AS is_silent,
       last_heartbeat_at + coalesce(lease, %(lease)s::interval) AS lease_ends_at
  FROM executors
 WHERE executor_id > %(after)s
 ORDER BY executor_id
 LIMIT %(limit)s

-- name: name_executors
-- Returns the names of executors that have a row.
-- Index: executors_pkey. No lock.
SELECT executor_id, name FROM executors WHERE executor_id = ANY (%(executor_ids)s)

-- name: count_wrong
-- Returns how many of a tenant's newest `look` dead letters were not redriven, and how many executors are silent.
-- Index: dead_letters_by_tenant, walked backwards; executors is read whole, which has a row for each process. No lock.
SELECT (SELECT count(*)
          FROM (SELECT redriven_at FROM dead_letters WHERE tenant = %(tenant)s ORDER BY created_at DESC, id DESC LIMIT %(look)s) AS d
         WHERE d.redriven_at IS NULL) AS letters,
       (SELECT count(*) FROM executors AS e
         WHERE e.last_heartbeat_at <= (SELECT tidewheel_now()) - coalesce(e.lease, %(lease)s::interval)) AS silent

-- part: due_runs(parts)
-- The first due open runs of each tenant in each of some queues and lanes.
-- Index: job_runs_due, the head of each. No lock.
-- Why: in the order of that index, a million runs that a tenant has ahead of their time would be walked between two heads.
(SELECT r.run_id, r.job_id, r.tenant, r.state, r.attempt, r.started_at, r.executor_id FROM job_runs AS r
          WHERE r.queue = parts.queue AND r.lane = parts.lane AND r.tenant = parts.tenant AND r.publish_at <= (SELECT tidewheel_now())
          ORDER BY r.publish_at
          LIMIT %(look)s)

-- name: count_runs_of_executors
-- Returns the number of runs that each executor has among the first open ones of all queues.
-- Index: job_runs_due, from one tenant of a queue and lane to the next, then the head of each, to a limit of both. No lock.
WITH RECURSIVE parts AS {{tidewheel.scheduler.tenants_of_lanes(parts)}}
SELECT o.executor_id, count(*) AS runs
  FROM (SELECT d.executor_id, d.state
          FROM (SELECT each.* FROM parts AS each LIMIT %(parts)s) AS p
         CROSS JOIN LATERAL {{due_runs(p)}} AS d
         LIMIT %(look)s) AS o
 WHERE o.state = ANY (%(states)s) AND o.executor_id IS NOT NULL
 GROUP BY o.executor_id

-- name: list_runs_of_executor
-- Returns runs that an executor has among the first open ones of its queues, with their keys.
-- Index: job_runs_due, from one tenant of a queue and lane to the next, then the head of each of its queues, to a limit of both;
-- jobs_pkey. No lock.
WITH RECURSIVE parts AS {{tidewheel.scheduler.tenants_of_lanes(parts)}}
SELECT o.run_id, j.key, o.job_id, o.tenant, o.state, o.attempt, o.started_at
  FROM (SELECT d.*
          FROM (SELECT each.* FROM parts AS each LIMIT %(parts)s) AS p
         CROSS JOIN LATERAL {{due_runs(p)}} AS d
         WHERE p.queue = ANY (%(queues)s)
         LIMIT %(look)s) AS o
  JOIN jobs AS j ON j.job_id = o.job_id
 WHERE o.executor_id = %(executor_id)s AND o.state = ANY (%(states)s)
 LIMIT %(limit)s

-- name: list_schedulers
-- Returns the schedulers with a recent heartbeat, as `live_members` counts them.
-- Index: none, a row for each scheduler and relay. No lock.
SELECT member_id, name, last_heartbeat_at
  FROM members
 WHERE role = 'scheduler' AND last_heartbeat_at > tidewheel_now() - %(timeout)s::interval
   AND last_heartbeat_at < tidewheel_now() + %(timeout)s::interval

-- name: find_open_states
-- Returns the states of the newest `limit` open runs of a tenant by id, or of one of its jobs by instant.
-- Index: job_runs_by_tenant, walked backwards; job_runs_by_job if a job is given. No lock.
(SELECT run_id, state, attempt FROM job_runs
  WHERE %(job_id)s::uuid IS NULL AND (tenant, run_id) >= (%(tenant)s, '00000000-0000-0000-0000-000000000000')
    AND tenant <= %(tenant)s AND shard >= 0
  ORDER BY tenant DESC, run_id DESC
  LIMIT %(limit)s)
 UNION ALL
(SELECT run_id, state, attempt FROM job_runs
  WHERE job_id = %(job_id)s
  ORDER BY scheduled_at DESC
  LIMIT %(limit)s)

-- name: find_ends
-- Returns the database's clock, and the oldest ends of a tenant in a span that fit and are not known; one row at least.
-- Index: finished_runs_by_end of the days of the span. No lock.
WITH looked AS MATERIALIZED (
    SELECT run_id, job_id, finished_at FROM finished_runs
     WHERE finished_at >= %(first)s AND finished_at < %(until)s
       AND (finished_at, run_id) > (%(first)s, %(after_id)s) AND tenant = %(tenant)s
)
SELECT tidewheel_now(), f.*
  FROM (SELECT) AS c
  LEFT JOIN LATERAL (
    SELECT run_id, finished_at FROM looked
     WHERE (%(job_id)s::uuid IS NULL OR job_id = %(job_id)s) AND NOT run_id = ANY (%(known)s)
     ORDER BY finished_at, run_id
     LIMIT %(limit)s
  ) AS f ON true
 ORDER BY f.finished_at, f.run_id

-- name: read_waits
-- Returns what decides for what open runs wait: their rows, active runs, executors, and the executors that could run them.
-- Index: job_runs_pkey, active_runs_pkey, run_keys_pkey, executors_pkey, pending_cancels_by_run, cancellations_open, cancelled_jobs_pkey,
-- workflows_pkey, joins_pkey; executors as a whole, a row a process, for each queue and handler; tenant_rates_pkey for a run that
-- its tenant's rate holds; of a tenant that limits its active runs run_keys_by_key, and while the scheduler has not counted these yet
-- at most `most` entries of job_runs_by_tenant. No lock.
WITH able AS MATERIALIZED (
    SELECT n.queue, n.handler, count(*) FILTER (WHERE x.is_live AND x.has_handler) AS able,
           count(*) FILTER (WHERE x.is_live) AS serving, max(x.last_heartbeat_at) FILTER (WHERE x.has_handler) AS able_seen_at
      FROM (SELECT DISTINCT queue, handler FROM job_runs WHERE run_id = ANY (%(run_ids)s)) AS n
     CROSS JOIN LATERAL (
        SELECT g.last_heartbeat_at, n.handler = ANY (g.handlers) AS has_handler,
               NOT g.stopping
               AND g.last_heartbeat_at > (SELECT tidewheel_now()) - coalesce(g.lease, %(lease)s::interval) AS is_live
          FROM executors AS g
         WHERE n.queue = ANY (g.queues)
      ) AS x
     GROUP BY n.queue, n.handler
), limited AS MATERIALIZED (
    SELECT n.tenant, n.in_flight AS at_once,
           greatest(k.running, CASE WHEN n.in_flight_since IS NOT NULL THEN (
               SELECT count(*) FILTER (WHERE y.state = ANY (%(active)s::text[]))
                 FROM (SELECT r.state FROM job_runs AS r WHERE r.tenant = n.tenant AND r.shard >= 0 ORDER BY r.run_id LIMIT %(most)s) AS y
           ) END)::integer AS running
      FROM tenants AS n
      LEFT JOIN run_keys AS k ON k.tenant = n.tenant AND k.key COLLATE "C" = ''
     WHERE n.in_flight IS NOT NULL AND n.tenant = ANY (ARRAY(SELECT r.tenant FROM job_runs AS r WHERE r.run_id = ANY (%(run_ids)s)))
)
SELECT o.run_id, o.tenant, o.state, o.queue, o.handler, o.attempt, nullif(o.publish_at, 'infinity') AS publish_at,
       o.publish_at > (SELECT tidewheel_now()) AS is_ahead, o.started_at, o.external_deadline_at,
       t.run_id AS behind_run_id, b.state AS behind_state, o.executor_id, e.name AS executor, e.last_heartbeat_at AS seen_at,
       coalesce(e.last_heartbeat_at <= (SELECT tidewheel_now()) - coalesce(e.lease, %(lease)s::interval), true) AS is_silent,
       EXISTS (SELECT FROM pending_cancels AS c WHERE c.run_id = o.run_id) AS cancel_requested,
       (SELECT min(c.id) FROM cancellations AS c WHERE {{tidewheel.transitions.names_run(o)}}) AS cancellation_id,
       coalesce(f.able, 0) AS able, coalesce(f.serving, 0) AS serving, f.able_seen_at,
       CASE WHEN o.waits_for IS NOT NULL THEN coalesce(k.key, o.concurrency_key)
            WHEN h.key IS NOT NULL THEN h.key
            WHEN l.tenant IS NOT NULL THEN '' END AS waits_for_key,
       coalesce(k.running, h.running, l.running) AS key_running, coalesce(k.at_once, h.at_once, l.at_once) AS key_at_once,
       k.wake_at AS key_wake_at, o.workflow_run_id, coalesce(w.state = 'paused', false) AS workflow_is_paused,
       coalesce(w.root_job_id = '00000000-0000-0000-0000-000000000000', false) AS is_batch,
       g.parents, g.marked AS parents_ended, t.held_by AS behind_workflow,
       q.key AS order_key, q.head AS order_head, q.blocked_by AS order_blocked_by,
       z.per_second AS rate_per_second, (SELECT tidewheel_now()) AS now, o.created_at,
       e.last_heartbeat_at + coalesce(e.lease, %(lease)s::interval) AS lease_ends_at
  FROM job_runs AS o
  LEFT JOIN able AS f ON f.queue = o.queue AND f.handler = o.handler
  LEFT JOIN active_runs AS t ON t.job_id = o.job_id AND t.run_id <> o.run_id
  LEFT JOIN job_runs AS b ON b.run_id = t.run_id
  LEFT JOIN executors AS e ON e.executor_id = o.executor_id
  LEFT JOIN run_keys AS k ON k.key_id = o.waits_for
  LEFT JOIN run_keys AS h ON h.key_id = o.key_id AND o.waits_for IS NULL AND o.gates & %(holds_key)s = 0 AND h.running >= h.at_once
  LEFT JOIN limited AS l ON l.tenant = o.tenant AND o.waits_for IS NULL AND o.gates & %(holds_tenant)s = 0 AND l.running >= l.at_once
  LEFT JOIN order_keys AS q ON q.key_id = o.waits_for
  LEFT JOIN workflows AS w ON w.root_run_id = o.workflow_run_id
  LEFT JOIN joins AS g ON g.child_run_id = o.run_id AND o.state = 'blocked'
  LEFT JOIN tenant_rates AS z
    ON z.tenant = o.tenant AND o.state = 'buffered' AND o.waits_for IS NOT NULL AND k.key_id IS NULL AND q.key_id IS NULL
 WHERE o.run_id = ANY (%(run_ids)s)

-- name: read_last_attempts
-- Returns how the last attempt of retrying runs ended, with its error's first line; no run was created before `since`.
-- Index: job_runs_pkey; attempts_pkey of the days from `since` to `until`. No lock.
-- Why apart from read_waits: a plan with `attempts` locks all its days, also where no run is retrying.
SELECT o.run_id, a.outcome, concat_ws(': ', a.error_type, nullif(left(split_part(a.error_message, E'\n', 1), 200), '')) AS error
  FROM job_runs AS o
  JOIN attempts AS a ON a.run_id = o.run_id AND a.attempt = o.attempt AND a.started_at BETWEEN %(since)s AND %(until)s
 WHERE o.run_id = ANY (%(run_ids)s)

-- name: read_able
-- Returns what a job needs, the number of live executors that have it, of those of its queue, of all, and the last heartbeat
-- of any that has it.
-- Index: jobs_pkey, job_versions_pkey; executors as a whole, a row a process. No lock.
SELECT n.queue, n.handler, count(*) FILTER (WHERE x.is_live AND x.serves AND x.has_handler) AS able,
       count(*) FILTER (WHERE x.is_live AND x.serves) AS serving, count(*) FILTER (WHERE x.is_live) AS alive,
       max(x.last_heartbeat_at) FILTER (WHERE x.serves AND x.has_handler) AS able_seen_at
  FROM jobs AS j
  JOIN job_versions AS n ON n.job_id = j.job_id AND n.version = j.version
  LEFT JOIN LATERAL (
    SELECT g.last_heartbeat_at, n.handler = ANY (g.handlers) AS has_handler, n.queue = ANY (g.queues) AS serves,
           NOT g.stopping
           AND g.last_heartbeat_at > (SELECT tidewheel_now()) - coalesce(g.lease, %(lease)s::interval) AS is_live
      FROM executors AS g
  ) AS x ON true
 WHERE j.job_id = %(job_id)s
 GROUP BY n.queue, n.handler

-- name: find_freezes_of_runs
-- Returns the standing freezes of each of these runs.
-- Index: job_runs_pkey, freezes_pkey, frozen_jobs_pkey. No lock.
SELECT o.run_id, f.tenant, f.queue, f.labels, f.key_prefix, f.created_by AS by, f.reason, f.created_at AS since
  FROM freezes AS f
  JOIN job_runs AS o ON (f.tenant IS NULL OR f.tenant = o.tenant) AND (f.queue IS NULL OR f.queue = o.queue)
 WHERE f.thawed_at IS NULL
   AND o.run_id = ANY (%(run_ids)s)
   AND (NOT f.by_job OR EXISTS (SELECT FROM frozen_jobs AS k WHERE k.freeze_id = f.id AND k.job_id = o.job_id))
 ORDER BY f.id

-- name: read_services
-- Returns the processes of all services, and executors in other languages, with their heartbeats.
-- No index: a row a process. No lock.
SELECT coalesce(p.role, 'executor') AS role, coalesce(p.process_id, e.executor_id) AS process_id,
       coalesce(p.host, e.name) AS host, p.pid, p.version, coalesce(p.started_at, e.started_at) AS started_at,
       coalesce(e.last_heartbeat_at, p.last_heartbeat_at) AS last_heartbeat_at,
       coalesce(e.last_heartbeat_at <= (SELECT tidewheel_now()) - coalesce(e.lease, %(lease)s::interval),
                p.last_heartbeat_at <= (SELECT tidewheel_now()) - %(silent_after)s::interval) AS is_silent,
       coalesce(e.last_heartbeat_at <= (SELECT tidewheel_now()) - coalesce(e.lease, %(lease)s::interval)
                AND p.last_heartbeat_at > (SELECT tidewheel_now()) - %(silent_after)s::interval, false) AS is_stuck,
       coalesce(e.stopping, false) AS is_stopping, e.queues, e.handlers, e.slots, p.settings,
       extract(epoch FROM p.sent_at - p.last_heartbeat_at)::float8 AS skew_seconds
  FROM processes AS p
  FULL JOIN executors AS e ON e.executor_id = p.process_id
 ORDER BY 1, 6, 2

-- name: read_held_lanes
-- Returns the queues and lanes that live relays hold back, each with the tenants that have the most runs.
-- No index: members as a whole, a row a process. No lock.
WITH held AS MATERIALIZED (
    SELECT h.*
      FROM members AS m
     CROSS JOIN LATERAL jsonb_to_recordset(m.held)
           AS h (queue text, lane text, since timestamptz, runs bigint, complete boolean, tenants integer, largest jsonb)
     WHERE {{tidewheel.is_live(m)}}
)
SELECT h.queue, h.lane, min(h.since) AS since, sum(h.runs)::bigint AS runs, bool_or(NOT h.complete) AS at_least,
       max(h.tenants) AS tenants,
       (SELECT coalesce(jsonb_object_agg(t.tenant, t.runs), '{}')
          FROM (SELECT e.key AS tenant, sum(e.value::bigint) AS runs
                  FROM held AS o
                 CROSS JOIN LATERAL jsonb_each_text(o.largest) AS e
                 WHERE o.queue = h.queue AND o.lane = h.lane
                 GROUP BY e.key) AS t) AS largest
  FROM held AS h
 GROUP BY h.queue, h.lane
 ORDER BY h.queue, h.lane

-- name: read_fleet_facts
-- Returns the database's clock, and true if there is a job that is not deleted.
-- Index: jobs_pkey, up to the first row that fits. No lock.
SELECT tidewheel_now(), EXISTS (SELECT FROM jobs WHERE deleted_at IS NULL)

-- name: read_intake_offsets
-- Returns the offsets from which intake reads next.
-- No index: a row a partition. No lock.
SELECT topic, partition, next_offset FROM intake_offsets

-- name: find_api_key
-- Returns a key with its sign-ins, and true if its last use was recorded more than a minute ago.
-- Index: api_keys_pkey, sign_ins_by_key, tenants_pkey. No lock.
SELECT k.key_id, k.tenant, k.name, k.secret_hash, k.scopes, k.queues, k.rate, k.revoked_at IS NOT NULL AS revoked,
       k.expires_at, tidewheel_now() AS read_at,
       (SELECT t.max_key_rate FROM tenants AS t WHERE t.tenant = k.tenant) AS max_rate,
       coalesce(k.last_used_at < tidewheel_now() - interval '1 minute', true) AS to_record,
       (SELECT coalesce(jsonb_object_agg(encode(s.digest, 'hex'), s.name), '{}')
          FROM sign_ins AS s
         WHERE s.key_id = k.key_id AND s.secret_hash = k.secret_hash AND NOT s.is_link AND {{is_signed_in(s)}}) AS sign_ins
  FROM api_keys AS k
 WHERE k.key_id = %(key_id)s

-- part: is_signed_in(s)
-- True for a sign-in that has not ended.
s.used_at > tidewheel_now() - %(idle)s::interval AND s.made_at > tidewheel_now() - %(life)s::interval

-- name: add_sign_in
-- Writes a sign-in of a key in force; no row if there is none.
-- Index: sign_ins_pkey. Lock: the new row.
INSERT INTO sign_ins (digest, key_id, secret_hash, name, is_link)
SELECT %(digest)s, key_id, secret_hash, %(name)s, %(is_link)s
  FROM api_keys
 WHERE key_id = %(key_id)s AND revoked_at IS NULL AND coalesce(expires_at > tidewheel_now(), true)

-- name: drop_sign_ins
-- Deletes the sign-ins that have ended, and the oldest of too many of a key.
-- No index: the table is small, and read whole at a sign-in only. Lock: the rows.
DELETE FROM sign_ins AS s
 WHERE NOT ({{is_signed_in(s)}})
    OR s.digest IN (SELECT o.digest FROM sign_ins AS o WHERE o.key_id = %(key_id)s ORDER BY o.made_at DESC OFFSET %(kept)s)

-- name: end_sign_in
-- Deletes a sign-in.
-- Index: sign_ins_pkey. Lock: the row.
DELETE FROM sign_ins WHERE digest = %(digest)s

-- name: take_link
-- Deletes a link that opens the console; returns its key if it is young enough.
-- Index: sign_ins_pkey. Lock: the row, which one of several requests deletes.
DELETE FROM sign_ins WHERE digest = %(digest)s AND is_link AND made_at > tidewheel_now() - %(life)s::interval RETURNING key_id

-- name: record_sign_in_use
-- Records the use of a sign-in, every ten minutes.
-- Index: sign_ins_pkey. Lock: the row.
UPDATE sign_ins AS s SET used_at = tidewheel_now()
 WHERE s.digest = %(digest)s AND {{is_signed_in(s)}} AND s.used_at < tidewheel_now() - interval '10 minutes'

-- name: record_api_key_use
-- Records the use of a key, once a minute; nothing while another transaction holds the row.
-- Index: api_keys_pkey. Lock: the row, without a wait.
-- Why: every request of the key would wait for that transaction.
UPDATE api_keys SET last_used_at = tidewheel_now()
 WHERE key_id = (
    SELECT key_id FROM api_keys
     WHERE key_id = %(key_id)s AND coalesce(last_used_at < tidewheel_now() - interval '1 minute', true)
       FOR NO KEY UPDATE SKIP LOCKED)


-- name: read_job_days
-- Returns the counts of the last days of a job, the newest first.
-- Index: job_days_pkey, walked backwards. No lock.
SELECT day, succeeded, failed, timed_out, cancelled, skipped, attempts, durations, lateness, longest, longest_run_id
  FROM job_days
 WHERE job_id = %(job_id)s AND day >= (tidewheel_now() AT TIME ZONE 'UTC')::date - %(days)s::integer
 ORDER BY day DESC

-- name: find_job_key
-- Returns the key of a job of a tenant, deleted or not.
-- Index: jobs_pkey. No lock.
SELECT j.key FROM jobs AS j WHERE j.job_id = %(job_id)s AND j.tenant = %(tenant)s

-- name: read_selected_jobs
-- Returns those of some jobs that are not deleted, by key.
-- Index: jobs_pkey. No lock.
SELECT job_id, key, paused
  FROM jobs
 WHERE job_id = ANY (%(job_ids)s::uuid[]) AND tenant = %(tenant)s AND deleted_at IS NULL
 ORDER BY key

-- name: read_run_payload
-- Returns a run's own payload with its type, and the definition of its version, whose payload it has otherwise.
-- Index: job_runs_pkey, the partitions' indexes by run, job_versions_pkey. No lock.
SELECT i.payload, i.payload_content_type, v.definition
  FROM runs AS r
  JOIN job_versions AS v ON v.job_id = r.job_id AND v.version = r.job_version
  LEFT JOIN run_inputs AS i ON i.run_id = r.run_id
 WHERE r.run_id = %(run_id)s AND r.tenant = %(tenant)s

-- name: find_timeline_runs
-- Returns the newest runs of a job in a time by instant, at most `limit`.
-- Index: job_runs_by_job and by job in every partition, walked backwards. No lock.
SELECT r.run_id, r.scheduled_at, r.started_at, r.finished_at,
       {{shown_state(r)}} AS state, r.cause, r.attempt, r.reason, r.error_type
  FROM runs AS r
 WHERE r.job_id = %(job_id)s AND r.scheduled_at >= %(since)s AND r.scheduled_at < %(until)s
 ORDER BY r.scheduled_at DESC, r.run_id DESC
 LIMIT %(limit)s

-- name: count_timeline_runs
-- Returns the number of the newest `look` runs of a job by bin and state, with the longest time and the first instant.
-- Index: job_runs_by_job and by job in every partition, walked backwards. No lock.
WITH seen AS MATERIALIZED (
    SELECT r.scheduled_at, r.state, r.finished_at - r.started_at AS took
      FROM runs AS r
     WHERE r.job_id = %(job_id)s AND r.scheduled_at >= %(since)s AND r.scheduled_at < %(until)s
     ORDER BY r.scheduled_at DESC
     LIMIT %(look)s
)
SELECT width_bucket(s.scheduled_at, %(edges)s::timestamptz[]) - 1 AS bin, s.state, count(*) AS runs, max(s.took) AS longest,
       min(s.scheduled_at) AS first_at
  FROM seen AS s
 GROUP BY 1, 2

-- name: read_took_p95
-- Returns the time that 95 in 100 of the successes among the newest 1,000 ended runs of a job do not exceed.
-- Index: by job in every partition, walked backwards. No lock.
SELECT percentile_disc(0.95) WITHIN GROUP (ORDER BY l.took) FILTER (WHERE l.state = 'succeeded')
  FROM (SELECT f.state, f.finished_at - f.started_at AS took
          FROM finished_runs AS f
         WHERE f.job_id = %(job_id)s
         ORDER BY f.scheduled_at DESC
         LIMIT 1000) AS l

-- name: read_streak
-- Returns the failures of a job since its last success among its newest 1,000 ended runs: their number, the end of the first one,
-- their lowest and highest version, the newest one with its error, and the highest version that succeeded.
-- Index: by job in every partition, walked backwards; failed_runs_pkey. No lock.
WITH latest AS MATERIALIZED (
    SELECT f.run_id, f.state, f.finished_at, f.job_version
      FROM finished_runs AS f
     WHERE f.job_id = %(job_id)s
     ORDER BY f.scheduled_at DESC
     LIMIT 1000
), good AS (
    SELECT max(l.finished_at) AS at, max(l.job_version) AS version FROM latest AS l WHERE l.state = 'succeeded'
), streak AS (
    SELECT count(*) AS failures, min(l.finished_at) AS since, min(l.job_version) AS first_version,
           max(l.job_version) AS last_version, (array_agg(l.run_id ORDER BY l.finished_at DESC))[1] AS run_id
      FROM latest AS l
     CROSS JOIN good
     WHERE l.state IN ('failed', 'timed_out') AND (good.at IS NULL OR l.finished_at > good.at)
)
SELECT s.*, f.error_type, left(split_part(f.error_message, E'\n', 1), 300) AS message, good.version AS good_version,
       good.at IS NULL AND (SELECT count(*) FROM latest) = 1000 AS at_least
  FROM streak AS s
 CROSS JOIN good
  LEFT JOIN failed_runs AS f ON f.run_id = s.run_id
 WHERE s.failures > 0

-- name: read_error_lines
-- Returns the types of the errors of failed runs, and the first lines of their messages.
-- Index: failed_runs_pkey. No lock.
SELECT f.run_id, f.error_type, left(split_part(f.error_message, E'\n', 1), 200) AS message
  FROM failed_runs AS f
 WHERE f.run_id = ANY (%(run_ids)s)

-- name: read_newest_errors
-- Returns the error of the newest dead letter of each of these jobs.
-- Index: dead_letters_by_job, walked backwards; failed_runs_pkey. No lock.
SELECT j.job_id, coalesce(f.error_type, CASE f.state WHEN 'timed_out' THEN 'timed out' END) AS error_type,
       left(split_part(f.error_message, E'\n', 1), 200) AS message
  FROM unnest(%(job_ids)s::uuid[]) AS j (job_id)
 CROSS JOIN LATERAL (SELECT d.run_id FROM dead_letters AS d
                      WHERE d.job_id = j.job_id
                      ORDER BY d.created_at DESC, d.id DESC
                      LIMIT 1) AS d
  JOIN failed_runs AS f ON f.run_id = d.run_id

-- name: read_versions_since
-- Returns those of a job's newest 100 versions that came into force in a time, the newest first.
-- Index: job_versions_pkey, walked backwards. No lock.
SELECT l.version AS number, l.effective_at AS at
  FROM (SELECT v.version, v.effective_at FROM job_versions AS v
         WHERE v.job_id = %(job_id)s
         ORDER BY v.version DESC
         LIMIT 100) AS l
 WHERE l.effective_at >= %(since)s AND l.effective_at < %(until)s

-- name: read_pauses
-- Returns the accepted pauses and resumes among the newest 200 entries about a job up to a time, the newest first.
-- Index: audit_log_by_object, walked backwards. No lock.
SELECT l.at, l.action = 'job.pause' AS begins, coalesce(l.named, l.actor) AS by
  FROM (SELECT a.at, a.action, a.named, a.actor, a.result FROM audit_log AS a
         WHERE a.tenant = %(tenant)s AND a.object = %(object)s AND a.at <= %(until)s
         ORDER BY a.at DESC, a.id DESC
         LIMIT 200) AS l
 WHERE l.action IN ('job.pause', 'job.resume') AND l.result = 'accepted'

-- name: count_runs_of_jobs
-- Returns the number of the newest `look` runs of each job in each span, by bin and state.
-- Index: job_runs_by_job, and by job in the partitions from the day of `ended_since` on, walked backwards. No lock.
-- Why `ended_since`: a run ends at its instant or later, unless a client cancels or skips it ahead; those that end more than a day
-- ahead are left out.
SELECT w.job_id, width_bucket(r.scheduled_at, %(edges)s::timestamptz[]) - 1 AS bin, r.state, count(*) AS runs
  FROM unnest(%(job_ids)s::uuid[]) AS w (job_id)
 CROSS JOIN unnest(%(since)s::timestamptz[], %(until)s::timestamptz[]) AS s (since, until)
 CROSS JOIN LATERAL (
       (SELECT o.scheduled_at, {{shown_state(o)}} AS state FROM job_runs AS o
         WHERE o.job_id = w.job_id AND o.scheduled_at >= s.since AND o.scheduled_at < s.until
         ORDER BY o.scheduled_at DESC
         LIMIT %(look)s)
        UNION ALL
       (SELECT f.scheduled_at, f.state FROM finished_runs AS f
         WHERE f.job_id = w.job_id AND f.scheduled_at >= s.since AND f.scheduled_at < s.until
           AND f.finished_at >= %(ended_since)s
         ORDER BY f.scheduled_at DESC
         LIMIT %(look)s)
         ORDER BY scheduled_at DESC
         LIMIT %(look)s) AS r
 GROUP BY 1, 2, 3

-- name: read_activity
-- Returns the ended runs of a tenant by bin and state, and the number of rows; of the newest `look` rows. A queue and a lane
-- leave the runs of others out.
-- Index: activity_pkey, a range of it backwards. No lock.
SELECT width_bucket(a.at, %(edges)s::timestamptz[]) - 1 AS bin, a.state,
       coalesce(sum(a.runs) FILTER (WHERE a.queue = coalesce(%(queue)s, a.queue) AND a.lane = coalesce(%(lane)s, a.lane)), 0)::bigint AS runs,
       count(*) AS rows
  FROM (SELECT e.at, e.queue, e.lane, e.state, e.runs
          FROM activity AS e
         WHERE e.tenant = %(tenant)s
           AND e.at >= (%(edges)s::timestamptz[])[1] AND e.at < (%(edges)s::timestamptz[])[cardinality(%(edges)s::timestamptz[])]
         ORDER BY e.at DESC
         LIMIT %(look)s) AS a
 GROUP BY 1, 2

-- name: read_stages
-- Returns the runs of a tenant by bin, stage and bucket of lateness; of the newest `look` rows.
-- Index: activity_pkey, a range of it backwards. No lock.
SELECT width_bucket(a.at, %(edges)s::timestamptz[]) - 1 AS bin, u.packed >> 32 AS bucket, sum(u.packed & 4294967295)::bigint AS runs
  FROM (SELECT e.at, e.queue, e.lane, e.stages
          FROM activity AS e
         WHERE e.tenant = %(tenant)s
           AND e.at >= (%(edges)s::timestamptz[])[1] AND e.at < (%(edges)s::timestamptz[])[cardinality(%(edges)s::timestamptz[])]
         ORDER BY e.at DESC
         LIMIT %(look)s) AS a
 CROSS JOIN unnest(a.stages) AS u (packed)
 WHERE u.packed >> 48 = ANY (%(stages)s::bigint[])
   AND a.queue = coalesce(%(queue)s, a.queue)
   AND a.lane = coalesce(%(lane)s, a.lane)
 GROUP BY 1, 2

-- name: find_slowest_runs
-- Returns the slowest runs of a tenant that ended in a span of time, with their seconds; of the newest `look` rows.
-- Index: activity_pkey, a range of it backwards. No lock.
SELECT u.run_id, max(u.took) AS took
  FROM (SELECT e.took, e.slowest
          FROM activity AS e
         WHERE e.tenant = %(tenant)s AND e.at >= %(since)s AND e.at < %(until)s
         ORDER BY e.at DESC
         LIMIT %(look)s) AS a
 CROSS JOIN unnest(a.took, a.slowest) AS u (took, run_id)
 GROUP BY u.run_id
 ORDER BY 2 DESC, 1
 LIMIT %(limit)s

-- name: read_job_times
-- Returns of each of these jobs the last attempts among its newest `look` ended runs, as far as they ended from `since` on: the number of
-- these runs and attempts, the attempts' median, 99th percentile and sum, and the first end.
-- Index: by job in the partitions from the day of `since` on, walked backwards. No lock.
SELECT w.job_id, count(*) AS runs, count(l.took) AS attempts, percentile_disc(0.5) WITHIN GROUP (ORDER BY l.took) AS p50,
       percentile_disc(0.99) WITHIN GROUP (ORDER BY l.took) AS p99, sum(l.took) AS total, min(l.finished_at) AS first_at
  FROM unnest(%(job_ids)s::uuid[]) AS w (job_id)
 CROSS JOIN LATERAL (
    SELECT f.finished_at, f.finished_at - f.started_at AS took
      FROM finished_runs AS f
     WHERE f.job_id = w.job_id AND f.finished_at >= %(day)s
     ORDER BY f.scheduled_at DESC
     LIMIT %(look)s
  ) AS l
 WHERE l.finished_at >= %(since)s
 GROUP BY w.job_id
HAVING count(l.took) > 0

-- name: count_upcoming
-- Returns the timers of a tenant that come due, by bin; of each shard the first `look`, and true if there are more.
-- Index: timers_due, a range of each shard. No lock.
SELECT width_bucket(t.due_at, %(edges)s::timestamptz[]) - 1 AS bin, count(*) AS jobs, bool_or(t.place >= %(look)s::bigint) AS cut
  FROM unnest(%(shards)s::integer[]) AS s (shard)
 CROSS JOIN LATERAL (
    SELECT o.due_at, row_number() OVER (ORDER BY o.due_at) AS place
      FROM (SELECT i.due_at
              FROM timers AS i
             WHERE i.shard = s.shard AND i.tenant = %(tenant)s
               AND i.due_at >= (%(edges)s::timestamptz[])[1]
               AND i.due_at < (%(edges)s::timestamptz[])[cardinality(%(edges)s::timestamptz[])]
             ORDER BY i.due_at
             LIMIT %(look)s) AS o
  ) AS t
 GROUP BY 1

-- name: group_open_runs
-- Returns the oldest `look` open runs of a tenant by queue, lane, handler, state and hold, and by whether their cancel is accepted, each
-- with the oldest of them. A hold is a limit or an order for which they wait; only the `holds` ones with the most runs have a number.
-- A buffered run has no time of a claim: it is due from its scheduled time, and not before its row.
-- Index: job_runs_by_tenant, from the tenant's begin; cancellations_open, pending_cancels_by_run. No lock.
-- Why: the rows are sorted by instant before they are grouped. To sort them by queue, lane and handler too takes three times as long.
WITH oldest AS MATERIALIZED (
    SELECT f.*, coalesce(f.publish_at > (SELECT tidewheel_now()), true) AS ahead,
           NOT ({{tidewheel.transitions.no_cancel_of_many(f)}}) AS is_cancelled
      FROM (SELECT r.queue, r.lane, r.handler, r.state, r.waits_for, r.run_id, r.tenant, r.job_id, r.cause, r.created_at, r.attempt,
                   CASE WHEN r.state = 'buffered' THEN greatest(r.scheduled_at, r.created_at)
                        ELSE nullif(r.publish_at, 'infinity') END AS publish_at
              FROM job_runs AS r
             WHERE r.tenant = %(tenant)s AND r.shard >= 0
             ORDER BY r.tenant, r.run_id
             LIMIT %(look)s) AS f
), largest AS MATERIALIZED (
    SELECT waits_for FROM oldest WHERE waits_for IS NOT NULL GROUP BY waits_for ORDER BY count(*) DESC, waits_for LIMIT %(holds)s
)
SELECT o.queue, o.lane, o.handler, o.state, o.is_held, o.hold, o.ahead, o.is_cancelled, count(*) AS runs,
       count(*) FILTER (WHERE o.publish_at < (SELECT tidewheel_now()) - interval '1 s') AS late,
       min(o.publish_at) AS oldest_at, max(o.publish_at) AS newest_at, (array_agg(o.run_id))[1] AS run_id
  FROM (SELECT f.*, f.waits_for IS NOT NULL AS is_held,
               CASE WHEN f.waits_for = ANY (ARRAY(SELECT waits_for FROM largest)) THEN f.waits_for END AS hold
          FROM oldest AS f
         ORDER BY f.publish_at, f.run_id) AS o
 GROUP BY o.queue, o.lane, o.handler, o.state, o.is_held, o.hold, o.ahead, o.is_cancelled

-- name: find_failing_jobs
-- Returns the jobs of a tenant that fail, once for each error: those with failures from `hour` on, and those that failed `least` times
-- without a success since. Those that fail no more have recovered. Of the newest `look` failures; the most from `hour` on first, then the newest.
-- `at_least` is true if these are not all of the hour's `failed` runs. `since` is null if the first failure may be an older one.
-- Index: failed_runs_by_tenant, backwards; finished_runs_by_job of two days, for the newest `runs` of each; jobs_pkey,
-- failed_runs_pkey.
-- No lock.
-- Why `since_version`: that version is in force, all these failures are of it, and the last success is of the version before.
WITH latest AS MATERIALIZED (
    SELECT f.run_id, f.job_id, f.job_version, f.finished_at, f.state, f.error_type
      FROM failed_runs AS f
     WHERE f.tenant = %(tenant)s AND f.run_id >= %(first_id)s
     ORDER BY f.tenant DESC, f.run_id DESC
     LIMIT %(look)s
), looked AS MATERIALIZED (
    SELECT count(*) >= %(look)s AS is_cut, count(*) FILTER (WHERE finished_at >= %(hour)s) AS in_hour, min(finished_at) AS oldest
      FROM latest
), causes AS MATERIALIZED (
    SELECT l.job_id, l.error_type, l.state, count(*) FILTER (WHERE l.finished_at >= %(hour)s) AS in_hour,
           max(l.finished_at) AS newest_at, (array_agg(l.run_id ORDER BY l.finished_at DESC))[1] AS newest, min(l.job_version) AS version
      FROM latest AS l
     GROUP BY l.job_id, l.error_type, l.state
    HAVING max(l.finished_at) >= %(hour)s OR count(*) >= %(least)s
     ORDER BY in_hour DESC, newest_at DESC
     LIMIT 50
)
SELECT j.key, j.job_id, c.error_type, c.state, c.in_hour, k.is_cut AND k.in_hour < %(failed)s AS at_least, row.in_a_row,
       CASE WHEN NOT k.is_cut OR good.at >= k.oldest THEN row.since END AS since, c.newest_at,
       CASE WHEN NOT k.is_cut AND c.version = j.version AND good.version = j.version - 1 THEN j.version END AS since_version, {{fails(c)}} IS NOT TRUE AS recovered,
       (SELECT left(split_part(m.error_message, E'\n', 1), 200) FROM failed_runs AS m WHERE m.run_id = c.newest) AS message
  FROM causes AS c
 CROSS JOIN looked AS k
  JOIN jobs AS j ON j.job_id = c.job_id AND j.deleted_at IS NULL
 CROSS JOIN LATERAL (
    SELECT max(s.finished_at) FILTER (WHERE s.state = 'succeeded') AS at, max(s.job_version) FILTER (WHERE s.state = 'succeeded') AS version
      FROM (SELECT r.finished_at, r.state, r.job_version FROM finished_runs AS r
             WHERE r.job_id = c.job_id AND r.finished_at >= %(since)s AND r.state IN ('succeeded', 'failed', 'timed_out')
             ORDER BY r.scheduled_at DESC LIMIT %(runs)s) AS s
  ) AS good
 CROSS JOIN LATERAL (
    SELECT count(*) AS in_a_row, min(l.finished_at) AS since
      FROM latest AS l
     WHERE l.job_id = c.job_id AND l.state = c.state AND l.error_type IS NOT DISTINCT FROM c.error_type
       AND (good.at IS NULL OR l.finished_at > good.at)
  ) AS row
 WHERE c.in_hour > 0 OR row.in_a_row >= %(least)s
 ORDER BY c.in_hour DESC, c.newest_at DESC, j.key COLLATE "C"

-- name: find_set_aside
-- Returns some jobs of a tenant that are set aside, each with its last error and that error's time.
-- Index: quarantine_by_job, walked whole: it has a row for each such job; timers_pkey, jobs_pkey. No lock.
SELECT DISTINCT ON (q.job_id) j.key, j.job_id, q.error, q.created_at
  FROM quarantine AS q
  JOIN timers AS t ON t.job_id = q.job_id AND t.hold_reason = 'quarantine'
  JOIN jobs AS j ON j.job_id = q.job_id
 WHERE q.job_id IS NOT NULL AND q.tenant = %(tenant)s
 ORDER BY q.job_id, q.id DESC
 LIMIT %(limit)s

-- name: count_slots
-- Returns the slots of live executors.
-- No index: a row for each executor. No lock.
SELECT coalesce(sum(e.slots), 0)::bigint
  FROM executors AS e
 WHERE NOT e.stopping AND e.last_heartbeat_at > tidewheel_now() - coalesce(e.lease, %(lease)s::interval)

-- name: read_tenant_pulse
-- Returns a fingerprint that changes with each run of a tenant and with its bulk work: of its newest open runs, of its newest
-- runs, of its newest backfills, cancellations and works.
-- Index: job_runs_by_tenant and by tenant in every partition, backfills_by_tenant, cancellations_by_tenant,
-- works_by_tenant, all walked backwards. No lock.
-- Why both: a run may begin and end between two looks, and an old one may end while newer ones are open.
SELECT md5(coalesce(string_agg(pulse, ' '), '')) AS pulse
  FROM (
   (SELECT concat(o.run_id, o.state, o.attempt) AS pulse FROM job_runs AS o
     WHERE (o.tenant, o.run_id) >= (%(tenant)s, '00000000-0000-0000-0000-000000000000') AND o.tenant <= %(tenant)s
       AND o.shard >= 0
     ORDER BY o.tenant DESC, o.run_id DESC
     LIMIT 500)
    UNION ALL
   (SELECT r.run_id::text FROM runs AS r
     WHERE (r.tenant, r.run_id) < (%(tenant)s, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
       AND (r.tenant, r.run_id) >= (%(tenant)s, '00000000-0000-0000-0000-000000000000') AND r.shard >= 0
     ORDER BY r.tenant DESC, r.run_id DESC
     LIMIT 20)
    UNION ALL
   (SELECT concat(b.backfill_id, b.state, b.created_count) FROM backfills AS b
     WHERE b.tenant = %(tenant)s ORDER BY b.created_at DESC LIMIT 10)
    UNION ALL
   (SELECT concat(c.id, c.cancelled_count, c.finished_at) FROM cancellations AS c
     WHERE c.tenant = %(tenant)s ORDER BY c.id DESC LIMIT 10)
    UNION ALL
   (SELECT concat(w.work_id, w.state, w.done_count, w.rejected_count) FROM works AS w
     WHERE w.tenant = %(tenant)s ORDER BY w.created_at DESC LIMIT 10)
  ) AS pulses

-- name: read_run_pulses
-- Returns a fingerprint of each given run of a tenant: of its state, its attempt and its progress.
-- Index: job_runs_pkey, the partitions' indexes by run, run_inputs_pkey. No lock.
SELECT r.run_id, concat_ws(' ', r.state, r.attempt, r.publish_at, r.started_at, i.progress_at) AS pulse
  FROM runs AS r
  LEFT JOIN run_inputs AS i ON i.run_id = r.run_id
 WHERE r.run_id = ANY (%(ids)s) AND r.tenant = %(tenant)s

-- name: read_job_pulses
-- Returns a fingerprint of each given job of a tenant: of its version, its pause, its next instant and its latest runs.
-- Index: jobs_pkey, timers_pkey, job_runs_by_job and by job in every partition, walked backwards. No lock.
SELECT j.job_id, concat_ws(' ', j.version, j.paused, j.updated_at, j.deleted_at, t.due_at, t.hold_reason, latest.pulse) AS pulse
  FROM jobs AS j
  LEFT JOIN timers AS t ON t.job_id = j.job_id
  CROSS JOIN LATERAL (
    SELECT md5(coalesce(string_agg(concat(seen.run_id, seen.state, seen.attempt), ' '), '')) AS pulse
      FROM (SELECT r.run_id, r.state, r.attempt FROM runs AS r
             WHERE r.job_id = j.job_id
             ORDER BY r.scheduled_at DESC, r.run_id DESC
             LIMIT 50) AS seen) AS latest
 WHERE j.job_id = ANY (%(ids)s) AND j.tenant = %(tenant)s

-- name: read_fallbacks
-- Return the work of the last minute by step and queue, by the usual path and by the fall-back, of the processes that live.
-- No index: a handful of rows. No lock. A later release may have further steps.
SELECT f.counts ->> 0, f.counts ->> 1, sum((f.counts ->> 2)::bigint)::bigint, sum((f.counts ->> 3)::bigint)::bigint
  FROM processes AS p
 CROSS JOIN LATERAL jsonb_array_elements(p.fallbacks) AS f (counts)
 WHERE p.last_heartbeat_at > tidewheel_now() - %(silent_after)s::interval AND f.counts ->> 0 = ANY (%(steps)s::text[])
 GROUP BY 1, 2
 ORDER BY 1, 2

-- name: lock_message_keys
-- Allows one rotation at a time.
-- Lock: the table, against other writers; readers go on.
LOCK TABLE message_keys IN SHARE ROW EXCLUSIVE MODE

-- name: read_message_key_age
-- Returns the age of the newest key of run messages, in seconds.
-- Index: message_keys_pkey. No lock.
SELECT extract(epoch FROM tidewheel_now() - created_at)::double precision FROM message_keys ORDER BY key_id DESC LIMIT 1

-- name: add_message_key
-- Adds a random key of run messages; returns its id.
-- Index: message_keys_pkey. Lock: its own row.
INSERT INTO message_keys DEFAULT VALUES RETURNING key_id

-- name: delete_message_keys
-- Deletes the keys of run messages but the newest.
-- No index: a few rows. Lock: the deleted rows.
DELETE FROM message_keys WHERE key_id NOT IN (SELECT key_id FROM message_keys ORDER BY key_id DESC LIMIT %(kept)s)

-- name: lock_task_token_keys
-- Allows one rotation at a time.
-- Lock: the table, against other writers; readers go on.
LOCK TABLE task_token_keys IN SHARE ROW EXCLUSIVE MODE

-- name: count_attempts_of_old_keys
-- Returns the number of open attempts that began before all services signed with the newest key of task tokens.
-- No index: the open runs as a whole, for a command of an operator. No lock.
SELECT count(*) FROM job_runs
 WHERE started_at < (SELECT max(created_at) + make_interval(secs => %(signs_after)s) FROM task_token_keys)

-- name: read_task_token_key_ages
-- Returns the ages of the keys of task tokens in seconds, the newest first.
-- Index: task_token_keys_pkey. No lock.
SELECT extract(epoch FROM tidewheel_now() - created_at)::double precision FROM task_token_keys ORDER BY key_id DESC

-- name: add_task_token_key
-- Adds a random key of task tokens; returns its id.
-- Index: task_token_keys_pkey. Lock: its own row.
INSERT INTO task_token_keys DEFAULT VALUES RETURNING key_id

-- name: delete_task_token_keys
-- Deletes the keys of task tokens but the newest.
-- No index: a few rows. Lock: the deleted rows.
DELETE FROM task_token_keys WHERE key_id NOT IN (SELECT key_id FROM task_token_keys ORDER BY key_id DESC LIMIT %(kept)s)

-- name: replace_readable_key
-- Replaces the key of task tokens that applications read by one that opens nothing: services of 0.1.0 need one to start.
-- Index: settings_pkey. Lock: the row.
UPDATE settings SET value = to_jsonb(encode(sha256((gen_random_uuid()::text || gen_random_uuid()::text)::bytea), 'hex'))
 WHERE name = 'task_token_key'
