-- name: list_freezes
-- Returns the standing freezes of a tenant and of the fleet, each with its jobs and what waits under it: of one tenant only if
-- `only` names it.
-- Index: freezes_pkey, frozen_jobs_pkey. Of the open runs at most `look` are read, by job_runs_by_job, job_runs_by_tenant,
-- job_runs_due or job_runs_pkey; timers_frozen, job_versions_pkey, cancellations_open, pending_cancels_by_run. No lock.
SELECT f.tenant, f.queue, f.labels, f.key_prefix, f.created_by AS by, f.reason, f.created_at AS since,
       CASE WHEN f.by_job THEN (SELECT count(*) FROM frozen_jobs AS k WHERE k.freeze_id = f.id) END AS jobs,
       w.open_runs, w.waiting,
       (SELECT count(*) FROM (
            SELECT FROM timers AS t
              JOIN job_versions AS v ON v.job_id = t.job_id AND v.version = t.version
             WHERE t.hold_reason = 'freeze'
               AND (s.tenant IS NULL OR t.tenant = s.tenant) AND (f.queue IS NULL OR v.queue = f.queue)
               AND (NOT f.by_job OR t.job_id IN (SELECT k.job_id FROM frozen_jobs AS k WHERE k.freeze_id = f.id))
             LIMIT %(limit)s) AS counted) AS held
  FROM freezes AS f
 CROSS JOIN LATERAL (SELECT coalesce(f.tenant, %(only)s::text) AS tenant) AS s
 CROSS JOIN LATERAL (
    SELECT least(count(*), %(limit)s) AS open_runs,
           least(count(*) FILTER (WHERE o.publish_at <= (SELECT tidewheel_now())), %(limit)s) AS waiting
      FROM ((SELECT o.*
               FROM (SELECT k.job_id FROM frozen_jobs AS k WHERE f.by_job AND k.freeze_id = f.id) AS named
               JOIN job_runs AS o ON o.job_id = named.job_id
              LIMIT %(look)s)
            UNION ALL
            (SELECT o.* FROM job_runs AS o
              WHERE NOT f.by_job AND s.tenant IS NOT NULL AND o.tenant = s.tenant AND o.shard >= 0
              LIMIT %(look)s)
            UNION ALL
            (SELECT o.* FROM job_runs AS o
              WHERE NOT f.by_job AND s.tenant IS NULL AND f.queue IS NOT NULL AND o.queue = f.queue
                AND o.lane IN ('critical', 'standard', 'batch') AND o.publish_at <= (SELECT tidewheel_now())
              LIMIT %(look)s)
            UNION ALL
            (SELECT o.* FROM job_runs AS o
              WHERE NOT f.by_job AND s.tenant IS NULL AND f.queue IS NOT NULL AND o.queue = f.queue
                AND o.lane IN ('critical', 'standard', 'batch') AND o.publish_at > (SELECT tidewheel_now())
                AND o.publish_at < 'infinity'
              LIMIT %(look)s)
            UNION ALL
            (SELECT o.* FROM job_runs AS o
              WHERE NOT f.by_job AND s.tenant IS NULL AND f.queue IS NULL
              ORDER BY o.run_id LIMIT %(look)s)) AS o
     WHERE (s.tenant IS NULL OR o.tenant = s.tenant) AND (f.queue IS NULL OR o.queue = f.queue)
       AND o.state = ANY (%(states)s)
       AND {{tidewheel.transitions.no_cancel_is_accepted(o)}}
 ) AS w
 WHERE f.thawed_at IS NULL AND (f.tenant IS NULL OR f.tenant = %(tenant)s)
 ORDER BY f.id

-- name: read_frozen_timers
-- Returns the timers that the freeze of exactly this scope holds, and no other one: of one tenant only if `only` names it. Those that
-- are due and that no scheduler has held yet have the begin of the freeze; of these at most `look` of each shard.
-- Index: timers_frozen, timers_due, job_versions_pkey, jobs_pkey; frozen_jobs_pkey for a freeze by jobs; a few rows of freezes. No lock.
SELECT j.key, t.job_id, t.tenant, t.scheduled_at, v.schedule_json, v.policy_json, t.catch_up_end, t.overridden,
       CASE WHEN t.hold_reason IS NULL THEN f.created_at END AS since
  FROM freezes AS f
  JOIN (SELECT h.* FROM timers AS h WHERE h.hold_reason = 'freeze'
        UNION ALL
        SELECT d.*
          FROM generate_series(0, (SELECT max(m.shard) FROM timers AS m)) AS s (shard)
         CROSS JOIN LATERAL (SELECT * FROM timers AS u
                              WHERE u.shard = s.shard AND u.due_at <= (SELECT tidewheel_now())
                                AND u.hold_reason IS NULL AND u.catch_up_end IS NULL
                                AND u.tenant = coalesce(%(tenant)s, %(only)s, u.tenant)
                              ORDER BY u.due_at LIMIT %(look)s) AS d) AS t ON t.tenant = coalesce(f.tenant, %(only)s, t.tenant)
  JOIN job_versions AS v ON v.job_id = t.job_id AND v.version = t.version
  JOIN jobs AS j ON j.job_id = t.job_id
 WHERE {{tidewheel.transitions.same_scope(f)}}
   AND (f.queue IS NULL OR f.queue = v.queue)
   AND (NOT f.by_job OR EXISTS (SELECT FROM frozen_jobs AS k WHERE k.freeze_id = f.id AND k.job_id = t.job_id OFFSET 0))
   AND NOT EXISTS (SELECT FROM freezes AS z
                    WHERE z.id <> f.id
                      AND z.thawed_at IS NULL
                      AND (z.queue IS NULL OR z.queue = v.queue)
                      AND (z.tenant IS NULL OR z.tenant = t.tenant)
                      AND (NOT z.by_job
                           OR EXISTS (SELECT FROM frozen_jobs AS k WHERE k.freeze_id = z.id AND k.job_id = t.job_id OFFSET 0))
                   OFFSET 0)
 ORDER BY t.job_id
 LIMIT %(limit)s

-- name: find_standing_freezes
-- Returns the standing freezes of a tenant and of the fleet, the oldest first, without counts.
-- No index: a row for each freeze that is not thawed, or not yet settled. No lock.
SELECT f.tenant, f.queue, f.labels, f.key_prefix, f.created_by AS by, f.reason, f.created_at AS since
  FROM freezes AS f
 WHERE f.thawed_at IS NULL AND (f.tenant IS NULL OR f.tenant = %(tenant)s)
 ORDER BY f.id
 LIMIT %(limit)s

-- name: count_freezable
-- Returns how many of the first `look` open runs of a scope wait to start, are due of these, and are under way, and the number looked
-- at; null as the tenant means all tenants. A run whose cancel is accepted does not wait to start.
-- Index: job_runs_by_tenant if a tenant is given; jobs_pkey for labels and keys; cancellations_open, pending_cancels_by_run. No lock.
SELECT count(*) FILTER (WHERE o.named AND o.starts),
       count(*) FILTER (WHERE o.named AND o.starts AND o.publish_at <= (SELECT tidewheel_now())),
       count(*) FILTER (WHERE o.named AND o.state = ANY (%(under_way)s)), count(*)
  FROM (SELECT r.state, r.publish_at,
               r.state = ANY (%(waiting)s) AND {{tidewheel.transitions.no_cancel_is_accepted(r)}} AS starts,
               (%(queue)s::text IS NULL OR r.queue = %(queue)s)
               AND ((%(labels)s::jsonb IS NULL AND %(key_prefix)s::text IS NULL)
                    OR EXISTS (SELECT FROM jobs AS j
                                WHERE j.job_id = r.job_id AND (%(labels)s::jsonb IS NULL OR j.labels @> %(labels)s)
                                  AND (%(key_prefix)s::text IS NULL OR starts_with(j.key, %(key_prefix)s)))) AS named
          FROM ((SELECT t.run_id, t.tenant, t.state, t.queue, t.lane, t.handler, t.cause, t.job_id, t.attempt, t.created_at, t.publish_at
                   FROM job_runs AS t
                  WHERE t.tenant = %(tenant)s AND t.shard >= 0
                  LIMIT %(look)s)
                UNION ALL
                (SELECT a.run_id, a.tenant, a.state, a.queue, a.lane, a.handler, a.cause, a.job_id, a.attempt, a.created_at, a.publish_at
                   FROM job_runs AS a
                  WHERE %(tenant)s::text IS NULL
                  LIMIT %(look)s)) AS r) AS o

-- name: find_freezes_of
-- Returns the standing freezes that name a run of a job in the queue of its current version.
-- Index: freezes_pkey, frozen_jobs_pkey, jobs_pkey, job_versions_pkey. No lock.
SELECT f.tenant, f.queue, f.labels, f.key_prefix, f.created_by AS by, f.reason, f.created_at AS since
  FROM freezes AS f
 WHERE f.thawed_at IS NULL
   AND (f.tenant IS NULL OR f.tenant = %(tenant)s)
   AND (f.queue IS NULL
        OR f.queue = (SELECT v.queue FROM jobs AS j JOIN job_versions AS v USING (job_id, version)
                       WHERE j.job_id = %(job_id)s))
   AND (NOT f.by_job OR EXISTS (SELECT FROM frozen_jobs AS k WHERE k.freeze_id = f.id AND k.job_id = %(job_id)s))
 ORDER BY f.id

-- name: list_all_freezes
-- Returns the standing freezes of all tenants.
-- No index: a handful of rows. No lock.
SELECT f.tenant, f.queue, f.labels, f.key_prefix, f.created_by AS by, f.reason, f.created_at AS since
  FROM freezes AS f
 WHERE f.thawed_at IS NULL
 ORDER BY f.id

-- name: read_freeze_changes
-- Returns the accepted freezes and thaws among the newest 2,000 entries about a tenant in a time, the newest first.
-- Index: audit_log_by_tenant, a range of it backwards. No lock.
SELECT l.at, l.action = 'freeze' AS begins, l.object, coalesce(l.named, l.actor) AS by
  FROM (SELECT a.at, a.action, a.object, a.named, a.actor, a.result FROM audit_log AS a
         WHERE a.tenant = %(tenant)s AND a.at > %(since)s AND a.at <= %(until)s
         ORDER BY a.at DESC, a.id DESC
         LIMIT 2000) AS l
 WHERE l.action IN ('freeze', 'thaw') AND l.result = 'accepted'
 LIMIT 50
