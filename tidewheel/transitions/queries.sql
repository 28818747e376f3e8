-- name: lock_claims
-- The runs that may be claimed now, in run_id order.
-- Index: open_runs_pkey. Lock: each row, rows locked by others are passed over (the sweep comes back to them).
SELECT o.run_id, o.job_id, o.tenant, o.overlap, o.attempt
  FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[], %(versions)s::integer[]) AS wanted (run_id, attempt, job_version)
  JOIN open_runs AS o USING (run_id)
 WHERE o.attempt = wanted.attempt - 1
   AND o.job_version = wanted.job_version
   AND o.state = ANY (%(sources)s::text[])
   AND o.publish_at <= (SELECT tidewheel_now())
   AND NOT EXISTS (
        SELECT FROM cancellations AS c
         WHERE c.finished_at IS NULL AND c.job_id = o.job_id AND o.made_at <= c.made_before AND o.attempt = 0
       )
 ORDER BY o.run_id
   FOR UPDATE OF o SKIP LOCKED

-- name: take_turns
-- Takes each job's turn where it is free, and tells who has it. One run of a job per statement.
-- Index: turns_pkey. Lock: each turn, in job_id order, waiting for whoever is about to give it up.
INSERT INTO turns (job_id, tenant, run_id)
SELECT wanted.job_id, wanted.tenant, wanted.run_id
  FROM unnest(%(job_ids)s::uuid[], %(tenants)s::text[], %(run_ids)s::uuid[]) AS wanted (job_id, tenant, run_id)
 ORDER BY wanted.job_id
    ON CONFLICT (job_id) DO UPDATE SET run_id = turns.run_id
RETURNING job_id, run_id

-- name: take_over_turns
-- Takes turns whose holder is no longer open. A later statement than take_turns, so that it sees what the lock waited for.
-- Index: turns_pkey, open_runs_pkey. Lock: the turns, which take_turns has locked already.
UPDATE turns AS t
   SET run_id = wanted.run_id
  FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[]) AS wanted (job_id, run_id)
 WHERE t.job_id = wanted.job_id
   AND NOT EXISTS (SELECT FROM open_runs AS o WHERE o.run_id = t.run_id)
RETURNING t.job_id, t.run_id

-- name: start_attempts
-- The claim itself: raises attempt, which is the fence of everything that follows.
-- Index: open_runs_pkey. Lock: rows that lock_claims has locked already; touches no indexed column (HOT).
UPDATE open_runs AS o
   SET state = %(target)s,
       attempt = o.attempt + 1,
       executor_id = %(executor_id)s,
       started_at = (SELECT tidewheel_now()),
       came_by = wanted.came_by
  FROM unnest(%(run_ids)s::uuid[], %(came_by)s::text[]) AS wanted (run_id, came_by)
 WHERE o.run_id = wanted.run_id
RETURNING o.run_id, o.attempt, o.charged, o.lost, o.publish_at, o.started_at

-- name: wait_for_claims
-- After a lost COMMIT of a claim: waits until the server is done with it, one way or the other.
-- Index: open_runs_pkey. Lock: each row, shared, in run_id order.
SELECT run_id FROM open_runs WHERE run_id = ANY (%(run_ids)s) ORDER BY run_id FOR SHARE

-- name: read_claims
-- After that: which of these attempts stand under this executor. A later statement, to see what was waited for.
-- Index: open_runs_pkey. No lock.
SELECT o.run_id, o.attempt, o.charged, o.lost, o.publish_at, o.started_at
  FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[]) AS wanted (run_id, attempt)
  JOIN open_runs AS o USING (run_id, attempt)
 WHERE o.executor_id = %(executor_id)s AND o.state = ANY (%(states)s)

-- name: close_runs
-- Ends runs whose attempt is still the current one and in the same hands, and whose state allows the end; the row goes.
-- The executor belongs to the fence: a run that went back keeps its attempt, but is nobody's.
-- Index: open_runs_pkey. Lock: each row in run_id order, rows locked by others are passed over and tried again.
DELETE FROM open_runs AS gone
 USING (
    SELECT o.run_id
      FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[], %(executor_ids)s::uuid[], %(states)s::text[])
           AS wanted (run_id, attempt, executor_id, state)
      JOIN open_runs AS o USING (run_id, attempt)
      JOIN unnest(%(ends)s::text[], %(sources)s::text[]) AS allowed (target, source)
        ON allowed.target = wanted.state AND allowed.source = o.state
     WHERE o.executor_id IS NOT DISTINCT FROM wanted.executor_id
     ORDER BY o.run_id
       FOR UPDATE OF o SKIP LOCKED
 ) AS chosen
 WHERE gone.run_id = chosen.run_id
RETURNING gone.run_id, gone.job_id, gone.tenant, gone.shard, gone.queue, gone.lane, gone.cause, gone.overlap, gone.state,
          gone.job_version, gone.attempt, gone.charged, gone.scheduled_at, gone.publish_at, gone.started_at,
          gone.executor_id, gone.came_by, (SELECT tidewheel_now()) AS ended_at

-- name: find_unclosed
-- Of the ends that close_runs did not take: those that were only locked by somebody and must be tried again.
-- Index: open_runs_pkey. No lock.
SELECT o.run_id
  FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[], %(executor_ids)s::uuid[], %(states)s::text[])
       AS wanted (run_id, attempt, executor_id, state)
  JOIN open_runs AS o USING (run_id, attempt)
  JOIN unnest(%(ends)s::text[], %(sources)s::text[]) AS allowed (target, source)
    ON allowed.target = wanted.state AND allowed.source = o.state
 WHERE o.executor_id IS NOT DISTINCT FROM wanted.executor_id

-- name: finish_job_runs
-- Writes the outcome of ended runs. The ids are named twice, so that the plan holds the partitions of these runs alone.
-- Index: the partition's primary key. Lock: the rows, which only the closer of the open run writes.
UPDATE job_runs AS r
   SET state = ended.state,
       attempt = ended.attempt,
       started_at = ended.started_at,
       finished_at = ended.finished_at,
       reason = ended.reason,
       error_type = ended.error_type
  FROM unnest(
        %(run_ids)s::uuid[], %(states)s::text[], %(attempts)s::integer[], %(started_at)s::timestamptz[],
        %(finished_at)s::timestamptz[], %(reasons)s::text[], %(error_types)s::text[]
       ) AS ended (run_id, state, attempt, started_at, finished_at, reason, error_type)
 WHERE r.run_id = ended.run_id
   AND r.run_id = ANY (%(run_ids)s::uuid[])

-- name: give_up_turns
-- Frees the turns that ended runs held.
-- Index: turns_pkey. Lock: each turn, in job_id order.
DELETE FROM turns AS t
 USING (
    SELECT held.job_id
      FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[]) AS ended (job_id, run_id)
      JOIN turns AS held USING (job_id, run_id)
     ORDER BY held.job_id
       FOR UPDATE OF held
 ) AS chosen
 WHERE t.job_id = chosen.job_id

-- name: drop_signals
-- Signals for attempts that are over.
-- Index: signals_pkey. Lock: the rows.
DELETE FROM signals WHERE run_id = ANY (%(run_ids)s)

-- name: add_failed_run
-- The copy of a failed or timed-out run that outlives its partition.
-- Index: failed_runs_pkey. No lock.
INSERT INTO failed_runs (run_id, job_id, tenant, job_version, cause, queue, lane, scheduled_at, started_at, finished_at,
                         state, attempt, error_type, error_message)
VALUES (%(run_id)s, %(job_id)s, %(tenant)s, %(job_version)s, %(cause)s, %(queue)s, %(lane)s, %(scheduled_at)s,
        %(started_at)s, %(finished_at)s, %(state)s, %(attempt)s, %(error_type)s, %(error_message)s)
ON CONFLICT (run_id) DO NOTHING

-- name: add_dead_run
-- A run given up, for the table view of dead letters.
-- Index: dead_letters_run_id_key. No lock.
INSERT INTO dead_letters (tenant, kind, run_id, job_id, reason, made_at)
VALUES (%(tenant)s, 'run', %(run_id)s, %(job_id)s, %(reason)s, %(made_at)s)
ON CONFLICT (run_id) DO NOTHING

-- name: add_dead_request
-- A message that is no request, byte for byte; a repeat after a crash changes nothing.
-- Index: dead_letters_topic_partition_offset_key. No lock.
INSERT INTO dead_letters (tenant, kind, topic, partition, "offset", key, value, reason, made_at)
VALUES (NULL, 'request', %(topic)s, %(partition)s, %(offset)s, %(key)s, %(value)s, %(reason)s, %(made_at)s)
ON CONFLICT (topic, partition, "offset") DO NOTHING

-- name: read_attempts
-- The last hundred attempts of a run that is given up, newest first: losses and snoozes have no bound of their own.
-- Index: the partition's primary key. No lock.
SELECT a.attempt, a.executor_id, a.started_at, a.finished_at, a.outcome, a.error_type, a.error_message
  FROM attempts AS a
 WHERE a.run_id = %(run_id)s
 ORDER BY a.attempt DESC
 LIMIT 100

-- name: requeue_runs
-- Ends an attempt but not its run: a retry, a hand-back, a snooze. attempt stays raised, so the fence holds.
-- Index: open_runs_pkey. Lock: each row in run_id order, rows locked by others are passed over and tried again.
UPDATE open_runs AS o
   SET state = %(target)s,
       publish_at = (SELECT tidewheel_now()) + chosen.delay,
       charged = o.charged + chosen.charge,
       lost = o.lost + chosen.loss,
       executor_id = NULL,
       started_at = NULL
  FROM (
    SELECT p.run_id, wanted.delay, wanted.charge, wanted.loss, p.started_at, p.executor_id, p.came_by
      FROM unnest(
            %(run_ids)s::uuid[], %(attempts)s::integer[], %(executor_ids)s::uuid[], %(delays)s::interval[],
            %(charges)s::integer[], %(losses)s::integer[]
           ) AS wanted (run_id, attempt, executor_id, delay, charge, loss)
      JOIN open_runs AS p USING (run_id, attempt)
     WHERE p.state = ANY (%(sources)s) AND p.executor_id IS NOT DISTINCT FROM wanted.executor_id
     ORDER BY p.run_id
       FOR UPDATE OF p SKIP LOCKED
  ) AS chosen
 WHERE o.run_id = chosen.run_id
RETURNING o.run_id, o.job_id, o.tenant, o.shard, o.queue, o.lane, o.cause, o.job_version, o.attempt, o.scheduled_at,
          o.publish_at, chosen.started_at, chosen.executor_id, chosen.came_by, (SELECT tidewheel_now()) AS ended_at

-- name: read_definitions
-- The immutable part of job versions, for messages that are built again.
-- Index: job_versions_pkey. No lock.
SELECT v.job_id, v.version, v.definition
  FROM unnest(%(job_ids)s::uuid[], %(versions)s::integer[]) AS wanted (job_id, version)
  JOIN job_versions AS v USING (job_id, version)

-- name: read_inputs
-- What runs carry beyond their version.
-- Index: the partition's primary key. No lock.
SELECT i.run_id, i.payload, i.payload_content_type, i.labels, i.traceparent, i.checkpoint
  FROM run_inputs AS i
 WHERE i.run_id = ANY (%(run_ids)s)

-- name: add_job_runs
-- Writes runs that may have been written before (a repeated trigger, firing job by job) and tells which are new.
-- Index: the partition's primary key. Lock: waits for an uncommitted twin.
INSERT INTO job_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, made_at,
                      parent_run_id, root_run_id)
SELECT *
  FROM unnest(
        %(run_ids)s::uuid[], %(job_ids)s::uuid[], %(tenants)s::text[], %(versions)s::integer[], %(shards)s::smallint[],
        %(causes)s::text[], %(queues)s::text[], %(lanes)s::text[], %(scheduled_at)s::timestamptz[],
        %(made_at)s::timestamptz[], %(parents)s::uuid[], %(roots)s::uuid[]
       ) AS new
    ON CONFLICT (run_id) DO NOTHING
RETURNING run_id

-- name: take_back_runs
-- Takes back the timer-made runs of these jobs whose instant is still ahead and which nobody has claimed.
-- Index: open_runs_by_job. Lock: each row, waiting for a claim under way (which then has won).
DELETE FROM open_runs AS o
 WHERE o.job_id = ANY (%(job_ids)s)
   AND o.cause = 'timer'
   AND o.attempt = 0
   AND o.state = ANY (%(sources)s)
   AND o.scheduled_at > %(now)s
RETURNING o.run_id, o.job_id, o.scheduled_at

-- name: forget_job_runs
-- The other half of taking back: the same id can be made again.
-- Index: the partition's primary key. Lock: the rows.
DELETE FROM job_runs WHERE run_id = ANY (%(run_ids)s)

-- name: move_timers
-- Moves timers to their next instant; who calls has locked them.
-- Index: timers_pkey; timers_due changes. Lock: rows already locked.
UPDATE timers AS t
   SET scheduled_at = moved.scheduled_at,
       due_at = moved.scheduled_at
  FROM unnest(%(job_ids)s::uuid[], %(scheduled_at)s::timestamptz[]) AS moved (job_id, scheduled_at)
 WHERE t.job_id = moved.job_id

-- name: drop_timers
-- Timers of jobs that have nothing left to fire, or are deleted.
-- Index: timers_pkey. Lock: rows already locked.
DELETE FROM timers WHERE job_id = ANY (%(job_ids)s)

-- name: finish_jobs
-- Marks jobs that can never fire again.
-- Index: jobs_pkey. Lock: the jobs' rows, after their timers'.
UPDATE jobs SET finished_at = %(now)s WHERE job_id = ANY (%(job_ids)s)

-- name: ask_to_cancel
-- Tells running attempts to stop: from now on the run can only become cancelled.
-- Index: open_runs_pkey. Lock: the row, waiting.
UPDATE open_runs AS o
   SET state = %(target)s
 WHERE o.run_id = %(run_id)s AND o.state = ANY (%(sources)s)
RETURNING o.attempt, o.executor_id

-- name: start_cancelling
-- Attempts that end themselves as cancelled: the state machine has no other way there.
-- Index: open_runs_pkey. Lock: each row in run_id order, rows locked by others are passed over.
UPDATE open_runs AS o
   SET state = %(target)s
  FROM (
    SELECT p.run_id
      FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[]) AS wanted (run_id, attempt)
      JOIN open_runs AS p USING (run_id, attempt)
     WHERE p.executor_id = %(executor_id)s AND p.state = ANY (%(sources)s)
     ORDER BY p.run_id
       FOR UPDATE OF p SKIP LOCKED
  ) AS chosen
 WHERE o.run_id = chosen.run_id

-- name: add_signal
-- What an executor reads to learn that an attempt is to stop; a repeat changes nothing.
-- Index: signals_pkey. No lock.
INSERT INTO signals (run_id, attempt, kind, tenant, executor_id, made_at)
VALUES (%(run_id)s, %(attempt)s, 'cancel', %(tenant)s, %(executor_id)s, tidewheel_now())
ON CONFLICT DO NOTHING

-- name: read_shards
-- How many shards this installation has. Index: settings_pkey. No lock.
SELECT value FROM settings WHERE name = 'shards'

-- name: find_unmoved
-- Of the attempts that requeue_runs did not take: those that were only locked by somebody and must be tried again.
-- Index: open_runs_pkey. No lock.
SELECT o.run_id
  FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[], %(executor_ids)s::uuid[])
       AS wanted (run_id, attempt, executor_id)
  JOIN open_runs AS o USING (run_id, attempt)
 WHERE o.state = ANY (%(sources)s) AND o.executor_id IS NOT DISTINCT FROM wanted.executor_id
