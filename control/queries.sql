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
