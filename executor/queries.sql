-- name: beat_executor
-- The executor says that it lives: this counter is the lease of all its attempts. The first beat enters it. Brings the
-- database's clock along.
-- Index: executors_pkey. Lock: its own row (not its key, so that claims go on).
INSERT INTO executors (
    executor_id, name, queues, handlers, slots, group_protocol, lease, heartbeat_count, last_heartbeat_at, started_at, stopping)
VALUES (%(executor_id)s, %(name)s, %(queues)s, %(handlers)s, %(slots)s, %(group_protocol)s, %(lease)s, 0, tidewheel_now(),
        tidewheel_now(), %(stopping)s)
ON CONFLICT (executor_id) DO UPDATE
   SET heartbeat_count = executors.heartbeat_count + 1, last_heartbeat_at = tidewheel_now(), stopping = %(stopping)s
RETURNING last_heartbeat_at, heartbeat_count

-- name: hold_lease
-- Makes sure that nobody has ended this executor's lease, and that nobody does while it claims; and that what the claims
-- consult (cancellations) was written either before them or after. One statement, for every claim pays its way there.
-- Index: executors_pkey. Lock: its own row's key, shared; the advisory one `claims`, shared.
SELECT pg_advisory_xact_lock_shared(hashtext('tidewheel.claims'))
  FROM executors
 WHERE executor_id = %(executor_id)s
   FOR KEY SHARE

-- name: leave_executor
-- The executor has handed everything back and goes; with a run still in its hands the row stays for a reaper.
-- Index: executors_pkey; reads open_runs once, at the end of a process. Lock: its own row.
DELETE FROM executors
 WHERE executor_id = %(executor_id)s
   AND NOT EXISTS (SELECT FROM open_runs AS o WHERE o.executor_id = %(executor_id)s AND o.state = ANY (%(states)s))

-- name: watch_executors
-- Every executor's counter and lease, and since when the server runs: the reaper compares them with what it saw before.
-- No index: a handful of rows. No lock.
SELECT executor_id, heartbeat_count, pg_postmaster_start_time(), coalesce(extract(epoch FROM lease), 0)::float8 FROM executors

-- name: lock_lease
-- An executor whose counter still stands where it was seen; not while a claim of its own is under way, or stands still.
-- Index: executors_pkey. Lock: the row, passed over when somebody has it.
SELECT 1 FROM executors WHERE executor_id = %(executor_id)s AND heartbeat_count = %(heartbeat_count)s FOR UPDATE SKIP LOCKED

-- name: is_silent
-- Whether an executor's counter still stands where it was seen, whoever has its row.
-- Index: executors_pkey. No lock.
SELECT 1 FROM executors WHERE executor_id = %(executor_id)s AND heartbeat_count = %(heartbeat_count)s

-- name: end_lease
-- Ends the lease of an executor that has no attempts left.
-- Index: executors_pkey. Lock: the row, which lock_lease has locked already.
DELETE FROM executors WHERE executor_id = %(executor_id)s

-- name: find_leased_runs
-- The attempts of an executor that fell silent. A later statement than lock_lease, to see every claim before it.
-- Index: none on executor_id, which would cost every claim its HOT update; read only after a loss. No lock.
SELECT run_id, job_id, job_version, attempt, lost_attempts, state FROM open_runs
 WHERE executor_id = %(executor_id)s AND state = ANY (%(states)s)
 ORDER BY run_id

-- name: find_orphans
-- Executors that have attempts in hand and no row: a safety net that should stay empty.
-- Index: none; reads open_runs once a minute, by one reaper at a time. Lock: an advisory one, passed over when taken.
SELECT DISTINCT o.executor_id
  FROM open_runs AS o
 WHERE (SELECT pg_try_advisory_xact_lock(hashtext('tidewheel.orphans')))
   AND o.state = ANY (%(states)s)
   AND NOT EXISTS (SELECT FROM executors AS e WHERE e.executor_id = o.executor_id)

-- name: find_due_runs
-- Open runs that are due and that this executor could run, the longest due first, with how long: what Kafka has not
-- brought yet, or will not. Those that a cancellation names are left out, or a backlog of them would keep what is behind
-- it from being found; a subquery for each row, so that the walk still ends at the last one that is wanted.
-- Index: open_runs_due, from the mark; past 20,000 rows of a lane it looks no further. No lock; the claim decides.
SELECT o.run_id, o.job_id, o.shard, o.queue, o.lane, o.cause, o.job_version, o.attempt, o.scheduled_at, o.publish_at,
       (SELECT tidewheel_now()) - o.publish_at AS due_for
  FROM unnest(%(queues)s::text[], %(lanes)s::text[], %(limits)s::integer[], %(marks)s::timestamptz[])
       AS s (queue, lane, most, mark)
 CROSS JOIN LATERAL (
    SELECT d.run_id, d.job_id, d.shard, d.queue, d.lane, d.cause, d.job_version, d.attempt, d.scheduled_at, d.publish_at
      FROM (
        SELECT r.*
          FROM open_runs AS r
         WHERE r.queue = s.queue
           AND r.lane = s.lane
           AND r.publish_at > s.mark
           AND r.publish_at <= (SELECT tidewheel_now())
           AND (r.deadline_at IS NULL OR r.deadline_at > (SELECT tidewheel_now()))
           AND r.state = ANY (%(sources)s)
           AND (r.handler IS NULL OR r.handler = ANY (%(handlers)s))
         ORDER BY r.publish_at
         LIMIT 20000
      ) AS d
     WHERE (SELECT true FROM cancellations AS c WHERE {{tidewheel.transitions.names_run(d)}} LIMIT 1) IS NULL
     ORDER BY d.publish_at
     LIMIT s.most
  ) AS o

-- name: read_signals
-- Attempts of this executor that are to stop, and whether they should have been known for long.
-- Index: signals_by_executor. No lock.
SELECT run_id, attempt, kind, created_at < (SELECT tidewheel_now()) - %(stray_after)s::interval
  FROM signals
 WHERE executor_id = %(executor_id)s

-- name: drop_terminates
-- Signals that were acted upon, of runs that had ended before.
-- Index: signals_pkey. Lock: the rows.
DELETE FROM signals AS s
 USING unnest(%(run_ids)s::uuid[], %(attempts)s::integer[]) AS done (run_id, attempt)
 WHERE s.run_id = done.run_id AND s.attempt = done.attempt AND s.kind = %(terminate)s

-- name: enter_remote
-- An executor in another language enters; its claims are counted, so that one that is sent twice starts nothing twice.
-- Index: executors_pkey. Lock: the new row.
INSERT INTO executors (executor_id, name, queues, handlers, slots, lease, heartbeat_count, last_heartbeat_at, started_at, last_claim_seq)
VALUES (%(executor_id)s, %(name)s, %(queues)s, %(handlers)s, %(slots)s, %(lease)s, 0, tidewheel_now(), tidewheel_now(), 0)

-- name: beat_remote
-- An executor in another language says that it lives; nobody enters by it, for whoever lost the lease lost its attempts.
-- Index: executors_pkey. Lock: its own row, waiting for a claim of its own.
UPDATE executors
   SET heartbeat_count = heartbeat_count + 1, last_heartbeat_at = tidewheel_now(), stopping = %(stopping)s
 WHERE executor_id = %(executor_id)s AND last_claim_seq IS NOT NULL
RETURNING last_heartbeat_at

-- name: lock_remote
-- Makes sure that nobody ends this lease while it claims, and that its claims come one after another; and that what the
-- claims consult was written either before them or after, as hold_lease does.
-- Index: executors_pkey. Lock: its own row until commit; the advisory one `claims`, shared.
SELECT e.queues, e.handlers, e.last_claim_seq
  FROM executors AS e
 CROSS JOIN pg_advisory_xact_lock_shared(hashtext('tidewheel.claims'))
 WHERE e.executor_id = %(executor_id)s AND e.last_claim_seq IS NOT NULL
   FOR NO KEY UPDATE OF e

-- name: count_claim
-- Takes note of the newest claim.
-- Index: executors_pkey. Lock: its own row, which lock_remote has locked already.
UPDATE executors SET last_claim_seq = %(claim_id)s WHERE executor_id = %(executor_id)s

-- name: find_due_handled
-- Open runs of these queues that have been due for a while, whose handlers such an executor has; the critical lane first.
-- Those that a cancellation names are left out, as in find_due_runs.
-- Index: open_runs_due; past 20,000 rows of a lane it looks no further. No lock; the claim that follows decides.
SELECT o.run_id, o.job_id, o.shard, o.queue, o.lane, o.cause, o.job_version, o.attempt, o.scheduled_at, o.publish_at
  FROM unnest(%(queues)s::text[], %(lanes)s::text[]) WITH ORDINALITY AS s (queue, lane, rank)
 CROSS JOIN LATERAL (
    SELECT d.run_id, d.job_id, d.shard, d.queue, d.lane, d.cause, d.job_version, d.attempt, d.scheduled_at, d.publish_at
      FROM (
        SELECT r.*
          FROM open_runs AS r
         WHERE r.queue = s.queue
           AND r.lane = s.lane
           AND r.publish_at <= (SELECT tidewheel_now()) - %(due_for)s::interval
           AND (r.deadline_at IS NULL OR r.deadline_at > (SELECT tidewheel_now()))
           AND r.state = ANY (%(sources)s)
           AND r.handler = ANY (%(handlers)s)
         ORDER BY r.publish_at
         LIMIT 20000
      ) AS d
     WHERE (SELECT true FROM cancellations AS c WHERE {{tidewheel.transitions.names_run(d)}} LIMIT 1) IS NULL
     ORDER BY d.publish_at
     LIMIT %(most)s
  ) AS o
 ORDER BY s.rank, o.publish_at
 LIMIT %(most)s

-- name: find_sweep_claim
-- What a sweep of an executor in another language has started, when it asks a second time; as they were before.
-- Index: none on executor_id; read only after an answer was lost. No lock: its own row keeps its claims apart.
SELECT o.run_id, o.job_id, o.shard, o.queue, o.lane, o.cause, o.job_version, o.attempt - 1 AS attempt, o.scheduled_at,
       o.publish_at
  FROM open_runs AS o
 WHERE o.executor_id = %(executor_id)s AND o.claimed_from = %(claimed_from)s AND o.state = ANY (%(states)s)

-- name: read_owned_attempts
-- The attempts of an executor that are still in its hands, of those it reports about.
-- Index: open_runs_pkey. No lock; what is written about them carries the same fence.
SELECT o.job_id, o.job_version, o.run_id, o.attempt, o.failed_attempts, o.lost_attempts, o.publish_at, o.started_at, o.schedule_to_close_at
  FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[]) AS wanted (run_id, attempt)
 CROSS JOIN LATERAL (SELECT * FROM open_runs AS p WHERE p.run_id = wanted.run_id OFFSET 0) AS o
 WHERE o.attempt = wanted.attempt AND o.executor_id = %(executor_id)s AND o.state = ANY (%(states)s)

-- name: drop_answered
-- Signals of runs that had ended before, which an executor in another language has answered.
-- Index: signals_pkey. Lock: the rows.
DELETE FROM signals AS s
 USING unnest(%(run_ids)s::uuid[], %(attempts)s::integer[]) AS done (run_id, attempt)
 WHERE s.run_id = done.run_id AND s.attempt = done.attempt AND s.executor_id = %(executor_id)s AND s.kind = %(terminate)s

-- name: hold_attempt
-- Whether an attempt may still complete its run: nobody else ends it, cancels it or sends it back from now on.
-- Index: open_runs_pkey. Lock: the row, waiting for whoever has it; what became of it meanwhile is looked at again.
SELECT run_id FROM open_runs
 WHERE run_id = %(run_id)s AND attempt = %(attempt)s AND executor_id = %(executor_id)s AND state = %(running)s
   FOR UPDATE

-- name: refuse_completion
-- Fails, and so makes sure that what the transaction holds is never committed. No index, no lock.
SELECT tidewheel_attempt_over(%(run_id)s, %(attempt)s)

-- name: read_previous
-- The last instant of a job before another that became a run, and the last run before it that succeeded with what it
-- returned. Neither is looked for further back than so many runs.
-- Index: by job in every partition of runs, walked from the instant; outputs by run and attempt. No lock.
SELECT (SELECT r.scheduled_at
          FROM (SELECT e.scheduled_at, e.cause, e.state
                  FROM job_runs AS e
                 WHERE e.job_id = %(job_id)s AND e.scheduled_at < %(at)s
                 ORDER BY e.scheduled_at DESC
                 LIMIT %(most)s) AS r
         WHERE r.cause = ANY (%(causes)s::text[]) AND r.state <> %(skipped)s
         ORDER BY r.scheduled_at DESC
         LIMIT 1),
       last.scheduled_at, last.result
  FROM (SELECT) AS asked
  LEFT JOIN LATERAL (
    SELECT r.scheduled_at, x.result
      FROM (SELECT e.run_id, e.attempt, e.scheduled_at, e.state
              FROM job_runs AS e
             WHERE e.job_id = %(job_id)s AND e.scheduled_at < %(at)s
             ORDER BY e.scheduled_at DESC
             LIMIT %(most)s) AS r
      LEFT JOIN attempt_outputs AS x ON x.run_id = r.run_id AND x.attempt = r.attempt
     WHERE r.state = %(succeeded)s
     ORDER BY r.scheduled_at DESC
     LIMIT 1
  ) AS last ON true
