-- name: heartbeat_executor
-- Renew the lease of all attempts of an executor; the first beat inserts its row. Returns the database's clock.
-- Index: executors_pkey.
-- Lock: its own row, not the row's key, so that claims continue.
INSERT INTO executors (
    executor_id, name, queues, handlers, slots, group_protocol, lease, heartbeat_count, last_heartbeat_at, started_at, stopping,
    keeps_early)
VALUES (%(executor_id)s, %(name)s, %(queues)s, %(handlers)s, %(slots)s, %(group_protocol)s, %(lease)s, 0, tidewheel_now(),
        tidewheel_now(), %(stopping)s, true)
ON CONFLICT (executor_id) DO UPDATE
   SET heartbeat_count = executors.heartbeat_count + 1, last_heartbeat_at = tidewheel_now(), stopping = %(stopping)s
RETURNING last_heartbeat_at, heartbeat_count

-- name: record_payload_schemas
-- Record the JSON schemas of the payloads of handlers as texts, for the console. A handler without one has no row, or null.
-- Index: settings_pkey.
-- Lock: the rows of these handlers, in the order of their names.
INSERT INTO settings AS s (name, value)
SELECT 'payload_schema/' || g.handler, g.schema
  FROM unnest(%(handlers)s::text[], %(schemas)s::jsonb[]) AS g (handler, schema)
 WHERE g.schema <> 'null' OR EXISTS (SELECT FROM settings AS k WHERE k.name = 'payload_schema/' || g.handler)
 ORDER BY g.handler
    ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE s.value <> excluded.value

-- name: lock_lease_for_claim
-- Lock this executor's lease for a claim; no row means that a reaper has ended it. Returns false if the claim must call
-- share_old_claims.
-- Index: executors_pkey.
-- Lock: claims_lock, shared with other claims; its own row's key, shared; the advisory lock of 0.1, not waited for.
-- Why: no reaper ends the lease during the claim, and cancellations are written either before the claim or after it. The
-- following statements wait for a locked run only briefly, and longer for a key. All in one statement, since every claim pays for it. The DELETE
-- reads and writes no row: it locks its table, also in a kept plan.
WITH locked AS (DELETE FROM claims_lock WHERE false)
SELECT pg_try_advisory_xact_lock_shared(hashtext('tidewheel.claims')), set_config('lock_timeout', '50ms', true),
       set_config('tidewheel.patient', 'on', true)
  FROM executors
 WHERE executor_id = %(executor_id)s
   FOR KEY SHARE

-- name: delete_executor
-- Delete the row of an executor that has released everything; with an attempt left the row stays for a reaper.
-- Index: executors_pkey; reads job_runs once, at the end of a process.
-- Lock: its own row.
DELETE FROM executors
 WHERE executor_id = %(executor_id)s
   AND NOT EXISTS (SELECT FROM job_runs AS o WHERE o.executor_id = %(executor_id)s AND o.state = ANY (%(states)s))

-- name: watch_executors
-- Return every executor's counter and lease, and the server's start time, for the reaper to compare.
-- No index: few rows. No lock.
SELECT executor_id, heartbeat_count, pg_postmaster_start_time(), coalesce(extract(epoch FROM lease), 0)::float8 FROM executors

-- name: lock_missed_lease
-- Lock an executor whose counter is unchanged; no row while a claim of its own is in progress or suspended.
-- Index: executors_pkey.
-- Lock: the row, skipped if another transaction holds it.
SELECT 1 FROM executors WHERE executor_id = %(executor_id)s AND heartbeat_count = %(heartbeat_count)s FOR UPDATE SKIP LOCKED

-- name: is_lease_missed
-- Return a row if an executor's counter is unchanged, even if another transaction holds the row.
-- Index: executors_pkey. No lock.
SELECT 1 FROM executors WHERE executor_id = %(executor_id)s AND heartbeat_count = %(heartbeat_count)s

-- name: end_lease
-- Delete an executor that has no attempts left.
-- Index: executors_pkey.
-- Lock: the row, which lock_missed_lease has locked already.
DELETE FROM executors WHERE executor_id = %(executor_id)s

-- name: lock_leased_runs
-- Lock the attempts of an executor that missed its lease, or that of the run `only`; `state` is null if another transaction
-- holds the row.
-- Index: none on executor_id, which would cost every claim its HOT update; read only after a loss. job_runs_pkey.
-- Lock: each run in run_id order; locked rows are skipped.
-- Why: a statement after lock_missed_lease, so that it sees every earlier claim. Without the locks, the silent executor could
-- move a run to waiting before it is requeued.
SELECT owned.run_id, owned.job_id, owned.job_version, owned.attempt, owned.lost_attempts, locked.state
  FROM (SELECT *
          FROM job_runs AS o
         WHERE o.executor_id = %(executor_id)s AND o.state = ANY (%(states)s)
           AND (%(only)s::uuid IS NULL OR o.run_id = %(only)s)
         ORDER BY o.run_id) AS owned
  LEFT JOIN LATERAL (
    SELECT p.state
      FROM job_runs AS p
     WHERE p.run_id = owned.run_id
       AND p.attempt = owned.attempt
       AND p.executor_id = %(executor_id)s
       AND p.state = ANY (%(states)s)
       FOR UPDATE SKIP LOCKED
  ) AS locked ON true

-- name: find_orphans
-- Return executors that own attempts and have no row: a safety net that should find nothing.
-- Index: none; reads job_runs once a minute, by one reaper at a time.
-- Lock: the row of the number of shards, which never changes, skipped if another reaper has it.
WITH alone AS MATERIALIZED (SELECT FROM settings WHERE name = 'shards' FOR NO KEY UPDATE SKIP LOCKED)
SELECT DISTINCT o.executor_id
  FROM job_runs AS o
 WHERE EXISTS (SELECT FROM alone)
   AND o.state = ANY (%(states)s)
   AND NOT EXISTS (SELECT FROM executors AS e WHERE e.executor_id = o.executor_id)

-- part: is_named(source)
-- True if a freeze may name runs of the tenant: it is of the tenant, or of all.
-- No index: all freezes, once a statement. No lock.
-- Why: with a thousand paused tenants, the look at each tenant and run would compare all freezes.
((SELECT EXISTS (SELECT FROM freezes AS z WHERE z.tenant IS NULL))
 OR source.tenant IN (SELECT z.tenant FROM freezes AS z WHERE z.tenant IS NOT NULL))

-- part: thawed(source)
-- True unless a freeze names all runs of the tenant in the queue: then none of them is read, however many wait.
-- Index: freezes_pkey. No lock.
CASE WHEN source.tenant IN (SELECT z.tenant FROM freezes AS z
                             WHERE z.tenant IS NOT NULL AND z.queue IS NULL AND z.thawed_at IS NULL AND NOT z.by_job) THEN false
     WHEN {{is_named(source)}}
     THEN NOT EXISTS (SELECT FROM freezes AS z
                       WHERE z.thawed_at IS NULL AND NOT z.by_job
                         AND (z.queue IS NULL OR z.queue = source.queue)
                         AND (z.tenant IS NULL OR z.tenant = source.tenant)
                      OFFSET 0)
     ELSE true END

-- part: not_frozen(run)
-- True if no freeze names the open run, as tidewheel.transitions.not_frozen.
-- Index: as there. No lock.
CASE WHEN {{is_named(run)}} THEN {{tidewheel.transitions.not_frozen(run)}} ELSE true END

-- part: tenants_of_served(found)
-- Returns the tenants with open runs in each queue and lane of `served`, as the recursive query of that name.
-- Index: job_runs_due, from one tenant to the next. No lock.
(
    SELECT s.queue, s.lane, n.tenant
      FROM served AS s
     CROSS JOIN LATERAL (
        SELECT o.tenant FROM job_runs AS o WHERE o.queue = s.queue AND o.lane = s.lane ORDER BY o.tenant LIMIT 1
      ) AS n
    UNION ALL
    SELECT f.queue, f.lane, n.tenant
      FROM found AS f
     CROSS JOIN LATERAL (
        SELECT o.tenant
          FROM job_runs AS o
         WHERE o.queue = f.queue AND o.lane = f.lane AND o.tenant > f.tenant
         ORDER BY o.tenant
         LIMIT 1
      ) AS n
)

-- part: can_start(source)
-- True if the executor can start one of the 20 oldest due runs of the tenant in the queue and lane, false if these are 20 and it can start
-- none of them, else null.
-- Index: job_runs_due, once, up to the first such run. No lock.
-- Why: a tenant without such a run must take no turn, and its runs may be many.
(SELECT p.able
   FROM (SELECT d.handler = ANY (%(handlers)s) AND {{not_frozen(d)}} AS able, d.place
           FROM (SELECT o.job_id, o.tenant, o.queue, o.handler, o.cause, o.attempt, o.scheduled_at, o.moved_ahead, o.publish_at,
                        o.created_at, row_number() OVER (ORDER BY o.publish_at) AS place
                   FROM job_runs AS o
                  WHERE o.queue = source.queue AND o.lane = source.lane AND o.tenant = source.tenant
                    AND o.publish_at <= (SELECT tidewheel_now())
                    AND o.state = ANY (%(sources)s)
                  ORDER BY o.publish_at
                  LIMIT 20) AS d
         OFFSET 0) AS p
  WHERE p.able OR p.place = 20
  LIMIT 1)

-- name: find_due_tenants
-- Return the tenants with due runs of each queue and lane that this executor may be able to start, their weights, whether one of the oldest
-- is such a run, and whether a relay holds the lane back.
-- Index: job_runs_due, from one tenant to the next, then 20 runs of each at most; tenants_pkey; freezes and members as a whole, a row for
-- each freeze and process. No lock.
WITH RECURSIVE served AS (
    SELECT s.queue, s.lane FROM unnest(%(queues)s::text[], %(lanes)s::text[]) AS s (queue, lane)
), found AS {{tenants_of_served(found)}}, able AS MATERIALIZED (
    SELECT f.queue, f.lane, f.tenant, {{can_start(f)}} AS can_start FROM found AS f WHERE {{thawed(f)}}
), held AS MATERIALIZED (
    SELECT h.queue, h.lane
      FROM members AS m
     CROSS JOIN LATERAL jsonb_to_recordset(m.held) AS h (queue text, lane text)
     WHERE {{tidewheel.is_live(m)}}
)
SELECT a.queue, a.lane, a.tenant, coalesce((SELECT t.weight FROM tenants AS t WHERE t.tenant = a.tenant), 1) AS weight, a.can_start,
       (a.queue, a.lane) IN (SELECT h.queue, h.lane FROM held AS h) AS is_held
  FROM able AS a
 WHERE a.can_start IS NOT NULL

-- name: find_due_runs
-- Return the oldest due open runs of each tenant that this executor can run, with their age, for the sweep.
-- Index: job_runs_due, from the low-water mark of each tenant; reads about 20,000 rows at most that no freeze names. No lock; the
-- claim decides.
-- Why: runs that a cancellation or a freeze names are left out, or a backlog of them would hide the runs behind it. A subquery for each
-- row lets the scan end at the last row needed.
SELECT o.run_id, o.job_id, o.tenant, o.shard, o.queue, o.lane, o.cause, o.job_version, o.attempt, o.scheduled_at, o.publish_at,
       o.created_at, o.concurrency_key, (SELECT tidewheel_now()) - o.publish_at AS age
  FROM unnest(%(queues)s::text[], %(lanes)s::text[], %(tenants)s::text[], %(limits)s::integer[], %(marks)s::timestamptz[])
       AS s (queue, lane, tenant, row_limit, mark)
 CROSS JOIN LATERAL (
    SELECT d.run_id, d.job_id, d.tenant, d.shard, d.queue, d.lane, d.cause, d.job_version, d.attempt, d.scheduled_at, d.publish_at,
           d.created_at, d.concurrency_key
      FROM (
        SELECT r.*
          FROM job_runs AS r
         WHERE r.queue = s.queue
           AND r.lane = s.lane
           AND r.tenant = s.tenant
           AND r.publish_at > s.mark
           AND r.publish_at <= (SELECT tidewheel_now())
           AND (r.deadline_at IS NULL OR r.deadline_at > (SELECT tidewheel_now()))
           AND r.state = ANY (%(sources)s)
           AND r.handler = ANY (%(handlers)s)
           AND {{not_frozen(r)}}
         ORDER BY r.publish_at
         LIMIT s.row_limit + 20000 / cardinality(%(queues)s::text[])
      ) AS d
     WHERE (SELECT true FROM cancellations AS c WHERE {{tidewheel.transitions.names_run(d)}} LIMIT 1) IS NULL
       AND {{tidewheel.transitions.no_cancel_pends(d)}}
     ORDER BY d.publish_at
     LIMIT s.row_limit
  ) AS o
 WHERE {{thawed(s)}}

-- name: read_signals
-- Return the signals for attempts of this executor, and whether each is old.
-- Index: signals_by_executor. No lock.
SELECT run_id, attempt, kind, created_at < (SELECT tidewheel_now()) - %(stray_after)s::interval
  FROM signals
 WHERE executor_id = %(executor_id)s

-- name: drop_terminates
-- Delete delivered signals of runs that had ended before.
-- Index: signals_pkey.
-- Lock: the rows.
DELETE FROM signals AS s
 USING unnest(%(run_ids)s::uuid[], %(attempts)s::integer[]) AS done (run_id, attempt)
 WHERE s.run_id = done.run_id AND s.attempt = done.attempt AND s.kind = %(terminate)s

-- name: add_remote_executor
-- Insert a remote executor, of an API key or of the token of all; no row if so many are registered with it.
-- Index: executors_pkey; reads the table, of some hundred rows, whole.
-- Lock: the new row.
-- Why: its claims are numbered, so that a repeated one starts nothing twice.
INSERT INTO executors (executor_id, name, queues, handlers, slots, lease, heartbeat_count, last_heartbeat_at, started_at, last_claim_seq,
                       key_id, acts_for)
SELECT %(executor_id)s, %(name)s, %(queues)s, %(handlers)s, %(slots)s, %(lease)s, 0, tidewheel_now(), tidewheel_now(), 0, %(key_id)s,
       %(acts_for)s
 WHERE (SELECT count(*) FROM executors AS e WHERE e.last_claim_seq IS NOT NULL AND e.key_id IS NOT DISTINCT FROM %(key_id)s)
       < %(most)s

-- name: heartbeat_remote_executor
-- Renew the lease of a remote executor; never inserts a row, since a lost lease has lost its attempts.
-- Index: executors_pkey.
-- Lock: its own row, waiting for a claim of its own.
UPDATE executors
   SET heartbeat_count = heartbeat_count + 1, last_heartbeat_at = tidewheel_now(), stopping = %(stopping)s
 WHERE executor_id = %(executor_id)s AND last_claim_seq IS NOT NULL AND key_id IS NOT DISTINCT FROM %(key_id)s
RETURNING last_heartbeat_at

-- name: lock_remote_executor
-- Lock a remote executor for a claim; no row means that its lease was ended. The last column is false if the claim must call
-- share_old_claims.
-- Index: executors_pkey.
-- Lock: its own row until commit; claims_lock and the advisory lock as lock_lease_for_claim.
-- Why: no reaper ends the lease during the claim, and its claims follow one another. Cancellations are written either before
-- the claim or after it, as for lock_lease_for_claim.
WITH locked AS (DELETE FROM claims_lock WHERE false)
SELECT e.queues, e.handlers, e.last_claim_seq, e.acts_for, pg_try_advisory_xact_lock_shared(hashtext('tidewheel.claims'))
  FROM executors AS e
 WHERE e.executor_id = %(executor_id)s AND e.last_claim_seq IS NOT NULL AND e.key_id IS NOT DISTINCT FROM %(key_id)s
   FOR NO KEY UPDATE OF e

-- name: find_allowed_runs
-- Return those of these runs that an executor with an API key may claim: of its queues, and of its tenant if it has one.
-- Index: job_runs_pkey. No lock; the claim that follows decides.
SELECT run_id FROM job_runs
 WHERE run_id = ANY (%(run_ids)s::uuid[]) AND queue = ANY (%(queues)s) AND (%(acts_for)s::text IS NULL OR tenant = %(acts_for)s)

-- name: store_claim_seq
-- Set the number of the newest claim.
-- Index: executors_pkey.
-- Lock: its own row, which lock_remote_executor has locked already.
UPDATE executors SET last_claim_seq = %(claim_seq)s WHERE executor_id = %(executor_id)s

-- name: find_due_handled
-- Return open runs of these queues that a remote executor can run and that have been due for a while: critical first, then by turns of
-- the tenants.
-- Index: job_runs_due, from one tenant to the next, then the oldest of each; tenants_pkey. Reads 256 tenants of all lanes at most, by
-- chance. No lock; the claim that follows decides.
-- Why: a quarter of these is left to tenants whose oldest runs the executor cannot start. The look at 512 tenants is enough if it can start
-- runs of 192, else all are looked at. Runs that a cancellation names are left out, as in find_due_runs. The turns of a tenant come at
-- random times, as often as its weight: requests of executors share no memory.
WITH RECURSIVE served AS (
    SELECT s.queue, s.lane, s.rank
      FROM unnest(%(queues)s::text[], %(lanes)s::text[]) WITH ORDINALITY AS s (queue, lane, rank)
), found AS {{tenants_of_served(found)}}, shuffled AS MATERIALIZED (
    SELECT t.*, row_number() OVER (ORDER BY random()) AS place
      FROM (SELECT f.queue, f.lane, f.tenant FROM found AS f WHERE %(acts_for)s::text IS NULL
             UNION ALL
            SELECT s.queue, s.lane, %(acts_for)s FROM served AS s WHERE %(acts_for)s::text IS NOT NULL) AS t
     WHERE {{thawed(t)}}
), looked_at AS MATERIALIZED (
    SELECT f.*, {{can_start(f)}} AS can_start FROM shuffled AS f WHERE f.place <= 512
), able AS (
    SELECT f.* FROM looked_at AS f
     UNION ALL
    SELECT r.*, {{can_start(r)}} AS can_start
      FROM shuffled AS r
     WHERE r.place > 512 AND (SELECT count(*) FROM looked_at AS f WHERE f.can_start) < 192
), chosen AS MATERIALIZED (
    SELECT p.queue, p.lane, p.tenant
      FROM (SELECT a.*, row_number() OVER (PARTITION BY a.can_start ORDER BY a.place) AS turn
              FROM able AS a
             WHERE a.can_start IS NOT NULL) AS p
     ORDER BY CASE WHEN p.can_start THEN p.turn ELSE 3 * p.turn END
     LIMIT 256
), parts AS MATERIALIZED (
    SELECT s.rank, c.queue, c.lane, c.tenant, coalesce((SELECT t.weight FROM tenants AS t WHERE t.tenant = c.tenant), 1) AS weight,
           least(%(limit)s::integer, 4 * %(limit)s::integer / count(*) OVER (PARTITION BY s.rank) + 1) AS row_limit
      FROM chosen AS c
      JOIN served AS s USING (queue, lane)
)
SELECT o.run_id, o.job_id, o.tenant, o.shard, o.queue, o.lane, o.cause, o.job_version, o.attempt, o.scheduled_at, o.publish_at,
       o.created_at, o.concurrency_key
  FROM parts AS s
 CROSS JOIN LATERAL (
    SELECT d.run_id, d.job_id, d.tenant, d.shard, d.queue, d.lane, d.cause, d.job_version, d.attempt, d.scheduled_at, d.publish_at,
           d.created_at, d.concurrency_key
      FROM (
        SELECT r.*
          FROM job_runs AS r
         WHERE r.queue = s.queue
           AND r.lane = s.lane
           AND r.tenant = s.tenant
           AND r.publish_at <= (SELECT tidewheel_now()) - %(min_age)s::interval
           AND (r.deadline_at IS NULL OR r.deadline_at > (SELECT tidewheel_now()))
           AND r.state = ANY (%(sources)s)
           AND r.handler = ANY (%(handlers)s)
           AND {{not_frozen(r)}}
         ORDER BY r.publish_at
         LIMIT s.row_limit + 20000
      ) AS d
     WHERE (SELECT true FROM cancellations AS c WHERE {{tidewheel.transitions.names_run(d)}} LIMIT 1) IS NULL
       AND {{tidewheel.transitions.no_cancel_pends(d)}}
     ORDER BY d.publish_at
     LIMIT s.row_limit
  ) AS o
 ORDER BY s.rank, sum(-ln(1 - random())) OVER (PARTITION BY s.rank, s.tenant ORDER BY o.publish_at, o.run_id) / s.weight
 LIMIT %(limit)s

-- name: find_sweep_claim
-- Return the runs that a sweep of a remote executor has started, as they were before, for a repeated claim.
-- Index: none on executor_id; read only after a response was lost.
-- No lock: its own row keeps its claims apart.
SELECT o.run_id, o.job_id, o.tenant, o.shard, o.queue, o.lane, o.cause, o.job_version, o.attempt - 1 AS attempt, o.scheduled_at,
       o.publish_at, o.created_at, o.concurrency_key
  FROM job_runs AS o
 WHERE o.executor_id = %(executor_id)s AND o.claimed_from = %(claimed_from)s AND o.state = ANY (%(states)s)

-- name: read_owned_attempts
-- Return those of the reported attempts that their executor still owns; none if it has another API key.
-- Index: job_runs_pkey; executors has some hundred rows. No lock; every write about them carries the same fence.
SELECT o.job_id, o.job_version, o.run_id, o.attempt, o.failed_attempts, o.lost_attempts, o.publish_at, o.started_at, o.schedule_to_close_at
  FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[]) AS requested (run_id, attempt)
 CROSS JOIN LATERAL (SELECT * FROM job_runs AS p WHERE p.run_id = requested.run_id OFFSET 0) AS o
 WHERE o.attempt = requested.attempt AND o.executor_id = %(executor_id)s AND o.state = ANY (%(states)s)
   AND NOT EXISTS (SELECT FROM executors AS e WHERE e.executor_id = %(executor_id)s AND e.key_id IS DISTINCT FROM %(key_id)s)

-- name: drop_handled_signals
-- Delete signals that a remote executor has answered, of runs that had ended before.
-- Index: signals_pkey.
-- Lock: the rows.
DELETE FROM signals AS s
 USING unnest(%(run_ids)s::uuid[], %(attempts)s::integer[]) AS done (run_id, attempt)
 WHERE s.run_id = done.run_id AND s.attempt = done.attempt AND s.executor_id = %(executor_id)s AND s.kind = %(terminate)s

-- name: lock_attempt
-- Lock an attempt that may still complete its run; from then on no other transaction ends, cancels or requeues it.
-- Index: job_runs_pkey; pending_cancels_by_run, if that is not tiny.
-- Lock: the row, waiting for another transaction and then reading the row's new version.
SELECT o.run_id
  FROM job_runs AS o
 WHERE o.run_id = %(run_id)s AND o.attempt = %(attempt)s AND o.executor_id = %(executor_id)s AND o.state = %(running)s
   AND {{tidewheel.transitions.no_cancel_pends(o)}}
   FOR UPDATE OF o

-- name: find_completed
-- Return the runs that an attempt has ended as succeeded: `complete_in` was committed.
-- Index: finished_runs_YYYYMMDD by run_id, of the days since the first of these attempts. No lock.
SELECT r.run_id
  FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[]) AS asked (run_id, attempt)
 CROSS JOIN LATERAL (
    SELECT f.run_id, f.attempt, f.state
      FROM finished_runs AS f
     WHERE f.run_id = asked.run_id AND f.finished_at >= %(since)s
    OFFSET 0
  ) AS r
 WHERE r.attempt = asked.attempt AND r.state = %(succeeded)s

-- name: find_batch_of_run
-- The tenant and the batch of an open run, with the tenant's limit of a payload.
-- Index: job_runs_pkey, batches_pkey, tenants_pkey. No lock.
SELECT o.tenant, b.batch_id, t.max_payload_bytes
  FROM job_runs AS o
  JOIN tenants AS t ON t.tenant = o.tenant
  LEFT JOIN batches AS b ON b.batch_id = o.workflow_run_id
 WHERE o.run_id = %(run_id)s

-- name: refuse_completion
-- Fail, so that the transaction is never committed. No index, no lock.
SELECT tidewheel_attempt_over(%(run_id)s, %(attempt)s)

-- name: read_previous
-- Return the job's last earlier instant that became a run, and its last earlier run that succeeded, with the result.
-- Index: job_runs_by_job and by job in every partition, scanned backwards from the instant; outputs by run and attempt. No lock.
-- Why: neither is searched for beyond this many runs.
SELECT (SELECT r.scheduled_at
          FROM (SELECT e.scheduled_at, e.cause, e.state
                  FROM runs AS e
                 WHERE e.job_id = %(job_id)s AND e.scheduled_at < %(at)s
                 ORDER BY e.scheduled_at DESC
                 LIMIT %(limit)s) AS r
         WHERE r.cause = ANY (%(causes)s::text[]) AND r.state <> %(skipped)s
         ORDER BY r.scheduled_at DESC
         LIMIT 1),
       last.scheduled_at, last.result
  FROM (SELECT) AS one
  LEFT JOIN LATERAL (
    SELECT r.scheduled_at, x.result
      FROM (SELECT e.run_id, e.attempt, e.scheduled_at, e.state
              FROM runs AS e
             WHERE e.job_id = %(job_id)s AND e.scheduled_at < %(at)s
             ORDER BY e.scheduled_at DESC
             LIMIT %(limit)s) AS r
      LEFT JOIN attempt_outputs AS x ON x.run_id = r.run_id AND x.attempt = r.attempt
     WHERE r.state = %(succeeded)s
     ORDER BY r.scheduled_at DESC
     LIMIT 1
  ) AS last ON true
