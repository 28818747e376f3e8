-- name: read_run
-- A run as it stands: the open row where there is one, the final one otherwise, with the last attempt's error and result.
-- Index: primary keys of the partition, of open_runs and of the attempts' partitions. No lock.
SELECT r.run_id, r.job_id, coalesce(o.state, r.state) AS state, coalesce(o.attempt, r.attempt) AS attempt, r.scheduled_at,
       coalesce(o.started_at, r.started_at) AS started_at, r.finished_at, r.reason,
       coalesce(r.error_type, a.error_type) AS error_type, a.error_message, x.result
  FROM job_runs AS r
  LEFT JOIN open_runs AS o ON o.run_id = r.run_id
  LEFT JOIN attempts AS a ON a.run_id = r.run_id AND a.attempt = r.attempt
  LEFT JOIN attempt_outputs AS x ON x.run_id = r.run_id AND x.attempt = r.attempt
 WHERE r.run_id = %(run_id)s AND r.tenant = %(tenant)s


-- name: list_jobs
-- A page of a tenant's jobs by key, each with its schedule, its timer and its latest run whose instant has come.
-- Index: jobs_by_key, walked from the page's start; job_versions_pkey, timers_pkey; by job in every partition of runs. No lock.
SELECT j.key, j.job_id, j.version, v.schedule, j.labels, j.paused, j.paused_until, j.finished_at, t.scheduled_at AS next_at,
       t.held, r.run_id, coalesce(o.state, r.state) AS state, r.scheduled_at,
       coalesce(o.started_at, r.started_at) AS started_at, r.finished_at AS ended_at, r.reason, r.error_type
  FROM (SELECT *
          FROM jobs
         WHERE tenant = %(tenant)s AND key > %(after)s AND version > 0 AND deleted_at IS NULL
           AND starts_with(key, %(prefix)s) AND coalesce(labels, '{}') @> %(labels)s
           AND (%(paused)s::boolean IS NULL OR paused = %(paused)s)
           AND (%(kind)s::text IS NULL OR schedule_kind = %(kind)s)
         ORDER BY key
         LIMIT %(most)s) AS j
  JOIN job_versions AS v ON v.job_id = j.job_id AND v.version = j.version
  LEFT JOIN timers AS t ON t.job_id = j.job_id
  LEFT JOIN LATERAL (
        SELECT * FROM job_runs AS l
         WHERE l.job_id = j.job_id AND l.scheduled_at <= tidewheel_now()
         ORDER BY l.scheduled_at DESC
         LIMIT 1) AS r ON true
  LEFT JOIN open_runs AS o ON o.run_id = r.run_id
 ORDER BY j.key

-- name: show_job
-- One job with everything about it: its current version as submitted, its pause, its timer and its latest run.
-- Index: jobs_pkey, job_versions_pkey, timers_pkey; by job in every partition of runs. No lock.
SELECT j.key, j.job_id, j.version, v.schedule, j.labels, j.paused, j.paused_until, j.finished_at, t.scheduled_at AS next_at,
       t.held, r.run_id, coalesce(o.state, r.state) AS state, r.scheduled_at,
       coalesce(o.started_at, r.started_at) AS started_at, r.finished_at AS ended_at, r.reason, r.error_type,
       v.spec, v.definition, v.effective_at, j.paused_by, j.pause_reason, j.paused_at, j.failures, j.created_at
  FROM jobs AS j
  JOIN job_versions AS v ON v.job_id = j.job_id AND v.version = j.version
  LEFT JOIN timers AS t ON t.job_id = j.job_id
  LEFT JOIN LATERAL (
        SELECT * FROM job_runs AS l
         WHERE l.job_id = j.job_id AND l.scheduled_at <= tidewheel_now()
         ORDER BY l.scheduled_at DESC
         LIMIT 1) AS r ON true
  LEFT JOIN open_runs AS o ON o.run_id = r.run_id
 WHERE j.job_id = %(job_id)s AND j.deleted_at IS NULL
