-- name: read_pending
-- Returns the kinds of work that are due now, each with its count.
-- No index: a test's own database. No lock.
SELECT 'due timers', count(*) FROM timers WHERE due_at <= tidewheel_now()
UNION ALL
SELECT 'running attempts', count(*) FROM job_runs WHERE state = ANY (%(owned)s)
UNION ALL
SELECT 'due runs', count(*)
  FROM job_runs
 WHERE state = ANY (%(claimable)s) AND publish_at <= tidewheel_now()
   AND (deadline_at IS NULL OR deadline_at > tidewheel_now())
   AND handler = ANY (%(handlers)s)
UNION ALL
SELECT 'overdue runs', count(*)
  FROM job_runs
 WHERE deadline_at <= tidewheel_now() AND state <> ALL (%(owned)s)
UNION ALL
SELECT 'messages to publish', count(*) FROM outbox WHERE publish_at <= tidewheel_now() AND starts_with(topic, %(prefix)s)
UNION ALL
SELECT 'deferred effects', count(*) FROM deferred_effects
UNION ALL
SELECT 'pending cancels', count(*) FROM pending_cancels
UNION ALL
SELECT 'cancellations', count(*) FROM cancellations WHERE finished_at IS NULL
UNION ALL
SELECT 'signals', count(*) FROM signals

-- name: read_next_due
-- Returns the next instant with work; null if there is none.
-- No index: a test's own database. No lock.
SELECT min(at)
  FROM (
    SELECT due_at FROM timers
     UNION ALL
    SELECT publish_at FROM job_runs
     UNION ALL
    SELECT deadline_at FROM job_runs
     UNION ALL
    SELECT publish_at FROM outbox
     UNION ALL
    SELECT paused_until FROM jobs WHERE paused
       ) AS coming (at)
 WHERE at > tidewheel_now() AND at < 'infinity'

-- name: read_queues
-- Returns the queues of all jobs.
-- No index: a test's own database. No lock.
SELECT DISTINCT queue FROM job_versions

-- name: read_unknown_handlers
-- Returns due runs for which no handler is registered.
-- No index: a test's own database. No lock.
SELECT DISTINCT j.key, o.handler
  FROM job_runs AS o
  JOIN jobs AS j USING (job_id)
 WHERE o.state = ANY (%(claimable)s) AND o.publish_at <= tidewheel_now() AND o.handler <> ALL (%(handlers)s)

-- name: read_runs_of
-- Returns the runs of a job with their current states, in the order of their instants.
-- No index: a test's own database. No lock.
SELECT r.run_id, r.job_id, r.state, r.attempt, r.scheduled_at,
       r.started_at, r.finished_at, r.reason,
       coalesce(r.error_type, a.error_type) AS error_type,
       coalesce(f.error_message, a.error_message) AS error_message, x.result
  FROM runs AS r
  LEFT JOIN attempts AS a ON a.run_id = r.run_id AND a.attempt = r.attempt
                          AND (r.finished_at IS NULL OR a.error_type = r.error_type)
  LEFT JOIN failed_runs AS f ON f.run_id = r.run_id
  LEFT JOIN attempt_outputs AS x ON x.run_id = r.run_id AND x.attempt = r.attempt
 WHERE r.job_id = %(job_id)s
 ORDER BY r.scheduled_at, r.created_at, r.run_id

-- name: read_dead_letters
-- Returns dead letters: the job's key or the message's topic, with the reason.
-- No index: a test's own database. No lock.
SELECT coalesce(j.key, d.topic), d.reason, last.error_type, last.error_message
  FROM dead_letters AS d
  LEFT JOIN jobs AS j USING (job_id)
  LEFT JOIN LATERAL (
    SELECT a.error_type, a.error_message FROM attempts AS a WHERE a.run_id = d.run_id ORDER BY a.attempt DESC LIMIT 1
  ) AS last ON true
 ORDER BY d.id
