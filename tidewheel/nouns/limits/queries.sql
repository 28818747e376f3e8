-- name: list_key_limits
-- Returns a page of a tenant's limits of keys, each with its keys in use, their places, and the runs that wait.
-- Index: key_limits_pkey; run_keys_by_key and job_runs_waiting, up to `counted` rows of each limit. No lock.
SELECT l.key || CASE WHEN l.is_prefix THEN '*' ELSE '' END AS key, l.at_once, l.every_us AS rate, l.burst, l.set_by, l.set_at,
       used.keys, used.running, used.waiting
  FROM (
    SELECT *
      FROM key_limits
     WHERE tenant = %(tenant)s AND (is_prefix, key) > (%(is_prefix)s, %(after)s::text)
     ORDER BY is_prefix, key
     LIMIT %(limit)s
  ) AS l
 CROSS JOIN LATERAL (
    SELECT count(*) AS keys, coalesce(sum(k.running), 0)::bigint AS running,
           least(coalesce(sum(w.waiting), 0), %(counted)s::integer)::bigint AS waiting
      FROM (
        SELECT r.key_id, r.running, r.has_waiters
          FROM run_keys AS r
         WHERE r.tenant = l.tenant AND r.key <> '' AND r.key COLLATE "C" >= l.key  -- '' is the tenant's own row
           AND r.key COLLATE "C" <= CASE WHEN l.is_prefix THEN l.key || chr(1114111) ELSE l.key END
         ORDER BY r.key COLLATE "C"
         LIMIT %(counted)s
      ) AS k
     CROSS JOIN LATERAL (
        SELECT count(*) AS waiting
          FROM (SELECT FROM job_runs AS o WHERE k.has_waiters AND o.waits_for = k.key_id LIMIT %(counted)s) AS counted
      ) AS w
 ) AS used
 ORDER BY l.is_prefix, l.key

-- name: list_keys_in_use
-- Returns a page of a tenant's keys in use, each with the runs that wait for it.
-- Index: run_keys_by_key; job_runs_waiting, up to `counted` rows of each key. No lock.
SELECT k.key, k.at_once, k.every_us AS rate, k.burst, k.running, w.waiting, k.wake_at AS next_at
  FROM (
    SELECT *
      FROM run_keys AS r
     WHERE r.tenant = %(tenant)s AND r.key COLLATE "C" > %(after)s
       AND r.key COLLATE "C" >= %(first)s AND r.key COLLATE "C" <= %(last)s
     ORDER BY r.key COLLATE "C"
     LIMIT %(limit)s
  ) AS k
 CROSS JOIN LATERAL (
    SELECT count(*) AS waiting
      FROM (SELECT FROM job_runs AS o WHERE k.has_waiters AND o.waits_for = k.key_id LIMIT %(counted)s) AS counted
 ) AS w
 ORDER BY k.key COLLATE "C"

-- part: blocked_key(k)
-- Columns of a blocked ordering key.
k.key, k.blocked_by, k.blocked_at, k.head AS retried_by,
       (SELECT count(*) FROM (SELECT FROM job_runs AS o WHERE o.waits_for = k.key_id LIMIT %(counted)s) AS counted) AS waiting

-- name: list_blocked_keys
-- Returns a tenant's ordering keys that a failed run blocks, the longest first.
-- Index: order_keys_blocked, job_runs_waiting. No lock.
SELECT {{blocked_key(k)}}
  FROM order_keys AS k
 WHERE k.tenant = %(tenant)s
   AND k.blocked_by IS NOT NULL
   AND (k.blocked_at, k.key_id) > (coalesce(%(after)s::timestamptz, '-infinity'), coalesce(%(after_id)s::bigint, 0))
 ORDER BY k.blocked_at, k.key_id
 LIMIT %(limit)s

-- name: read_blocked_key
-- Returns an ordering key if a failed run blocks it.
-- Index: order_keys_pkey, job_runs_waiting. No lock.
SELECT {{blocked_key(k)}}
  FROM order_keys AS k
 WHERE k.key_id = %(key_id)s AND k.blocked_by IS NOT NULL
