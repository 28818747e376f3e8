-- part: names_run(run)
-- True if the open cancellation `c` names the open run: then no executor claims it.
-- Index: cancelled_jobs_pkey for a cancellation by labels. No lock.
c.finished_at IS NULL
  AND c.tenant = run.tenant
  AND (c.job_id IS NULL OR c.job_id = run.job_id)
  AND (c.queue IS NULL OR c.queue = run.queue)
  AND (c.lane IS NULL OR c.lane = run.lane)
  AND (c.handler IS NULL OR c.handler = run.handler)
  AND (c.cause IS NULL OR c.cause = run.cause)
  AND run.created_at <= c.created_before
  AND (c.include_started OR run.attempt = 0)
  AND (c.labels IS NULL
       OR EXISTS (SELECT FROM cancelled_jobs AS j WHERE j.cancellation_id = c.id AND j.job_id = run.job_id))

-- name: count_cancel_matches
-- Returns how many of the first `look` open runs a cancellation would end, how many of these have not started, and the number looked
-- at; null: of all of them. A run whose cancel is accepted already is not counted.
-- Index: job_runs_by_job if a job is given, else job_runs_by_tenant; jobs_pkey for labels; cancellations_open, pending_cancels_by_run. No
-- lock.
SELECT count(*) FILTER (WHERE m.matches AND (%(include_started)s OR m.attempt = 0)),
       count(*) FILTER (WHERE m.matches AND m.attempt = 0), count(*)
  FROM (
    SELECT o.attempt,
           o.tenant = %(tenant)s AND o.state = ANY (%(states)s)
           AND (%(created_before)s::timestamptz IS NULL OR o.created_at <= %(created_before)s)
           AND (%(queue)s::text IS NULL OR o.queue = %(queue)s)
           AND (%(lane)s::text IS NULL OR o.lane = %(lane)s)
           AND (%(handler)s::text IS NULL OR o.handler = %(handler)s)
           AND (%(cause)s::text IS NULL OR o.cause = %(cause)s)
           AND (%(labels)s::jsonb IS NULL
                OR EXISTS (SELECT FROM jobs AS j WHERE j.job_id = o.job_id AND j.labels @> %(labels)s AND j.deleted_at IS NULL))
           AND {{no_cancel_of_many(o)}} AS matches
      FROM ((SELECT r.run_id, r.tenant, r.state, r.attempt, r.created_at, r.queue, r.lane, r.handler, r.cause, r.job_id
               FROM job_runs AS r
              WHERE r.job_id = %(job_id)s::uuid
              LIMIT %(look)s::bigint)
            UNION ALL
            (SELECT r.run_id, r.tenant, r.state, r.attempt, r.created_at, r.queue, r.lane, r.handler, r.cause, r.job_id
               FROM job_runs AS r
              WHERE %(job_id)s::uuid IS NULL AND r.tenant = %(tenant)s AND r.shard >= 0
              LIMIT %(look)s::bigint)) AS o
    OFFSET 0) AS m

-- part: no_cancel_pends(run)
-- True unless the cancel of the open run was accepted while another transaction held it, and is applied soon.
-- Index: pending_cancels_by_run, read only while there is such a cancel. No lock.
CASE WHEN (SELECT EXISTS (SELECT FROM pending_cancels))
     THEN NOT EXISTS (SELECT FROM pending_cancels AS w WHERE w.run_id = run.run_id OFFSET 0)
     ELSE true END

-- part: no_cancel_is_accepted(run)
-- True unless an open cancellation names the open run, or its own cancel is accepted: then it ends without another attempt.
-- Index: cancellations_open, pending_cancels_by_run. No lock.
NOT EXISTS (SELECT FROM cancellations AS c WHERE {{names_run(run)}}) AND {{no_cancel_pends(run)}}

-- part: no_cancel_of_many(run)
-- The same for a statement that looks at many runs: it looks for a cancellation of each only while one is open.
-- Index: cancellations_open, pending_cancels_by_run. No lock.
CASE WHEN (SELECT EXISTS (SELECT FROM cancellations AS k WHERE k.finished_at IS NULL))
     THEN {{no_cancel_is_accepted(run)}}
     ELSE {{no_cancel_pends(run)}} END

-- part: named(source)
-- True if the freeze `z` names the open run, or the version of a job.
-- Index: frozen_jobs_pkey for a freeze by jobs. No lock.
(z.queue IS NULL OR z.queue = source.queue)
  AND (z.tenant IS NULL OR z.tenant = source.tenant)
  AND (NOT z.by_job OR EXISTS (SELECT FROM frozen_jobs AS k WHERE k.freeze_id = z.id AND k.job_id = source.job_id OFFSET 0))

-- part: written_ahead(run)
-- True if the run was written ahead of an instant that has come under the freeze `z`, and has not started.
-- Index: overrides_pkey. No lock.
-- Why created_at: an edit under the freeze fires instants that have come, and its runs stay.
run.cause = 'timer' AND run.attempt = 0
  AND coalesce((SELECT m.moved_to FROM overrides AS m WHERE m.job_id = run.job_id AND m.scheduled_at = run.scheduled_at),
               run.scheduled_at) BETWEEN greatest(z.created_at, run.created_at) + interval '1 microsecond'
                                     AND coalesce(z.thawed_at, 'infinity')

-- part: not_frozen(run)
-- True if no standing freeze names the open run, and the run was not written ahead of an instant under one that is thawed: the
-- scheduler retracts such a run before it deletes the freeze.
-- Index: freezes_pkey, frozen_jobs_pkey for a freeze by jobs. No lock.
-- Why: without a freeze it is one look a statement. With one, the look for each run costs under a microsecond. A run whose instant
-- lies before its creation was moved. Few others look like it, and wait until the freeze is deleted.
CASE WHEN (SELECT EXISTS (SELECT FROM freezes))
     THEN NOT EXISTS (SELECT FROM freezes AS z
                       WHERE {{named(run)}}
                         AND (z.thawed_at IS NULL
                              OR (run.cause = 'timer' AND run.attempt = 0
                                  AND CASE WHEN run.moved_ahead OR run.scheduled_at < run.created_at THEN run.publish_at
                                           ELSE run.scheduled_at END
                                      BETWEEN greatest(z.created_at, run.created_at) + interval '1 microsecond' AND z.thawed_at))
                      OFFSET 0)
     ELSE true END

-- part: position(timer)
-- The first instant of the timer that a freeze may hold: an end of a catch-up lies behind what was decided before.
CASE WHEN timer.catch_up_end IS NOT NULL THEN timer.catch_up_end + interval '1 microsecond'
     WHEN timer.hold_reason = 'pause' THEN timer.due_at
     ELSE least(timer.scheduled_at, timer.due_at) END

-- part: holds(timer)
-- True if the freeze `z` names the version `v` of the timer, and has not ended before the timer's position.
-- Index: frozen_jobs_pkey for a freeze by jobs. No lock.
coalesce(z.thawed_at >= {{position(timer)}}, true) AND {{named(v)}}

-- name: lock_freezes
-- Locks the freezes before timers are held by them: a thaw comes wholly before, or sees these timers.
-- Index: freezes_pkey. Lock: each row, shared, in id order; waits for a thaw under way.
SELECT id FROM freezes ORDER BY id FOR SHARE

-- name: find_frozen_timers
-- Returns those of these timers that a freeze concerns: the begin of the first one, what holds the timer so far, and whether the
-- timer comes due under the freeze or has instants before it. A later statement than lock_freezes.
-- Index: timers_pkey, job_versions_pkey, freezes_pkey, frozen_jobs_pkey. No lock; the caller has locked the timers.
-- Why scheduled_at: a catch-up from before the freeze goes on. A request that changed nothing has begun the others, and left
-- them at an instant under the freeze.
SELECT t.job_id, f.began, t.hold_reason,
       t.hold_reason IS NOT DISTINCT FROM 'freeze'
       OR CASE WHEN t.catch_up_end IS NOT NULL THEN t.scheduled_at ELSE {{position(t)}} END > f.began
  FROM timers AS t
  JOIN job_versions AS v ON v.job_id = t.job_id AND v.version = t.version
 CROSS JOIN LATERAL (SELECT min(z.created_at) AS began FROM freezes AS z WHERE {{holds(t)}}) AS f
 WHERE t.job_id = ANY (%(job_ids)s::uuid[]) AND f.began IS NOT NULL

-- name: lock_timers_written_ahead
-- Locks the timers of these jobs, before the jobs.
-- Index: timers_pkey. Lock: each timer in job_id order; rows that another transaction holds are skipped, and found again.
SELECT job_id FROM timers WHERE job_id = ANY (%(job_ids)s::uuid[]) ORDER BY job_id FOR UPDATE SKIP LOCKED

-- name: lock_jobs_written_ahead
-- Locks the rows of these jobs, after their timers, and returns those without an own timer too.
-- Index: jobs_pkey, timers_pkey. Lock: each job in job_id order; rows that another transaction holds are skipped, and found again.
SELECT j.job_id
  FROM jobs AS j
 WHERE j.job_id = ANY (%(job_ids)s::uuid[]) AND j.deleted_at IS NULL
   AND (j.job_id = ANY (%(locked)s::uuid[]) OR j.finished_at IS NOT NULL)
 ORDER BY j.job_id
   FOR NO KEY UPDATE SKIP LOCKED

-- name: rewind_timers
-- Holds timers at the first instant whose run was retracted. A job whose last occurrence it was gets its timer back.
-- Index: timers_pkey, jobs_pkey; timers_due and timers_frozen change. Lock: rows that are locked already, or new.
-- Why: a timer that lies before this instant decides it in its turn, and a paused or quarantined one stays so.
-- Why repeats_until: as put_timers of intake.
INSERT INTO timers AS t (job_id, tenant, shard, due_at, scheduled_at, version, hold_reason, overridden, repeats_until)
SELECT j.job_id, j.tenant, j.shard, 'infinity', back.at, j.version, 'freeze', true, (SELECT tidewheel_now()) + interval '5 minutes'
  FROM unnest(%(job_ids)s::uuid[], %(instants)s::timestamptz[]) AS back (job_id, at)
  JOIN jobs AS j USING (job_id)
    ON CONFLICT (job_id) DO UPDATE
   SET scheduled_at = least(t.scheduled_at, excluded.scheduled_at),
       hold_reason = CASE WHEN t.scheduled_at < excluded.scheduled_at OR t.hold_reason IN ('pause', 'quarantine') THEN t.hold_reason
                          ELSE 'freeze' END,
       due_at = CASE WHEN t.scheduled_at < excluded.scheduled_at OR t.hold_reason IN ('pause', 'quarantine') THEN t.due_at
                     ELSE 'infinity' END,
       overridden = true,
       repeats_until = CASE WHEN excluded.scheduled_at < t.scheduled_at THEN greatest(t.repeats_until, t.scheduled_at)
                            ELSE t.repeats_until END

-- name: reopen_jobs
-- Marks jobs as unfinished whose timer has come back.
-- Index: jobs_pkey. Lock: rows that are locked already.
UPDATE jobs SET finished_at = NULL WHERE job_id = ANY (%(job_ids)s::uuid[]) AND finished_at IS NOT NULL

-- part: freeze_ended(timer)
-- The first instant after the held timer's cursor at which no freeze names its version; null while a freeze is in force.
-- Index: freezes_pkey, frozen_jobs_pkey. No lock.
(SELECT min(e.thawed_at)
   FROM (SELECT z.thawed_at
           FROM freezes AS z
          WHERE z.thawed_at >= timer.scheduled_at AND {{named(v)}}) AS e
  WHERE NOT EXISTS (SELECT FROM freezes AS z
                     WHERE z.created_at <= e.thawed_at AND coalesce(z.thawed_at > e.thawed_at, true)
                       AND {{named(v)}}))

-- part: is_released(timer)
-- True if the freezes that hold the timer have ended, or none is left.
-- Index: freezes_pkey, frozen_jobs_pkey. No lock.
({{freeze_ended(timer)}} IS NOT NULL
 OR NOT EXISTS (SELECT FROM freezes AS z
                 WHERE coalesce(z.thawed_at >= timer.scheduled_at, true) AND {{named(v)}}))

-- name: find_freeze_ends
-- Returns those of these timers that are released, each with the end of its freezes; null if no freeze is left.
-- Index: timers_pkey, job_versions_pkey, freezes_pkey, frozen_jobs_pkey. No lock; the caller has locked the timers.
-- Why max: a timer that was held ahead of its instant may lie behind the thaw.
SELECT t.job_id,
       coalesce({{freeze_ended(t)}}, (SELECT max(z.thawed_at) FROM freezes AS z WHERE {{named(v)}}))
  FROM timers AS t
  JOIN job_versions AS v ON v.job_id = t.job_id AND v.version = t.version
 WHERE t.job_id = ANY (%(job_ids)s::uuid[]) AND {{is_released(t)}}

-- name: lock_held_timers
-- Locks timers to release.
-- Index: timers_pkey, job_versions_pkey. Lock: each timer; rows that another transaction holds are skipped, and found again.
SELECT t.job_id, t.tenant, t.shard, t.scheduled_at, t.version, v.schedule_json, v.handler, v.queue, v.lane, v.overlap,
       v.definition, v.has_deadlines, v.concurrency_key, v.priority, v.ordering_key, v.passes, v.policy_json, nullif(t.due_at, 'infinity') AS due_at, t.catch_up_end, t.hold_reason,
       t.overridden, t.repeats_until
  FROM timers AS t
  JOIN job_versions AS v ON v.job_id = t.job_id AND v.version = t.version
 WHERE t.job_id = ANY (%(job_ids)s::uuid[]) AND t.hold_reason = 'freeze'
 ORDER BY t.job_id
   FOR UPDATE OF t SKIP LOCKED

-- name: has_freeze
-- Returns true if a freeze is in force, or thawed and not deleted yet.
-- Index: none; a few rows. No lock.
SELECT EXISTS (SELECT FROM freezes)

-- name: find_written_ahead_of
-- Returns those of these jobs that have runs written ahead of instants under a freeze, each with the begin of the first such freeze.
-- Index: job_runs_by_job, frozen_jobs_pkey, overrides_pkey. No lock; the caller has locked the jobs.
SELECT r.job_id, min(z.created_at)
  FROM freezes AS z
  JOIN job_runs AS r ON r.job_id = ANY (%(job_ids)s::uuid[]) AND {{named(r)}}
 WHERE r.state = ANY (%(sources)s) AND r.gates & %(holds)s = 0 AND {{written_ahead(r)}}
 GROUP BY r.job_id

-- part: same_scope(freeze)
-- True if the freeze is not thawed and has exactly this scope.
-- Index: freezes_pkey; a few rows. No lock.
freeze.thawed_at IS NULL
  AND freeze.tenant IS NOT DISTINCT FROM %(tenant)s
  AND freeze.queue IS NOT DISTINCT FROM %(queue)s
  AND freeze.labels IS NOT DISTINCT FROM %(labels)s::jsonb
  AND freeze.key_prefix IS NOT DISTINCT FROM %(key_prefix)s

-- name: find_freeze
-- The standing freeze of exactly this scope, and whether an operator has begun it as the pause of a tenant.
-- Index: freezes_pkey; a few rows. No lock.
SELECT f.id, f.by_operator FROM freezes AS f WHERE {{same_scope(f)}}

-- part: claimable(run)
-- True if no other run, cancellation or freeze keeps an open run from starting now.
-- Index: job_runs_by_job, job_runs_moved_ahead, active_runs_pkey; pending_cancels_by_run. No lock.
-- Why: the CASE keeps publish_at from being an index condition: with statistics of a nearly empty table the planner
-- would scan all due runs. OFFSET 0 keeps a look from becoming a hashed read of the whole table. A run that has started
-- counts although it has not come: the database's clock may have gone back, by up to 5 s.
run.state = ANY (%(sources)s::text[])
   AND CASE WHEN run.publish_at <= (SELECT tidewheel_now()) THEN true ELSE false END
   AND (run.deadline_at IS NULL OR run.deadline_at > (SELECT tidewheel_now()))
   AND (SELECT NOT EXISTS (SELECT FROM cancellations WHERE finished_at IS NULL))
   AND {{no_cancel_pends(run)}}
   AND {{not_frozen(run)}}
   AND CASE WHEN run.overlap = %(free)s THEN true
            ELSE NOT EXISTS (SELECT FROM job_runs AS other
                              WHERE other.job_id = run.job_id AND other.run_id <> run.run_id AND other.overlap <> %(free)s
                                AND other.scheduled_at <= (SELECT tidewheel_now() + interval '5 s')
                                AND (other.scheduled_at <= (SELECT tidewheel_now() + interval '100 ms') OR other.attempt > 0)
                             OFFSET 0)
                 AND NOT EXISTS (SELECT FROM job_runs AS other
                                  WHERE other.job_id = run.job_id AND other.moved_ahead AND other.run_id <> run.run_id
                                 OFFSET 0)
                 AND NOT EXISTS (SELECT FROM active_runs AS t WHERE t.job_id = run.job_id OFFSET 0)
       END

-- name: claim_uniform
-- Claims runs of one attempt number and one version that pass every gate: the fence, no open cancellation, no pending cancel,
-- no freeze, and, where the policy limits overlaps, no other run of the job that has come. The rest is left to lock_claims.
-- Index: job_runs_pkey, job_runs_by_job, job_runs_moved_ahead, active_runs_pkey; pending_cancels_by_run. Changes no indexed column (HOT).
-- Lock: each run in run_id order, waiting for at most the session's lock_timeout.
-- Why: a claim of another run of the job sets the bit MET of `gates`, so that a claim that waits for the row, or began before, matches
-- nothing.
UPDATE job_runs AS o
   SET state = %(target)s,
       attempt = o.attempt + 1,
       executor_id = %(executor_id)s,
       started_at = (SELECT tidewheel_now()),
       deadline_at = o.schedule_to_close_at,
       claimed_from = NULL
 WHERE o.run_id = ANY (%(run_ids)s::uuid[])
   AND o.attempt = %(attempt)s
   AND o.job_version = %(job_version)s
   AND o.gates & %(barred)s = 0
   AND {{claimable(o)}}
RETURNING o.run_id, o.failed_attempts, o.lost_attempts, o.publish_at, o.started_at, o.schedule_to_close_at

-- name: lock_keyed
-- Locks runs of one attempt number and one version that pass every gate but those of their key and their tenant.
-- Index: job_runs_pkey, and those of claimable.
-- Lock: each run in run_id order, waiting for at most the session's lock_timeout.
-- Why a lock is enough: as claim_uniform, a claim of another run of the job waits for this row, which changes before it is free.
SELECT o.run_id, o.key_id, o.gates, o.scheduled_at, o.overlap = %(free)s, o.tenant
  FROM job_runs AS o
 WHERE o.run_id = ANY (%(run_ids)s::uuid[])
   AND o.attempt = %(attempt)s
   AND o.job_version = %(job_version)s
   AND o.gates & %(barred)s = 0
   AND {{claimable(o)}}
 ORDER BY o.run_id
   FOR UPDATE OF o

-- part: requests(requested)
-- The requested claims, in run_id order.
(SELECT *
   FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[], %(versions)s::integer[], %(publish_at)s::timestamptz[])
        AS given (run_id, attempt, job_version, publish_at)
  ORDER BY run_id) AS requested

-- part: matches(run)
-- True if the claim `requested` may start the run now or later: an attempt is issued once.
-- A message from before the last change of a run's inputs has another publish_at.
run.run_id = requested.run_id
  AND run.attempt = requested.attempt - 1
  AND run.job_version = requested.job_version
  AND (run.gates & %(moved)s = 0 OR run.publish_at = requested.publish_at)
  AND run.state = ANY (%(sources)s::text[])

-- part: matching(o)
-- The requested runs that match, and that no freeze names.
SELECT o.run_id, o.job_id, o.overlap
  FROM {{requests(requested)}}
 CROSS JOIN LATERAL (SELECT p.* FROM job_runs AS p WHERE {{matches(p)}} AND {{not_frozen(p)}} OFFSET 0) AS o

-- part: uncontested(r)
-- The open runs that have come, whose policy limits overlaps and that a uniform claim may start, of the jobs of `matching`.
-- Leaves out jobs whose active run is one of `matching`: it starts in any case.
-- Why `EXISTS`: it comes first. Without, runs whose policy limits nothing scan a million due ones, 250 ms.
WITH limited AS MATERIALIZED (
SELECT m.job_id
  FROM matching AS m
 WHERE m.overlap <> %(free)s
   AND NOT EXISTS (SELECT FROM active_runs AS t WHERE t.job_id = m.job_id AND t.run_id IN (SELECT c.run_id FROM matching AS c)))
SELECT r.run_id
  FROM job_runs AS r
 WHERE (SELECT EXISTS (SELECT FROM limited))
   AND r.gates & %(met)s = 0
   AND r.overlap <> %(free)s
   AND (r.scheduled_at <= (SELECT tidewheel_now() + interval '100 ms') OR r.moved_ahead
        OR r.run_id = ANY (%(run_ids)s::uuid[]))
   AND r.job_id IN (SELECT l.job_id FROM limited AS l)
 ORDER BY r.run_id

-- name: contest_runs
-- Sets MET of uncontested runs: no uniform claim starts them from now on, whenever it began. Returns the requested
-- runs that match.
-- Index: job_runs_pkey, job_runs_by_job, active_runs_pkey.
-- Lock: each run in run_id order, waiting for at most the transaction's lock_timeout: for a claim or an end under way.
-- Why an UPDATE: a claim that waited for a mere lock would start the run after it.
-- Why `matching`: the run of a claim in vain may be running. The claim would wait for its end, and make that dearer.
WITH matching AS MATERIALIZED ({{matching(o)}}), contested AS MATERIALIZED ({{uncontested(r)}} FOR UPDATE OF r), met AS (
    UPDATE job_runs AS o SET gates = o.gates | %(met)s WHERE o.run_id IN (SELECT c.run_id FROM contested AS c)
)
SELECT run_id FROM matching

-- name: contest_free_runs
-- The same of those that no other transaction holds.
-- Index: job_runs_pkey, job_runs_by_job, active_runs_pkey.
-- Lock: each run in run_id order, locked rows are skipped.
WITH matching AS MATERIALIZED ({{matching(o)}}), contested AS MATERIALIZED ({{uncontested(r)}} FOR UPDATE OF r SKIP LOCKED), met AS (
    UPDATE job_runs AS o SET gates = o.gates | %(met)s WHERE o.run_id IN (SELECT c.run_id FROM contested AS c)
)
SELECT run_id FROM matching

-- name: find_contenders
-- Returns the runs of these jobs that may be active though the job has no active run: those that have started, and
-- those that another transaction holds, uncontested.
-- Index: job_runs_by_job, job_runs_pkey.
-- Lock: each started run; locked rows are skipped, and count as uncontested: a transaction with a locked active run waits
-- for no open run.
-- Why: a later statement than contest_runs and acquire_active_runs, so that it sees the end that they waited for. Without
-- the lock, an end that begins now would not see the active run, which it has to release.
SELECT r.run_id, r.job_id, r.attempt > 0 AS started,
       r.gates & %(met)s = 0 OR (r.attempt > 0 AND locked.run_id IS NULL) AS uncontested
  FROM job_runs AS r
  LEFT JOIN LATERAL (
    SELECT p.run_id FROM job_runs AS p WHERE p.run_id = r.run_id AND p.attempt > 0 FOR UPDATE SKIP LOCKED
  ) AS locked ON true
 WHERE r.job_id = ANY (%(job_ids)s::uuid[])
   AND r.overlap <> %(free)s
   AND (r.attempt > 0 OR (r.gates & %(met)s = 0
                          AND (r.scheduled_at <= (SELECT tidewheel_now() + interval '100 ms') OR r.moved_ahead)))
 ORDER BY r.scheduled_at, r.run_id

-- name: set_waits
-- Sets lock_timeout for the following statements of this transaction, and has them planned for their parameters: a kept
-- plan covers all partitions.
-- No index, no lock.
SELECT set_config('lock_timeout', %(lock_timeout)s, true), set_config('plan_cache_mode', 'force_custom_plan', true)

-- name: share_old_claims
-- Waits for a cancellation that a process of 0.1 writes, unless a stranger holds its lock.
-- No index. Lock: an advisory one, shared.
SELECT pg_advisory_xact_lock_shared(k.key)
  FROM (SELECT hashtext('tidewheel.claims')::bigint AS key) AS k
 WHERE {{tidewheel.no_stranger(k)}}

-- name: lock_claims
-- Locks the runs that may be claimed now, in run_id order.
-- Index: job_runs_pkey.
-- Lock: each run, locked rows are skipped (the sweep comes back to them).
-- Why: a later statement than the one that locks `claims` for share, so that it sees every cancellation that was
-- accepted before, and every freeze.
SELECT o.*
  FROM {{requests(requested)}}
 CROSS JOIN LATERAL (
    SELECT o.run_id, o.job_id, o.tenant, o.overlap, o.state, o.attempt, o.scheduled_at,
           EXISTS (SELECT FROM active_runs AS t WHERE t.job_id = o.job_id AND t.run_id = o.run_id OFFSET 0) AS active,
           o.gates, o.key_id
      FROM job_runs AS o
     WHERE {{matches(o)}}
       AND CASE WHEN o.publish_at <= (SELECT tidewheel_now()) THEN true ELSE false END
       AND (o.deadline_at IS NULL OR o.deadline_at > (SELECT tidewheel_now()))
       AND {{no_cancel_is_accepted(o)}}
       AND {{not_frozen(o)}}
       FOR UPDATE OF o SKIP LOCKED
 ) AS o

-- name: acquire_active_runs
-- Makes a run active where its job has no active run; returns each job's active run. One run of a job per statement.
-- Index: active_runs_pkey.
-- Lock: each active run in job_id order, waiting for a release under way.
INSERT INTO active_runs (job_id, tenant, run_id)
SELECT requested.job_id, requested.tenant, requested.run_id
  FROM unnest(%(job_ids)s::uuid[], %(tenants)s::text[], %(run_ids)s::uuid[]) AS requested (job_id, tenant, run_id)
 ORDER BY requested.job_id
    ON CONFLICT (job_id) DO UPDATE SET run_id = active_runs.run_id
RETURNING job_id, run_id, has_waiters, held_by

-- name: find_stale_active_runs
-- Returns active runs that are no longer open, and whose occurrence does not keep the place: neither it nor the release of
-- its root, which comes before it.
-- Index: active_runs_pkey, job_runs_pkey; releases_by_root, if there are many.
-- Lock: none but the caller's.
-- Why: a later statement than the one that locked them, so that it sees what committed while the lock waited.
SELECT t.job_id, t.run_id
  FROM active_runs AS t
 WHERE t.job_id = ANY (%(job_ids)s::uuid[])
   AND t.held_by IS NULL
   AND NOT EXISTS (SELECT FROM job_runs AS o WHERE o.run_id = t.run_id OFFSET 0)
   AND NOT EXISTS (SELECT FROM releases AS r WHERE r.root_run_id = t.run_id AND r.holds OFFSET 0)

-- name: lock_places
-- Locks the active runs of roots whose releases are drained, or whose occurrences end.
-- Index: active_runs_pkey. Lock: each row, in job_id order, waiting for a claim.
SELECT job_id FROM active_runs WHERE job_id = ANY (%(job_ids)s::uuid[]) ORDER BY job_id FOR UPDATE

-- name: hold_places
-- Leaves the places of roots that have ended to their occurrences.
-- Index: active_runs_pkey; active_runs_held grows. Lock: rows that lock_places has locked.
UPDATE active_runs AS t
   SET held_by = given.root_run_id
  FROM unnest(%(job_ids)s::uuid[], %(roots)s::uuid[]) AS given (job_id, root_run_id)
 WHERE t.job_id = given.job_id AND t.run_id = given.root_run_id

-- name: take_place
-- Makes a resumed occurrence the holder of its root's place, unless another run or occurrence has it.
-- Index: active_runs_pkey, active_runs_held. Lock: the new row; waits for another one that comes at the same time.
INSERT INTO active_runs (job_id, tenant, run_id, held_by)
VALUES (%(job_id)s, %(tenant)s, %(run_id)s, %(root)s)
    ON CONFLICT (job_id) DO NOTHING
RETURNING job_id

-- part: behind_active(run)
-- The condition of job_runs_by_turn, which a buffered run fulfils that waits for no key and no rate.
run.publish_at = 'infinity' AND run.waits_for IS NULL

-- name: find_waiting_runs
-- Returns the waiting runs that an overlap policy needs: the oldest of each job, and those that would replace the
-- active run.
-- Index: job_runs_by_turn.
-- No lock: no run is buffered while the active run is locked.
SELECT w.run_id, w.job_id, w.overlap, w.attempt, w.scheduled_at
  FROM unnest(%(job_ids)s::uuid[]) AS requested (job_id)
 CROSS JOIN LATERAL (
    (SELECT r.run_id, r.job_id, r.overlap, r.attempt, r.scheduled_at
       FROM job_runs AS r
      WHERE r.job_id = requested.job_id AND r.state = %(buffered)s AND {{behind_active(r)}}
        AND r.overlap <> ALL (%(replacing)s::text[])
      ORDER BY r.scheduled_at, r.run_id
      LIMIT 1)
    UNION ALL
    (SELECT r.run_id, r.job_id, r.overlap, r.attempt, r.scheduled_at
       FROM job_runs AS r
      WHERE r.job_id = requested.job_id AND r.state = %(buffered)s AND {{behind_active(r)}}
        AND r.overlap = ANY (%(replacing)s::text[]))
 ) AS w

-- name: lock_replaced_runs
-- Locks the active and the waiting runs that other runs would replace.
-- Index: job_runs_pkey.
-- Lock: each run in run_id order, locked rows are skipped: a transaction with a locked active run waits for no open
-- run.
SELECT o.run_id, o.state, o.attempt, o.tenant, o.executor_id,
       CASE WHEN o.gates & %(whole)s <> 0 THEN o.workflow_run_id END AS occurrence
  FROM job_runs AS o
 WHERE o.run_id = ANY (%(run_ids)s::uuid[])
 ORDER BY o.run_id
   FOR UPDATE SKIP LOCKED

-- name: transfer_active_runs
-- Replaces active runs that are still open.
-- Index: active_runs_pkey.
-- Lock: rows that acquire_active_runs has locked.
UPDATE active_runs AS t
   SET run_id = transferred.run_id, held_by = NULL
  FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[]) AS transferred (job_id, run_id)
 WHERE t.job_id = transferred.job_id

-- name: buffer_runs
-- Buffers queued runs: no claim matches them until they are promoted. They hold no place of their key while they wait.
-- Index: job_runs_pkey; job_runs_due changes.
-- Lock: rows that lock_claims has locked.
UPDATE job_runs AS o
   SET state = %(target)s, publish_at = 'infinity', gates = (o.gates | %(met)s) & ~ %(holds)s::smallint
 WHERE o.run_id = ANY (%(run_ids)s::uuid[]) AND o.state = ANY (%(sources)s)
RETURNING o.run_id

-- name: mark_waiters
-- Sets has_waiters. A job without an active run gets a row without a run, so that a waiting run is promoted.
-- Index: active_runs_pkey; active_runs_waiting changes.
-- Lock: each active run in job_id order.
INSERT INTO active_runs (job_id, tenant, run_id, has_waiters)
SELECT requested.job_id, requested.tenant, %(no_run)s, true
  FROM unnest(%(job_ids)s::uuid[], %(tenants)s::text[]) AS requested (job_id, tenant)
 ORDER BY requested.job_id
    ON CONFLICT (job_id) DO UPDATE SET has_waiters = true WHERE NOT active_runs.has_waiters

-- name: start_attempts
-- Starts attempts: raises attempt, which is the fence of all later writes.
-- Index: job_runs_pkey.
-- Lock: rows that lock_claims has locked, at the same physical address. Changes no indexed column (HOT), unless it
-- clears a schedule_to_start.
-- Why gates: a run that takes the active run over from another one of its batch was left uncontested, and its end must
-- release the active run.
UPDATE job_runs AS o
   SET state = %(target)s,
       gates = (o.gates & ~ %(moved)s::smallint) | CASE WHEN o.overlap = %(free)s THEN 0 ELSE %(met)s END
                       | CASE WHEN o.gates & %(key)s = 0 THEN 0 ELSE %(holds)s END
                       | CASE WHEN o.tenant = ANY (%(limited)s::text[]) THEN %(holds_tenant)s ELSE 0 END,
       attempt = o.attempt + 1,
       executor_id = %(executor_id)s,
       started_at = (SELECT tidewheel_now()),
       deadline_at = o.schedule_to_close_at,
       claimed_from = requested.claimed_from
  FROM unnest(%(run_ids)s::uuid[], %(claimed_from)s::text[]) AS requested (run_id, claimed_from)
 CROSS JOIN LATERAL (SELECT p.ctid AS at FROM job_runs AS p WHERE p.run_id = requested.run_id OFFSET 0) AS found
 WHERE o.ctid = found.at
RETURNING o.run_id, o.attempt, o.failed_attempts, o.lost_attempts, o.publish_at, o.started_at, o.schedule_to_close_at,
          o.claimed_from

-- name: wait_for_claims
-- Waits until the server has committed or rolled back a claim whose COMMIT got no response.
-- Index: job_runs_pkey.
-- Lock: each run, shared, in run_id order.
SELECT run_id FROM job_runs WHERE run_id = ANY (%(run_ids)s) ORDER BY run_id FOR SHARE

-- name: read_started
-- Returns the columns of started runs that their events need; read only while starts are events.
-- Index: job_runs_pkey, jobs_pkey, the partition's primary key. No lock: this transaction has the rows.
SELECT o.run_id, o.job_id, j.key, o.tenant, o.shard, o.queue, o.lane, o.job_version,
       (SELECT i.traceparent FROM run_inputs AS i WHERE i.run_id = o.run_id AND i.created_at = o.created_at)
  FROM job_runs AS o
  JOIN jobs AS j ON j.job_id = o.job_id
 WHERE o.run_id = ANY (%(run_ids)s::uuid[])

-- name: read_claims
-- Returns the attempts of such a claim that this executor owns. A later statement, so that it sees what was waited for.
-- Index: job_runs_pkey.
-- No lock.
SELECT o.run_id, o.attempt, o.failed_attempts, o.lost_attempts, o.publish_at, o.started_at, o.schedule_to_close_at,
       o.claimed_from
  FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[]) AS requested (run_id, attempt)
 CROSS JOIN LATERAL (SELECT * FROM job_runs AS p WHERE p.run_id = requested.run_id OFFSET 0) AS o
 WHERE o.attempt = requested.attempt AND o.executor_id = %(executor_id)s AND o.state = ANY (%(states)s)

-- name: close_uniform
-- Ends runs that succeeded, all in one attempt number of one executor: deletes the rows of the open runs and inserts those
-- of the finished runs. A run that is being cancelled does not match: close_runs ends it.
-- Index: job_runs_pkey; pending_cancels_by_run, if that is not tiny; the partition of this day grows.
-- Lock: each run in run_id order, waiting for at most the session's lock_timeout.
-- Why FULL JOIN: it can only be hashed; for a nested loop the planner would expect a few rows. The CASE keeps the planner
-- from reducing it to another join. Why no asterisk: the rows are stored twice, and twelve columns less are 0.5 us a run.
WITH gone AS (
    DELETE FROM job_runs AS o
     WHERE o.run_id = ANY (%(run_ids)s::uuid[])
       AND o.attempt = %(attempt)s
       AND o.executor_id = %(executor_id)s
       AND o.state = %(running)s
       AND {{no_cancel_pends(o)}}
    RETURNING o.run_id, o.job_id, o.tenant, o.job_version, o.shard, o.cause, o.queue, o.lane, o.scheduled_at, o.publish_at, o.created_at,
              o.started_at, o.attempt, o.executor_id, o.claimed_from, o.parent_run_id, o.root_run_id, o.request_id, o.requested_from,
              o.workflow_run_id, o.generation, o.concurrency_key, o.gates, o.key_id, o.order_no, (SELECT tidewheel_now()) AS ended_at
), finished AS (
    INSERT INTO finished_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at,
                               created_at, started_at, finished_at, state, attempt, executor_id, claimed_from,
                               parent_run_id, root_run_id, request_id, requested_from, workflow_run_id, generation,
                               concurrency_key)
    SELECT g.run_id, g.job_id, g.tenant, g.job_version, g.shard, g.cause, g.queue, g.lane, g.scheduled_at, g.publish_at,
           g.created_at, g.started_at, g.ended_at, %(succeeded)s, g.attempt, g.executor_id,
           coalesce(given.claimed_from, g.claimed_from), g.parent_run_id, g.root_run_id, g.request_id,
           g.requested_from, g.workflow_run_id, g.generation, g.concurrency_key
      FROM gone AS g
      FULL JOIN unnest(%(run_ids)s::uuid[], %(claimed_from)s::text[]) AS given (run_id, claimed_from) USING (run_id)
     WHERE CASE WHEN g.job_id IS NULL THEN false ELSE true END
)
SELECT run_id, publish_at, created_at, started_at, gates, ended_at, request_id, requested_from, key_id, workflow_run_id,
       generation, order_no
  FROM gone

-- name: close_runs
-- Ends runs: deletes the row of the open run and inserts that of the finished run. The attempt must be the current one,
-- of the same executor, in a state that allows the end. A run that is being cancelled ends as cancelled, and so does one
-- with a pending cancel, unless the caller held the run before that was accepted. The reason is then that of the cancel.
-- The row of a run that has a finished row of this day is deleted too, and returned as refused: the first end stays.
-- Index: job_runs_pkey; pending_cancels_by_run, if that is not tiny; the partition of this day grows.
-- Lock: each run in run_id order, locked rows are skipped and retried.
-- Why: the executor belongs to the fence, because a requeued run keeps its attempt number but has no owner. A row that
-- changed after this statement began stays and counts as locked: its new version is invisible here.
WITH gone AS (
    DELETE FROM job_runs AS o
     USING (
        SELECT found.at, pending.reason AS pending_reason, coalesce(pending.reason, signal.reason) AS cancel_reason,
               requested.*
          FROM (SELECT *
                  FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[], %(executor_ids)s::uuid[], %(states)s::text[],
                              %(reasons)s::text[], %(error_types)s::text[], %(claimed_from)s::text[])
                       WITH ORDINALITY
                       AS given (requested_id, requested_attempt, requested_executor_id, requested_state, reason, error_type,
                                 given_claimed_from, position)
                 ORDER BY requested_id) AS requested
         CROSS JOIN LATERAL (
            SELECT p.ctid AS at, p.state
              FROM job_runs AS p
             WHERE p.run_id = requested.requested_id
               AND p.attempt = requested.requested_attempt
               AND p.executor_id IS NOT DISTINCT FROM requested.requested_executor_id
               AND requested.requested_state || ':' || p.state = ANY (%(allowed)s::text[])
               FOR UPDATE SKIP LOCKED
         ) AS found
          LEFT JOIN LATERAL (
            SELECT w.reason
              FROM pending_cancels AS w
             WHERE w.run_id = requested.requested_id AND (SELECT NOT %(held)s AND EXISTS (SELECT FROM pending_cancels))
             LIMIT 1
         ) AS pending ON true
          LEFT JOIN LATERAL (
            SELECT s.reason
              FROM signals AS s
             WHERE s.run_id = requested.requested_id AND s.attempt = requested.requested_attempt AND s.kind = 'cancel'
               AND found.state = %(cancelling)s
         ) AS signal ON true
     ) AS chosen
     WHERE o.ctid = chosen.at
    RETURNING chosen.position, chosen.cancel_reason, coalesce(chosen.cancel_reason, chosen.reason) AS reason,
              chosen.error_type, o.*,
              CASE WHEN chosen.pending_reason IS NULL THEN o.state ELSE %(cancelling)s END AS found_as,
              coalesce(chosen.given_claimed_from, o.claimed_from) AS claimed_by,
              CASE WHEN isfinite(o.publish_at) THEN o.publish_at ELSE greatest(o.scheduled_at, o.created_at) END
                  AS published_at,
              (SELECT tidewheel_now()) AS ended_at,
              CASE WHEN o.state = %(cancelling)s OR chosen.pending_reason IS NOT NULL THEN %(cancelled)s
                   ELSE chosen.requested_state END AS ended_as
), finished AS (
    INSERT INTO finished_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at,
                               created_at, started_at, finished_at, state, attempt, executor_id, claimed_from,
                               parent_run_id, root_run_id, request_id, reason, error_type, requested_from,
                               workflow_run_id, generation, concurrency_key)
    SELECT g.run_id, g.job_id, g.tenant, g.job_version, g.shard, g.cause, g.queue, g.lane, g.scheduled_at, g.published_at,
           g.created_at, g.started_at, g.ended_at, g.ended_as, g.attempt, g.executor_id, g.claimed_by, g.parent_run_id,
           g.root_run_id, g.request_id, g.reason, g.error_type, g.requested_from, g.workflow_run_id, g.generation,
           g.concurrency_key
      FROM gone AS g
    ON CONFLICT DO NOTHING
    RETURNING run_id
)
SELECT position, ended_as, run_id::text, job_id::text, tenant, shard, queue, lane, cause, gates, found_as, job_version, attempt,
       scheduled_at, published_at, created_at, started_at, claimed_by, ended_at, request_id, requested_from, cancel_reason,
       run_id NOT IN (SELECT run_id FROM finished) AS refused, key_id, workflow_run_id, generation,
       concurrency_key, order_no
  FROM gone

-- name: find_still_open
-- Returns the runs that close_runs did not end only because another transaction holds their row; the caller retries.
-- Index: job_runs_pkey.
-- No lock.
SELECT o.run_id
  FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[], %(executor_ids)s::uuid[], %(states)s::text[])
       AS requested (run_id, attempt, executor_id, state)
 CROSS JOIN LATERAL (SELECT * FROM job_runs AS p WHERE p.run_id = requested.run_id OFFSET 0) AS o
 WHERE o.attempt = requested.attempt
   AND o.executor_id IS NOT DISTINCT FROM requested.executor_id
   AND requested.state || ':' || o.state = ANY (%(allowed)s::text[])

-- name: keep_inputs
-- Moves the inputs of finished runs to the partition of this day.
-- Index: the partitions' primary keys.
-- Lock: the rows, which no report of progress has: the end of the run has locked it, or is committed.
UPDATE run_inputs SET created_at = %(now)s
 WHERE run_id = ANY (%(run_ids)s::uuid[]) AND created_at BETWEEN %(first)s AND %(last)s

-- name: release_active_runs
-- Releases the active runs among ended runs; returns those with has_waiters. No other transaction can acquire them
-- until commit.
-- Index: active_runs_pkey.
-- Lock: each active run in job_id order.
-- Why: a run belongs to one job, so a match in both arrays is a match of the pair. The count makes PostgreSQL lock all
-- rows, in order, before the first DELETE.
WITH locked AS MATERIALIZED (
    SELECT t.job_id
      FROM active_runs AS t
     WHERE t.job_id = ANY (%(job_ids)s::uuid[])
       AND t.run_id = ANY (%(run_ids)s::uuid[])
     ORDER BY t.job_id
       FOR UPDATE OF t
), released AS (
    DELETE FROM active_runs AS t
     WHERE (SELECT count(*) FROM locked) > 0
       AND t.job_id = ANY (%(job_ids)s::uuid[])
       AND t.run_id = ANY (%(run_ids)s::uuid[])
    RETURNING t.job_id, t.tenant, t.run_id, t.has_waiters
)
SELECT job_id, tenant, run_id FROM released WHERE has_waiters

-- name: promote_next_runs
-- Queues the oldest waiting run of each job.
-- Index: job_runs_by_turn, job_runs_pkey; job_runs_due changes.
-- Lock: one run a job, locked rows are skipped: a transaction with a locked active run waits for no open run.
-- Why: a later statement than release_active_runs, so that it sees runs that were buffered while that waited.
WITH next AS MATERIALIZED (
    SELECT first.run_id
      FROM unnest(%(job_ids)s::uuid[]) AS freed (job_id)
     CROSS JOIN LATERAL (
        SELECT r.run_id
          FROM job_runs AS r
         WHERE r.job_id = freed.job_id AND r.state = %(buffered)s AND {{behind_active(r)}}
         ORDER BY r.scheduled_at, r.run_id
         LIMIT 1
           FOR UPDATE SKIP LOCKED
     ) AS first
)
UPDATE job_runs AS o
   SET state = %(target)s, publish_at = (SELECT tidewheel_now())
  FROM next
 WHERE o.run_id = next.run_id
RETURNING o.run_id, o.job_id, o.shard, o.queue, o.lane, o.cause, o.job_version, o.attempt, o.scheduled_at, o.publish_at,
          o.created_at, o.concurrency_key, o.tenant, o.priority

-- name: promote_waiting_runs
-- Makes promoted runs active. If other transactions hold all waiting runs, the ended run stays active until the next
-- repair. A job without waiting runs gets no row.
-- Index: job_runs_by_turn; active_runs_pkey grows.
-- Lock: the new rows; no other transaction can have inserted one meanwhile.
INSERT INTO active_runs (job_id, tenant, run_id, has_waiters)
SELECT given.job_id, given.tenant, given.run_id, another.run_id IS NOT NULL
  FROM unnest(%(job_ids)s::uuid[], %(tenants)s::text[], %(run_ids)s::uuid[], %(promoted)s::boolean[])
       AS given (job_id, tenant, run_id, promoted)
  LEFT JOIN LATERAL (
    SELECT o.run_id
      FROM job_runs AS o
     WHERE o.job_id = given.job_id AND o.state = %(buffered)s AND {{behind_active(o)}}
     ORDER BY o.scheduled_at, o.run_id
     LIMIT 1
  ) AS another ON true
 WHERE given.promoted OR another.run_id IS NOT NULL
 ORDER BY given.job_id

-- part: is_patient(session)
-- True; lets a statement and those behind it wait 10 s for a key, in the sessions of executors that wait 50 ms for a run.
-- No index, no lock.
(SELECT set_config('lock_timeout', CASE WHEN current_setting('tidewheel.patient', true) = 'on' THEN '10s'
                                   ELSE current_setting('lock_timeout') END, true)) IS NOT NULL

-- name: add_run_keys
-- Inserts the rows of these runs' keys that have none. The transaction sets their limits.
-- Index: job_runs_pkey, run_keys_pkey.
-- Lock: each new row in key_id order; waits for another transaction that inserts it.
INSERT INTO run_keys (key_id, tenant, key, burst)
SELECT given.key_id, o.tenant, o.concurrency_key, 1
  FROM unnest(%(run_ids)s::uuid[], %(key_ids)s::bigint[]) AS given (run_id, key_id)
 CROSS JOIN LATERAL (SELECT * FROM job_runs AS p WHERE p.run_id = given.run_id OFFSET 0) AS o
 WHERE NOT EXISTS (SELECT FROM run_keys AS k WHERE k.key_id = given.key_id OFFSET 0) AND {{is_patient(session)}}
 ORDER BY given.key_id
    ON CONFLICT (key_id) DO NOTHING

-- name: read_run_limits
-- Returns the limit of each run's key: that of key_limits, else by its job's current version, or by that of the run if the
-- current one has no key.
-- Index: job_runs_pkey, jobs_pkey, job_versions_pkey, key_limits_pkey.
-- No lock. Why: read with the keys locked, so that no older limit replaces one that was committed meanwhile.
SELECT o.key_id,
       CASE WHEN l.burst IS NOT NULL THEN l.at_once WHEN v.concurrency_key IS NULL THEN 1 ELSE v.at_once END AS at_once,
       CASE WHEN l.burst IS NOT NULL THEN l.every_us ELSE v.every_us END AS every_us, coalesce(l.burst, v.burst) AS burst
  FROM unnest(%(run_ids)s::uuid[]) AS given (run_id)
 CROSS JOIN LATERAL (SELECT * FROM job_runs AS p WHERE p.run_id = given.run_id OFFSET 0) AS o
 CROSS JOIN LATERAL (
    SELECT w.concurrency_key, w.at_once, w.every_us, w.burst
      FROM job_versions AS w
      JOIN jobs AS j ON j.job_id = w.job_id
     WHERE w.job_id = o.job_id AND w.version IN (j.version, o.job_version)
     ORDER BY w.concurrency_key IS NULL, w.version DESC
     LIMIT 1
 ) AS v
  LEFT JOIN LATERAL (
    (SELECT e.at_once, e.every_us, e.burst, e.is_prefix
       FROM key_limits AS e
      WHERE e.tenant = o.tenant AND e.is_prefix = false AND e.key = o.concurrency_key)
     UNION ALL
    (SELECT e.at_once, e.every_us, e.burst, e.is_prefix
       FROM key_limits AS e
      WHERE e.tenant = o.tenant AND e.is_prefix = true AND starts_with(o.concurrency_key, e.key)
      ORDER BY length(e.key) DESC
      LIMIT 1)
     ORDER BY is_prefix
     LIMIT 1
 ) AS l ON true

-- name: find_first_waiting
-- Returns the oldest run that waits for each key, but none for the key of a tenant.
-- Index: job_runs_waiting. No lock.
SELECT first.run_id, first.key_id
  FROM unnest(%(key_ids)s::bigint[]) AS k (key_id)
 CROSS JOIN LATERAL (
    SELECT r.run_id, r.key_id FROM job_runs AS r WHERE r.waits_for = k.key_id ORDER BY r.waits_from, r.run_id LIMIT 1
 ) AS first
 WHERE first.key_id = k.key_id

-- name: lock_run_keys
-- Locks keys and returns them.
-- Index: run_keys_pkey.
-- Lock: each key in key_id order, after all other rows of the transaction.
SELECT k.key_id, k.running, k.unclaimed, k.has_waiters, k.at_once, k.every_us, k.burst, k.tat, k.wake_at, k.key = '' AS of_tenant,
       (SELECT tidewheel_now())
  FROM run_keys AS k
 WHERE k.key_id = ANY (%(key_ids)s::bigint[]) AND {{is_patient(session)}}
 ORDER BY k.key_id
   FOR UPDATE

-- name: wait_for_keys
-- Buffers claimed runs whose key has no place: no claim matches them until they are promoted.
-- Index: job_runs_pkey; job_runs_due changes, job_runs_waiting grows.
-- Lock: rows that the claim has locked.
UPDATE job_runs AS o
   SET state = %(target)s, publish_at = 'infinity', waits_for = given.waits_for,
       waits_from = o.scheduled_at - coalesce(o.priority, 5) * interval '30 s',
       gates = o.gates & ~ %(holds)s::smallint | given.kept
  FROM unnest(%(run_ids)s::uuid[], %(waits_for)s::bigint[], %(kept)s::smallint[]) AS given (run_id, waits_for, kept)
 CROSS JOIN LATERAL (SELECT p.ctid AS at FROM job_runs AS p WHERE p.run_id = given.run_id OFFSET 0) AS found
 WHERE o.ctid = found.at AND o.state = ANY (%(sources)s)

-- name: promote_for_keys
-- Queues the runs that wait first for each key, with a place: the oldest, and a step of priority is worth 30 s.
-- Index: job_runs_waiting; job_runs_due changes.
-- Lock: each run, locked rows are skipped: a transaction with a locked key waits for no open run.
WITH next AS MATERIALIZED (
    SELECT first.at, freed.key_id AS awaited, freed.holds
      FROM unnest(%(key_ids)s::bigint[], %(counts)s::integer[], %(holds)s::smallint[]) AS freed (key_id, places, holds)
     CROSS JOIN LATERAL (
        SELECT r.ctid AS at
          FROM job_runs AS r
         WHERE r.waits_for = freed.key_id
         ORDER BY r.waits_from, r.run_id
         LIMIT freed.places
           FOR UPDATE SKIP LOCKED
     ) AS first
)
UPDATE job_runs AS o
   SET state = %(target)s, publish_at = (SELECT tidewheel_now()), waits_for = NULL, waits_from = NULL,
       gates = o.gates | next.holds
  FROM next
 WHERE o.ctid = next.at
RETURNING o.run_id, o.job_id, o.shard, o.queue, o.lane, o.cause, o.job_version, o.attempt, o.scheduled_at, o.publish_at,
          o.created_at, o.concurrency_key, o.tenant, o.priority, next.awaited

-- name: find_keys_with_waiters
-- Returns those of these keys for which runs wait.
-- Index: job_runs_waiting.
-- No lock: no run begins to wait while the key is locked.
SELECT k.key_id
  FROM unnest(%(key_ids)s::bigint[]) AS k (key_id)
 WHERE EXISTS (SELECT FROM job_runs AS r WHERE r.waits_for = k.key_id OFFSET 0)

-- name: find_waiting_keys
-- Returns the last of up to `limit` keys of a range, and those among them for which runs wait.
-- Index: run_keys_by_key. No lock: checked again under a lock.
SELECT max(k.key COLLATE "C"), coalesce(array_agg(k.key_id) FILTER (WHERE k.has_waiters), '{}'), count(*)
  FROM (
    SELECT r.key, r.key_id, r.has_waiters
      FROM run_keys AS r
     WHERE r.tenant = %(tenant)s AND r.key COLLATE "C" >= %(first)s AND r.key COLLATE "C" <= %(last)s
     ORDER BY r.key COLLATE "C"
     LIMIT %(limit)s
  ) AS k

-- name: find_edited_keys
-- Returns keys for which runs of jobs wait, of those new versions whose limit differs from that before, among some open runs.
-- Index: job_versions_pkey, job_runs_by_job. No lock.
SELECT DISTINCT o.waits_for
  FROM (
    SELECT r.waits_for
      FROM unnest(%(job_ids)s::uuid[], %(versions)s::integer[]) AS given (job_id, version)
      JOIN job_versions AS v ON v.job_id = given.job_id AND v.version = given.version
      JOIN job_versions AS p ON p.job_id = given.job_id AND p.version = given.version - 1
     CROSS JOIN LATERAL (
        -- A run that waits in an ordering key has no limit to read.
        SELECT CASE WHEN w.concurrency_key IS NOT NULL THEN w.waits_for END AS waits_for
          FROM job_runs AS w WHERE w.job_id = given.job_id ORDER BY w.scheduled_at LIMIT 10000
     ) AS r
     WHERE (v.concurrency_key IS NULL, v.at_once, v.every_us, v.burst)
           IS DISTINCT FROM (p.concurrency_key IS NULL, p.at_once, p.every_us, p.burst)
     LIMIT 10000
  ) AS o
 WHERE o.waits_for IS NOT NULL
 LIMIT %(limit)s

-- name: set_key_limit
-- Sets the limit of a key or a prefix.
-- Index: key_limits_pkey. Lock: the row, before any key.
INSERT INTO key_limits (tenant, is_prefix, key, at_once, every_us, burst, set_by)
VALUES (%(tenant)s, %(is_prefix)s, %(key)s, %(at_once)s, %(every_us)s, %(burst)s, %(set_by)s)
    ON CONFLICT (tenant, is_prefix, key) DO UPDATE
   SET at_once = excluded.at_once, every_us = excluded.every_us, burst = excluded.burst, set_by = excluded.set_by,
       set_at = excluded.set_at

-- name: count_prefixes
-- Returns the number of a tenant's limits of other prefixes.
-- Index: key_limits_pkey. No lock.
SELECT count(*) FROM key_limits WHERE tenant = %(tenant)s AND is_prefix = true AND key <> %(key)s

-- name: remove_key_limit
-- Deletes the limit of a key or a prefix.
-- Index: key_limits_pkey. Lock: the row, before any key.
DELETE FROM key_limits WHERE tenant = %(tenant)s AND is_prefix = %(is_prefix)s AND key = %(key)s

-- name: write_run_keys
-- Changes keys.
-- Index: run_keys_pkey; run_keys_wake changes for a key with a rate. Else no indexed column changes (HOT).
-- Lock: rows that lock_run_keys has locked.
UPDATE run_keys AS k
   SET running = given.running, unclaimed = given.unclaimed, has_waiters = given.has_waiters, at_once = given.at_once,
       every_us = given.every_us, burst = given.burst, tat = given.tat, wake_at = given.wake_at,
       used_at = (SELECT tidewheel_now())
  FROM unnest(%(key_ids)s::bigint[], %(running)s::integer[], %(unclaimed)s::integer[], %(waiters)s::boolean[],
              %(at_once)s::integer[], %(every_us)s::bigint[], %(bursts)s::integer[], %(tats)s::timestamptz[],
              %(wake_at)s::timestamptz[])
       AS given (key_id, running, unclaimed, has_waiters, at_once, every_us, burst, tat, wake_at)
 CROSS JOIN LATERAL (SELECT r.ctid AS at FROM run_keys AS r WHERE r.key_id = given.key_id OFFSET 0) AS found
 WHERE k.ctid = found.at

-- name: drop_signals
-- Deletes the signals of attempts that are over.
-- Index: signals_pkey.
-- Lock: the rows.
DELETE FROM signals WHERE run_id = ANY (%(run_ids)s)

-- name: add_failed_run
-- Inserts the copy of a failed or timed-out run, which outlives its partition.
-- Index: failed_runs_pkey.
-- No lock.
INSERT INTO failed_runs (run_id, job_id, tenant, job_version, cause, queue, lane, scheduled_at, started_at, finished_at,
                         state, attempt, error_type, error_message, trace)
VALUES (%(run_id)s, %(job_id)s, %(tenant)s, %(job_version)s, %(cause)s, %(queue)s, %(lane)s, %(scheduled_at)s,
        %(started_at)s, %(finished_at)s, %(state)s, %(attempt)s, %(error_type)s, %(error_message)s, %(trace)s)
ON CONFLICT (run_id) DO NOTHING

-- name: add_dead_run
-- Inserts the dead letter of a run.
-- Index: dead_letters_run_id_key.
-- No lock.
INSERT INTO dead_letters (tenant, kind, run_id, job_id, reason, created_at)
VALUES (%(tenant)s, 'run', %(run_id)s, %(job_id)s, %(reason)s, %(created_at)s)
ON CONFLICT (run_id) DO NOTHING

-- name: add_dead_message
-- Inserts the dead letter of a message. On a shared topic its tenant is unreadable, so the default tenant owns it. A
-- repeat after a crash changes nothing.
-- Index: dead_letters_topic_partition_offset_key.
-- No lock.
INSERT INTO dead_letters (tenant, kind, topic, partition, "offset", key, value, headers, cut_from, reason, created_at)
VALUES (%(tenant)s, 'message', %(topic)s, %(partition)s, %(offset)s, %(key)s, %(value)s, %(headers)s, %(cut_from)s, %(reason)s, %(created_at)s)
ON CONFLICT (topic, partition, "offset") DO NOTHING

-- name: read_attempts
-- Returns the last hundred attempts of a failed run, newest first: lost and snoozed attempts are unlimited.
-- Index: the partition's primary key.
-- No lock.
SELECT a.attempt, a.executor_id, a.started_at, a.finished_at, a.outcome, a.error_type, a.error_message
  FROM ended_attempts AS a
 WHERE a.run_id = %(run_id)s
 ORDER BY a.attempt DESC
 LIMIT 100

-- name: requeue_runs
-- Ends attempts but not their runs: a retry, a release, a snooze. attempt stays raised, so the fence holds.
-- Index: job_runs_pkey.
-- Lock: each run in run_id order, locked rows are skipped and retried.
UPDATE job_runs AS o
   SET state = %(target)s,
       publish_at = (SELECT tidewheel_now()) + chosen.delay,
       gates = o.gates & ~ %(holds)s::smallint,
       failed_attempts = o.failed_attempts + chosen.charge,
       lost_attempts = o.lost_attempts + chosen.loss,
       executor_id = NULL,
       started_at = NULL,
       deadline_at = o.schedule_to_close_at,
       external_deadline_at = NULL
  FROM (
    SELECT found.*, requested.delay, requested.charge, requested.loss
      FROM (SELECT *
              FROM unnest(
                    %(run_ids)s::uuid[], %(attempts)s::integer[], %(executor_ids)s::uuid[], %(delays)s::interval[],
                    %(charges)s::integer[], %(losses)s::integer[]
                   ) AS given (run_id, attempt, executor_id, delay, charge, loss)
             ORDER BY run_id) AS requested
     CROSS JOIN LATERAL (
        SELECT p.ctid AS at, p.started_at, p.executor_id, p.claimed_from, p.gates
          FROM job_runs AS p
         WHERE p.run_id = requested.run_id
           AND p.attempt = requested.attempt
           AND p.state = ANY (%(sources)s)
           AND p.executor_id IS NOT DISTINCT FROM requested.executor_id
           FOR UPDATE SKIP LOCKED
     ) AS found
  ) AS chosen
 WHERE o.ctid = chosen.at
RETURNING o.run_id, o.job_id, o.tenant, o.shard, o.queue, o.lane, o.cause, o.job_version, o.attempt, o.scheduled_at,
          o.publish_at, o.created_at, chosen.started_at, chosen.executor_id, chosen.claimed_from, (SELECT tidewheel_now()) AS ended_at,
          o.concurrency_key, o.key_id, chosen.gates, o.priority

-- name: wait_runs
-- Moves attempts to waiting for an external completion: no lease guards them, and they are never due.
-- Index: job_runs_pkey; job_runs_due and job_runs_deadline change.
-- Lock: each run in run_id order, locked rows are skipped and retried.
UPDATE job_runs AS o
   SET state = %(target)s,
       publish_at = 'infinity',
       external_deadline_at = chosen.now + chosen.timeout,
       deadline_at = least(o.schedule_to_close_at, chosen.now + least(chosen.timeout, chosen.heartbeat))
  FROM (
    SELECT found.at, requested.timeout, requested.heartbeat, (SELECT tidewheel_now()) AS now
      FROM (SELECT *
              FROM unnest(
                    %(run_ids)s::uuid[], %(attempts)s::integer[], %(executor_ids)s::uuid[], %(timeouts)s::interval[],
                    %(heartbeats)s::interval[]
                   ) AS given (run_id, attempt, executor_id, timeout, heartbeat)
             ORDER BY run_id) AS requested
     CROSS JOIN LATERAL (
        SELECT p.ctid AS at
          FROM job_runs AS p
         WHERE p.run_id = requested.run_id
           AND p.attempt = requested.attempt
           AND p.state = ANY (%(sources)s)
           AND p.executor_id = requested.executor_id
           FOR UPDATE SKIP LOCKED
     ) AS found
    OFFSET 0  -- else each mention of now would read the clock again, and the two are compared
  ) AS chosen
 WHERE o.ctid = chosen.at
RETURNING o.run_id

-- name: read_definitions
-- Returns the immutable definitions of job versions, for messages that are built again.
-- Index: job_versions_pkey.
-- No lock.
SELECT v.job_id, v.version, v.definition
  FROM unnest(%(job_ids)s::uuid[], %(versions)s::integer[]) AS requested (job_id, version)
 CROSS JOIN LATERAL (
    SELECT w.* FROM job_versions AS w WHERE w.job_id = requested.job_id AND w.version = requested.version OFFSET 0
 ) AS v

-- name: read_inputs
-- Returns the inputs of runs beyond their version.
-- Index: the partitions' primary keys.
-- No lock.
-- Why: the bounds leave out the partitions of other days.
SELECT i.run_id, i.payload, i.payload_content_type, i.labels, i.traceparent, i.checkpoint, i.late_ms
  FROM run_inputs AS i
 WHERE i.run_id = ANY (%(run_ids)s) AND i.created_at BETWEEN %(first)s AND %(last)s

-- name: read_ancestors
-- Returns the parent and the root of runs, open or finished.
-- Index: job_runs_pkey, the partitions' index by run.
-- No lock.
SELECT r.run_id, r.parent_run_id, r.root_run_id FROM runs AS r WHERE r.run_id = ANY (%(run_ids)s)

-- name: mark_redriven
-- Records in dead letters the runs that they were redriven as; the latest replaces an earlier one.
-- Index: dead_letters_run_id_key, dead_letters_pkey.
-- Lock: each row in id order.
UPDATE dead_letters AS d
   SET redriven_run_id = chosen.new_run_id, redriven_at = %(now)s
  FROM (
    SELECT l.id, again.new_run_id
      FROM unnest(%(run_ids)s::uuid[], %(new_run_ids)s::uuid[]) AS again (run_id, new_run_id)
      JOIN dead_letters AS l USING (run_id)
     ORDER BY l.id
       FOR UPDATE OF l
  ) AS chosen
 WHERE d.id = chosen.id

-- name: lock_dead_letters
-- Locks those of these dead letters that have not been redriven, and returns their ids.
-- Index: dead_letters_pkey.
-- Lock: each row in id order, locked rows are skipped: another transaction redrives or purges them.
SELECT d.id FROM dead_letters AS d WHERE d.id = ANY (%(ids)s) AND d.redriven_at IS NULL ORDER BY d.id FOR UPDATE SKIP LOCKED

-- name: read_dead_messages
-- Returns the parts of dead messages.
-- Index: dead_letters_pkey.
-- No lock: the rows are locked already.
SELECT d.id, d.topic, d.partition, d.key, d.value, d.headers, d.cut_from
  FROM dead_letters AS d
 WHERE d.id = ANY (%(ids)s)
 ORDER BY d.id

-- name: mark_republished
-- Records that dead messages were published again.
-- Index: dead_letters_pkey.
-- Lock: rows already locked.
UPDATE dead_letters SET redriven_at = tidewheel_now() WHERE id = ANY (%(ids)s)

-- name: purge_dead_letters
-- Deletes those of these dead letters that still fit the filter by redrives.
-- Index: dead_letters_pkey.
-- Lock: each row in id order; waits for a redrive, which never waits for a dead letter.
DELETE FROM dead_letters
 WHERE id IN (SELECT d.id
                FROM dead_letters AS d
               WHERE d.id = ANY (%(ids)s) AND (%(redriven)s::boolean IS NULL OR (d.redriven_at IS NOT NULL) = %(redriven)s)
               ORDER BY d.id
                 FOR UPDATE)

-- name: save_progress
-- Stores progress and checkpoints of running attempts, in a new row if the run has no inputs. A late report of an older
-- attempt changes nothing.
-- Index: job_runs_pkey, the partition's primary key.
-- Lock: the open runs' rows in run_id order, against their ends alone, locked rows are skipped; then their rows of
-- run_inputs.
-- Why: the end of a run may move its inputs to another partition. A row inserted here after that would be a second one.
INSERT INTO run_inputs AS i (run_id, created_at, tenant, progress, checkpoint, checkpoint_attempt, progress_at, progress_attempt)
SELECT given.run_id, o.created_at, o.tenant, given.progress, given.checkpoint,
       CASE WHEN given.checkpoint IS NOT NULL THEN given.attempt END, tidewheel_now(), given.attempt
  FROM (SELECT *
          FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[], %(executor_ids)s::uuid[], %(progress)s::bytea[],
                      %(checkpoints)s::bytea[])
               AS input (run_id, attempt, executor_id, progress, checkpoint)
         ORDER BY run_id) AS given
 CROSS JOIN LATERAL (
    SELECT p.created_at, p.tenant
      FROM job_runs AS p
     WHERE p.run_id = given.run_id
       AND p.attempt = given.attempt
       AND p.state = ANY (%(states)s)
       AND (given.executor_id IS NULL OR p.executor_id = given.executor_id)
       FOR KEY SHARE SKIP LOCKED
  ) AS o
    ON CONFLICT (run_id, created_at) DO UPDATE
   SET progress = CASE WHEN i.progress_attempt = excluded.progress_attempt THEN coalesce(excluded.progress, i.progress)
                       ELSE excluded.progress END,
       checkpoint = coalesce(excluded.checkpoint, i.checkpoint),
       checkpoint_attempt = coalesce(excluded.checkpoint_attempt, i.checkpoint_attempt),
       progress_at = excluded.progress_at,
       progress_attempt = excluded.progress_attempt
 WHERE coalesce(i.progress_attempt, 0) <= excluded.progress_attempt
RETURNING i.run_id

-- name: flush_outputs
-- Stores the output of attempts that this executor owns.
-- Index: job_runs_pkey, the partition's primary key.
-- Lock: the open runs' rows, shared, locked rows are skipped; the rows of attempt_outputs, which no other transaction
-- has then.
INSERT INTO attempt_outputs (run_id, attempt, started_at, tenant, output, output_bytes)
SELECT owned.run_id, owned.attempt, owned.started_at, owned.tenant, owned.output, owned.output_bytes
  FROM (
    SELECT given.run_id, given.attempt, o.started_at, o.tenant, given.output, given.output_bytes
      FROM (SELECT *
              FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[], %(outputs)s::bytea[], %(output_bytes)s::bigint[])
                   AS input (run_id, attempt, output, output_bytes)
             ORDER BY run_id) AS given
     CROSS JOIN LATERAL (
        SELECT p.started_at, p.tenant
          FROM job_runs AS p
         WHERE p.run_id = given.run_id
           AND p.attempt = given.attempt
           AND p.executor_id = %(executor_id)s
           AND p.state = ANY (%(states)s)
           FOR SHARE SKIP LOCKED
     ) AS o
  ) AS owned
    ON CONFLICT (run_id, attempt, started_at) DO UPDATE SET output = EXCLUDED.output, output_bytes = EXCLUDED.output_bytes
RETURNING run_id, attempt

-- name: add_outputs
-- Stores what attempts leave, where a flush may have inserted the row: flushed output stays if there is none newer.
-- Index: the partition's primary key.
-- Lock: the rows, which no other transaction has, because this one has locked the open run.
INSERT INTO attempt_outputs AS x (run_id, attempt, started_at, tenant, result, trace, output, output_bytes)
SELECT given.run_id, given.attempt, given.started_at, given.tenant, given.result, given.trace, given.output, given.output_bytes
  FROM unnest(
        %(run_ids)s::uuid[], %(attempts)s::integer[], %(started_at)s::timestamptz[], %(tenants)s::text[],
        %(results)s::bytea[], %(traces)s::text[], %(outputs)s::bytea[], %(output_bytes)s::bigint[]
       ) AS given (run_id, attempt, started_at, tenant, result, trace, output, output_bytes)
    ON CONFLICT (run_id, attempt, started_at) DO UPDATE
   SET result = EXCLUDED.result,
       trace = EXCLUDED.trace,
       output = coalesce(EXCLUDED.output, x.output),
       output_bytes = coalesce(EXCLUDED.output_bytes, x.output_bytes)

-- name: find_existing_runs
-- Returns those of these runs that exist, open or finished.
-- Index: job_runs_pkey, the partitions' index by run.
-- No lock: the row of an open run is visible while another transaction ends it.
SELECT run_id FROM runs WHERE run_id = ANY (%(run_ids)s::uuid[])

-- name: add_job_runs
-- Inserts runs that may exist already; returns the new ones.
-- Index: job_runs_pkey; job_runs_due, job_runs_by_job and the partial ones grow.
-- Lock: waits for an uncommitted row with the same id, and for the end of a run with this id that is under way.
INSERT INTO job_runs (run_id, job_id, tenant, shard, queue, lane, handler, cause, overlap, state, job_version, scheduled_at,
                      publish_at, moved_ahead, created_at, deadline_at, schedule_to_close_at, parent_run_id, root_run_id,
                      request_id, requested_from, gates, workflow_run_id, generation, concurrency_key, key_id, order_no,
                      waits_for, priority)
SELECT new.*
  FROM unnest(
        %(run_ids)s::uuid[], %(job_ids)s::uuid[], %(tenants)s::text[], %(shards)s::smallint[], %(queues)s::text[],
        %(lanes)s::text[], %(handlers)s::text[], %(causes)s::text[], %(overlaps)s::text[], %(states)s::text[],
        %(versions)s::integer[], %(scheduled_at)s::timestamptz[], %(publish_at)s::timestamptz[],
        %(moved_ahead)s::boolean[], %(created_at)s::timestamptz[], %(deadline_at)s::timestamptz[], %(close_at)s::timestamptz[], %(parents)s::uuid[],
        %(roots)s::uuid[], %(request_ids)s::text[], %(requested_from)s::text[], %(gates)s::smallint[],
        %(workflows)s::uuid[], %(generations)s::smallint[], %(keys)s::text[], %(key_ids)s::bigint[],
        %(order_nos)s::bigint[], %(waits_for)s::bigint[], %(priorities)s::smallint[]
       ) AS new
    ON CONFLICT (run_id) DO NOTHING
RETURNING run_id

-- name: drop_repeated_runs
-- Deletes those of these new runs that have finished before; returns them.
-- Index: the partitions' index by run, job_runs_pkey.
-- Lock: new rows.
-- Why: a later statement than add_job_runs, so that it sees the end of a run that add_job_runs waited for.
DELETE FROM job_runs
 WHERE run_id IN (SELECT f.run_id FROM finished_runs AS f WHERE f.run_id = ANY (%(run_ids)s::uuid[]))
RETURNING run_id

-- name: retract_runs
-- Deletes unclaimed scheduled runs of these jobs whose scheduled time, or the time it was moved to, is still ahead.
-- Index: job_runs_by_job, overrides_pkey.
-- Why created_at: `now` is in the past for a freeze, and what was written under it stays.
-- Lock: each run, waiting for a claim under way (which then wins), as does a run that has a place of its key.
DELETE FROM job_runs AS o
 WHERE o.job_id = ANY (%(job_ids)s)
   AND o.cause = 'timer'
   AND o.attempt = 0
   AND o.gates & %(holds)s = 0
   AND o.state = ANY (%(sources)s)
   AND coalesce((SELECT v.moved_to FROM overrides AS v WHERE v.job_id = o.job_id AND v.scheduled_at = o.scheduled_at),
                o.scheduled_at) > greatest(%(now)s, o.created_at)
RETURNING o.job_id, o.scheduled_at, o.run_id, CASE WHEN o.order_no IS NOT NULL THEN o.key_id END AS order_id

-- name: leave_orders
-- Lets the scheduler queue the next runs of those ordering keys whose first run was retracted.
-- Index: order_keys_pkey; order_keys_wake changes.
-- Lock: each key in key_id order; waits for another transaction that writes or ends a run of it.
UPDATE order_keys AS k
   SET head = NULL, wake_at = coalesce(k.wake_at, tidewheel_now())
  FROM (SELECT o.key_id FROM order_keys AS o WHERE o.key_id = ANY (%(key_ids)s::bigint[]) ORDER BY o.key_id FOR UPDATE) AS locked
 WHERE k.key_id = locked.key_id AND k.head = ANY (%(run_ids)s::uuid[])

-- name: move_timers
-- Moves timers that the caller has locked. A held timer stays held until its reason is gone.
-- Index: timers_pkey; timers_due changes.
-- Lock: rows already locked.
-- Why ARRAY: it cannot be hashed. The planner would hash a table of up to some 40,000 timers, and read it whole for each batch of 2,000.
UPDATE timers AS t
   SET scheduled_at = moved.scheduled_at,
       due_at = moved.due_at,
       catch_up_end = moved.catch_up_end,
       hold_reason = moved.hold_reason,
       overridden = moved.overridden
  FROM unnest(
        %(job_ids)s::uuid[], %(scheduled_at)s::timestamptz[], %(due_at)s::timestamptz[], %(catch_up_ends)s::timestamptz[],
        %(hold_reasons)s::text[], %(overridden)s::boolean[]
       ) AS moved (job_id, scheduled_at, due_at, catch_up_end, hold_reason, overridden)
 WHERE t.job_id = ANY (ARRAY[moved.job_id])

-- name: find_open_fixed_delay_runs
-- Returns the fixed_delay jobs whose current run is open, or has ended in a client's transaction with effects that are
-- not applied yet.
-- Index: job_runs_by_job; deferred_effects is read whole, a few rows.
-- No lock: such a run is created, ended and applied under its timer's lock, which the caller has.
SELECT t.job_id
  FROM unnest(%(job_ids)s::uuid[], %(scheduled_at)s::timestamptz[]) AS t (job_id, scheduled_at)
 WHERE EXISTS (SELECT FROM job_runs AS o
                WHERE o.job_id = t.job_id AND o.scheduled_at = t.scheduled_at AND o.cause = 'timer')
    OR EXISTS (SELECT FROM deferred_effects AS l WHERE l.job_id = t.job_id AND l.chain_at = t.scheduled_at)

-- name: release_timers
-- Enables the timers of quarantined jobs, unless an edit or a release came first. A pause or an open run holds them.
-- Index: timers_pkey, jobs_pkey, overrides_pkey. Lock: the timers, already locked; the jobs' rows change only under these
-- locks.
-- Why least: a moved occurrence that has not fired may be due before the position. Why greatest: it ignores a NULL.
UPDATE timers AS t
   SET due_at = greatest(
         %(until)s::timestamptz,
         CASE WHEN j.paused THEN coalesce(j.paused_until, 'infinity')
              WHEN j.job_id = ANY (%(waiting)s::uuid[]) THEN 'infinity'
              ELSE least(t.scheduled_at, (SELECT min(v.moved_to) FROM overrides AS v
                                           WHERE v.job_id = t.job_id AND v.kind = 'move' AND v.done_at IS NULL))
         END),
       hold_reason = CASE WHEN j.paused THEN 'pause'
                          WHEN j.job_id = ANY (%(waiting)s::uuid[]) THEN 'run' END
  FROM unnest(%(job_ids)s::uuid[], %(positions)s::timestamptz[]) AS held (job_id, scheduled_at)
  JOIN jobs AS j ON j.job_id = held.job_id
 WHERE t.job_id = held.job_id AND t.scheduled_at = held.scheduled_at AND t.hold_reason = 'quarantine'
   AND j.deleted_at IS NULL
RETURNING j.job_id, j.tenant, j.key, j.shard, j.version

-- name: reserve_catch_up_slots
-- Reserves publish times for caught-up runs, for good, even if the transaction rolls back. Two transactions may get the
-- same times: the rate holds on average, not to the microsecond.
-- No index, no lock that lasts.
SELECT timestamptz 'epoch' + interval '1 microsecond' * setval(
        'catch_up_pace',
        greatest((SELECT last_value FROM catch_up_pace), (extract(epoch FROM %(now)s::timestamptz) * 1000000)::bigint)
            + %(needed_us)s::bigint
       )

-- name: read_overrides
-- Returns the overrides of occurrences that are not recorded yet; moved ones until they have fired.
-- Index: overrides_pkey.
-- No lock: they change only under their timers' locks.
SELECT v.job_id, v.scheduled_at, v.moved_to, v.done_at IS NOT NULL
  FROM unnest(%(job_ids)s::uuid[], %(cursors)s::timestamptz[]) AS requested (job_id, cursor_at)
  JOIN overrides AS v USING (job_id)
 WHERE v.scheduled_at >= requested.cursor_at OR (v.kind = 'move' AND v.done_at IS NULL)

-- name: read_day_sets
-- Returns the days of calendars.
-- Index: calendars_pkey.
-- No lock: they change only under the timers' locks of every job that names them.
SELECT c.tenant, c.name, c.days, c.weekdays, c.since
  FROM unnest(%(tenants)s::text[], %(names)s::text[]) AS requested (tenant, name)
  JOIN calendars AS c USING (tenant, name)

-- name: mark_moves_done
-- Records that moved occurrences have fired.
-- Index: overrides_pkey.
-- Lock: the rows, under their timers' locks.
UPDATE overrides AS v
   SET done_at = %(now)s
  FROM unnest(%(job_ids)s::uuid[], %(instants)s::timestamptz[]) AS done (job_id, scheduled_at)
 WHERE v.job_id = done.job_id AND v.scheduled_at = done.scheduled_at

-- name: restore_moves
-- Lets moved occurrences fire again, because their run or skip was retracted.
-- Index: overrides_pkey.
-- Lock: the rows, under their timers' locks.
UPDATE overrides AS v
   SET done_at = NULL
  FROM unnest(%(job_ids)s::uuid[], %(instants)s::timestamptz[]) AS back (job_id, scheduled_at)
 WHERE v.job_id = back.job_id AND v.scheduled_at = back.scheduled_at AND v.done_at IS NOT NULL
RETURNING v.job_id, v.scheduled_at, v.moved_to

-- name: retract_skips
-- Deletes skips that were recorded ahead of time, within the lookahead of at most 60 s. A span that has begun is
-- recorded again. A skip of an occurrence that was moved to a past time stays, even if its scheduled time is ahead.
-- Index: skips_by_job, overrides_pkey.
-- Lock: the rows, under their timers' locks.
DELETE FROM skips AS s
 WHERE s.job_id = ANY (%(job_ids)s)
   AND s.first_at > %(now)s::timestamptz - interval '5 minutes'
   AND s.last_at > %(now)s
   AND coalesce((SELECT v.moved_to FROM overrides AS v WHERE v.job_id = s.job_id AND v.scheduled_at = s.first_at),
                s.last_at) > greatest(%(now)s, s.created_at)
RETURNING s.job_id, s.first_at

-- name: drop_timers
-- Deletes the timers of jobs that fire no more or are deleted.
-- Index: timers_pkey.
-- Lock: rows already locked.
DELETE FROM timers WHERE job_id = ANY (%(job_ids)s)

-- name: finish_jobs
-- Marks jobs that fire no more as finished.
-- Index: jobs_pkey.
-- Lock: the jobs' rows, after their timers'.
UPDATE jobs SET finished_at = %(now)s WHERE job_id = ANY (%(job_ids)s)

-- name: request_cancel
-- Moves running attempts to cancelling: the run can only become cancelled.
-- Index: job_runs_pkey.
-- Lock: rows that the caller has locked.
UPDATE job_runs AS o
   SET state = %(target)s
 WHERE o.run_id = ANY (%(run_ids)s::uuid[]) AND o.state = ANY (%(sources)s)
RETURNING o.run_id, o.attempt, o.tenant, o.executor_id

-- name: start_cancelling
-- Moves attempts to cancelling whose handlers end them as cancelled: the state machine has no direct move.
-- Index: job_runs_pkey.
-- Lock: each run in run_id order, locked rows are skipped.
UPDATE job_runs AS o
   SET state = %(target)s
  FROM (
    SELECT found.at
      FROM (SELECT *
              FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[]) AS given (run_id, attempt)
             ORDER BY run_id) AS requested
     CROSS JOIN LATERAL (
        SELECT p.ctid AS at
          FROM job_runs AS p
         WHERE p.run_id = requested.run_id
           AND p.attempt = requested.attempt
           AND p.executor_id = %(executor_id)s
           AND p.state = ANY (%(sources)s)
           FOR UPDATE SKIP LOCKED
     ) AS found
  ) AS chosen
 WHERE o.ctid = chosen.at

-- name: add_signals
-- Inserts signals for executors to stop attempts; a repeat changes nothing.
-- Index: signals_pkey.
-- No lock.
INSERT INTO signals (run_id, attempt, kind, tenant, executor_id, created_at, reason)
SELECT given.run_id, given.attempt, %(kind)s, given.tenant, given.executor_id, tidewheel_now(), given.reason
  FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[], %(tenants)s::text[], %(executor_ids)s::uuid[], %(reasons)s::text[])
       AS given (run_id, attempt, tenant, executor_id, reason)
    ON CONFLICT DO NOTHING

-- name: read_installation
-- Returns the number of shards, the signing key, the recorded topic prefix, the schemas' ids in a registry, the tenants' role.
-- Index: settings_pkey.
-- No lock.
SELECT name, value FROM settings WHERE name IN ('shards', 'topic_prefix', 'schema_ids', 'tenant_role')

-- name: find_busy_attempts
-- Returns the attempts that a move did not change only because another transaction holds their row; the caller retries.
-- Index: job_runs_pkey.
-- No lock.
SELECT o.run_id
  FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[], %(executor_ids)s::uuid[])
       AS requested (run_id, attempt, executor_id)
 CROSS JOIN LATERAL (SELECT * FROM job_runs AS p WHERE p.run_id = requested.run_id OFFSET 0) AS o
 WHERE o.attempt = requested.attempt
   AND o.state = ANY (%(sources)s)
   AND o.executor_id IS NOT DISTINCT FROM requested.executor_id

-- name: lock_chained_timers
-- Locks the timers of fixed_delay jobs whose run ends; alone, in job_id order.
-- Index: timers_pkey.
-- Lock: each timer, waiting for an edit or a pause under way.
SELECT job_id FROM timers WHERE job_id = ANY (%(job_ids)s::uuid[]) ORDER BY job_id FOR UPDATE

-- name: move_chained_timers
-- Sets the next fire times from the ends of the runs. A job that is no fixed_delay any more, or whose timer has moved
-- on, is not changed.
-- Index: timers_pkey, jobs_pkey; timers_due changes.
-- Lock: rows already locked.
UPDATE timers AS t
   SET scheduled_at = ended.ended_at + j.interval_us * interval '1 microsecond',
       due_at = CASE WHEN t.hold_reason = 'run' THEN ended.ended_at + j.interval_us * interval '1 microsecond' ELSE t.due_at END,
       hold_reason = nullif(t.hold_reason, 'run')
  FROM unnest(%(job_ids)s::uuid[], %(scheduled_at)s::timestamptz[], %(ended_at)s::timestamptz[])
       AS ended (job_id, scheduled_at, ended_at)
  JOIN jobs AS j USING (job_id)
 WHERE t.job_id = ended.job_id
   AND j.schedule_kind = 'fixed_delay'
   AND t.scheduled_at <= ended.scheduled_at

-- part: last_chained_end(o)
-- The end and the version of the last run by the timer before an instant. A run of a deleted job with the same key does not count.
-- Index: by job in every partition since the job was created. No lock.
SELECT f.finished_at, f.job_version FROM finished_runs AS f
 WHERE f.job_id = o.job_id AND f.cause = 'timer' AND f.scheduled_at < o.scheduled_at
   AND f.finished_at >= o.created_at AND f.created_at >= o.created_at
 ORDER BY f.scheduled_at DESC LIMIT 1

-- name: move_by_attempts
-- Moves next fire times that `move_chained_timers` has set for these ends, to the times that the attempts have set, within the
-- bounds of the job. A job that has another version than the run, or whose timer was not set, is not changed.
-- Index: timers_pkey, jobs_pkey, job_versions_pkey; timers_due changes.
-- Lock: rows already locked.
UPDATE timers AS t
   SET scheduled_at = ended.ended_at + bounded.delay,
       due_at = CASE WHEN t.due_at = t.scheduled_at THEN ended.ended_at + bounded.delay ELSE t.due_at END
  FROM unnest(%(job_ids)s::uuid[], %(versions)s::integer[], %(ended_at)s::timestamptz[], %(delays)s::interval[])
       AS ended (job_id, version, ended_at, delay)
  JOIN jobs AS j ON j.job_id = ended.job_id AND j.version = ended.version
  JOIN job_versions AS v ON v.job_id = j.job_id AND v.version = j.version
 CROSS JOIN LATERAL (
    SELECT least(greatest(ended.delay, coalesce((v.schedule_json::jsonb->>'min_us')::bigint, j.interval_us) * interval '1 microsecond'),
                 coalesce((v.schedule_json::jsonb->>'max_us')::bigint, j.interval_us) * interval '1 microsecond') AS delay
 ) AS bounded
 WHERE t.job_id = ended.job_id
   AND j.schedule_kind = 'fixed_delay'
   AND t.scheduled_at = ended.ended_at + j.interval_us * interval '1 microsecond'

-- name: lock_counted_jobs
-- Locks jobs whose consecutive failures are counted; alone, in job_id order.
-- Index: jobs_pkey.
-- Lock: each job, after the runs that end and the timers of fixed_delay jobs.
SELECT job_id FROM jobs WHERE job_id = ANY (%(job_ids)s) ORDER BY job_id FOR NO KEY UPDATE

-- name: count_failures
-- Counts consecutive failures; a success resets them. Returns the counts before and after.
-- Index: jobs_pkey.
-- Lock: rows already locked.
UPDATE jobs AS j
   SET consecutive_failures = ended.failures + CASE WHEN ended.broken THEN 0 ELSE j.consecutive_failures END
  FROM unnest(%(job_ids)s::uuid[], %(failures)s::integer[], %(broken)s::boolean[]) AS ended (job_id, failures, broken)
 WHERE j.job_id = ended.job_id
   AND (ended.failures > 0 OR j.consecutive_failures > 0)
RETURNING j.job_id, j.consecutive_failures - ended.failures, j.consecutive_failures

-- name: read_versions_in_force
-- Returns the versions of a job that were in force in a range: later than `after`, not later than `until`.
-- Index: job_versions_pkey.
-- No lock.
SELECT f.version, f.schedule_json, f.policy_json, f.after, f.until
  FROM (
    SELECT v.version, v.schedule_json, v.policy_json, v.effective_at AS after,
           least(v.retired_at, min(v.effective_at) OVER following) AS until
      FROM job_versions AS v
     WHERE v.job_id = %(job_id)s
    WINDOW following AS (ORDER BY v.version ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)
  ) AS f
 WHERE f.after < %(last)s AND coalesce(f.until >= %(first)s, true) AND coalesce(f.until > f.after, true)
 ORDER BY f.version
 LIMIT %(limit)s

-- name: read_one_version
-- Returns a version of a job as if it had always been in force.
-- Index: job_versions_pkey.
-- No lock.
SELECT v.version, v.schedule_json, v.policy_json, NULL::timestamptz AS after, NULL::timestamptz AS until
  FROM job_versions AS v
 WHERE v.job_id = %(job_id)s AND v.version = %(version)s

-- name: read_undecided
-- Returns the time from which a job's timer has not decided. A quarantined timer decides nothing, nor does a pause or
-- a freeze that skips its occurrences.
-- Index: timers_pkey, job_versions_pkey.
-- No lock: a later statement sees what the timer decides from now on.
SELECT t.scheduled_at
  FROM timers AS t
  JOIN job_versions AS v ON v.job_id = t.job_id AND v.version = t.version
 WHERE t.job_id = %(job_id)s
   AND t.hold_reason IS DISTINCT FROM 'quarantine'
   AND NOT (coalesce(t.hold_reason, '') IN ('pause', 'freeze')
            AND coalesce(v.policy_json::jsonb ->> 'on_resume', 'skip') = 'skip' AND v.schedule_json::jsonb ->> 'kind' <> 'once')

-- name: read_recorded
-- Returns the times of a range for which a job has runs, or will have one at the time it was moved to.
-- Index: job_runs_by_job, by job in every partition, overrides_pkey.
-- No lock.
SELECT r.scheduled_at
  FROM runs AS r
 WHERE r.job_id = %(job_id)s AND r.scheduled_at BETWEEN %(first)s AND %(last)s
   AND r.cause IN ('timer', 'backfill') AND r.state <> ALL (%(undone)s)
 UNION ALL
SELECT v.scheduled_at
  FROM overrides AS v
 WHERE v.job_id = %(job_id)s AND v.scheduled_at BETWEEN %(first)s AND %(last)s AND v.kind = 'move' AND v.done_at IS NULL

-- name: add_deferred_effects
-- Inserts the effects of ends in clients' own transactions, which the scheduler applies.
-- Index: deferred_effects_pkey.
-- No lock but its own new rows.
INSERT INTO deferred_effects (run_id, job_id, tenant, ended_at, chain_at, reset_failures, inputs_at, release_job,
                              key_id, held_tenant, job_version, next_in)
SELECT *
  FROM unnest(%(run_ids)s::uuid[], %(job_ids)s::uuid[], %(tenants)s::text[], %(ended_at)s::timestamptz[],
              %(chain_at)s::timestamptz[], %(reset_failures)s::boolean[], %(inputs_at)s::timestamptz[],
              %(release_job)s::boolean[], %(key_ids)s::bigint[], %(held_tenant)s::boolean[], %(versions)s::integer[],
              %(delays)s::interval[])

-- name: take_deferred_effects
-- Deletes and returns some deferred effects, which this transaction applies: those of given runs, or all but those left out.
-- Index: deferred_effects_pkey.
-- Lock: the rows, locked rows are skipped.
DELETE FROM deferred_effects
 WHERE run_id IN (SELECT l.run_id
                    FROM deferred_effects AS l
                   WHERE l.run_id <> ALL (%(left)s::uuid[])
                     AND (%(run_ids)s::uuid[] IS NULL OR l.run_id = ANY (%(run_ids)s::uuid[]))
                   ORDER BY l.run_id
                   LIMIT %(limit)s
                     FOR UPDATE SKIP LOCKED)
RETURNING run_id, job_id, tenant, ended_at, chain_at, reset_failures, inputs_at, release_job, key_id, held_tenant,
          job_version, next_in

-- name: record_schema_ids
-- Records the ids of a release's schemas in a schema registry, in place of the release's before.
-- Index: settings_pkey.
-- Lock: the row.
INSERT INTO settings (name, value) VALUES ('schema_ids', %(recorded)s)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: record_topic_prefix
-- Records the prefix of this installation's topics, unless it is recorded already.
-- Index: settings_pkey.
-- Lock: its own new row.
INSERT INTO settings (name, value) VALUES ('topic_prefix', to_jsonb(%(prefix)s::text)) ON CONFLICT (name) DO NOTHING

-- name: find_neighbours
-- Returns the other schemas of this database with an installation whose settings this role may read.
-- Index: pg_class_relname_nsp_index. No lock.
SELECT n.nspname
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
  JOIN pg_class AS m ON m.relnamespace = n.oid AND m.relname = 'tidewheel_migrations'
 WHERE c.relname = 'settings' AND n.nspname <> current_schema()
   AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')

-- part: blocks_key(run)
-- The ordering key that the ended run blocks, as `k` has it, or will block once the failures before it are settled.
-- Index: order_failures_by_run, order_keys_pkey. No lock.
coalesce(k.key, (SELECT w.key
                   FROM order_failures AS f
                   JOIN order_keys AS w ON w.key_id = f.key_id
                  WHERE f.run_id = run.run_id
                  LIMIT 1))

-- name: read_retried_runs
-- The runs to retry, with their inputs; an ended run never changes.
-- Index: job_runs_pkey, the partitions' indexes by run, order_keys_by_blocker, order_failures_by_run, order_keys_pkey. No lock.
SELECT r.run_id, r.tenant, r.job_id, r.job_version, r.state, r.attempt, r.scheduled_at, r.root_run_id, r.concurrency_key,
       i.payload, i.payload_content_type, i.labels, i.traceparent,
       {{blocks_key(r)}} AS blocks_key
  FROM runs AS r
  LEFT JOIN order_keys AS k ON k.blocked_by = r.run_id AND k.blocked_by = ANY (%(run_ids)s)
  LEFT JOIN run_inputs AS i ON i.run_id = r.run_id AND i.run_id = ANY (%(run_ids)s)
 WHERE r.run_id = ANY (%(run_ids)s)

-- name: lock_jobs_for_share
-- Locks jobs against deletion until their triggered runs are written.
-- Index: jobs_pkey. Lock: each job's key, shared, so that triggers and firing do not wait for each other.
-- Why without a join: as lock_timers.
SELECT job_id FROM jobs WHERE job_id = ANY (%(job_ids)s) ORDER BY job_id FOR KEY SHARE

-- part: shared_job(job)
-- The columns that triggered runs need of a job, by its version `v`.
job.job_id, job.shard, v.version, job.deleted_at, v.handler, v.queue, v.lane, v.overlap, v.definition,
       CASE WHEN v.ordering_key IS NULL THEN coalesce(v.key_template, v.concurrency_key) END AS key, v.priority,
       CASE WHEN v.ordering_key IS NOT NULL THEN coalesce(v.key_template, v.ordering_key) END AS ordering_key, v.passes,
       v.dedupe

-- name: read_shared_versions
-- The same columns of earlier versions of these jobs.
-- Index: jobs_pkey, job_versions_pkey. No lock.
SELECT {{shared_job(j)}}
  FROM unnest(%(job_ids)s::uuid[], %(versions)s::integer[]) AS given (job_id, version)
  JOIN jobs AS j ON j.job_id = given.job_id
  JOIN job_versions AS v ON v.job_id = given.job_id AND v.version = given.version

-- name: read_shared_jobs
-- The columns that triggered runs need of the jobs just locked.
-- Index: jobs_pkey, job_versions_pkey. No lock.
SELECT {{shared_job(j)}}
  FROM jobs AS j
  JOIN job_versions AS v ON v.job_id = j.job_id AND v.version = j.version
 WHERE j.job_id = ANY (%(job_ids)s)

-- name: lock_unbegun_runs
-- Locks those of these runs that have not begun and that no cancel names.
-- Index: job_runs_pkey.
-- Lock: each run in run_id order; waits for a claim under way, which then wins.
SELECT o.run_id, nullif(o.publish_at, 'infinity')
  FROM job_runs AS o
 WHERE o.run_id = ANY (%(run_ids)s::uuid[])
   AND o.attempt = 0
   AND o.state = ANY (%(states)s::text[])
   AND {{no_cancel_is_accepted(o)}}
 ORDER BY o.run_id
   FOR UPDATE OF o

-- name: move_runs
-- Gives runs that have not begun the version in force and a new time, which a run that waits for others does not need.
-- Index: job_runs_pkey; job_runs_due and job_runs_by_job change. Lock: rows that lock_unbegun_runs has locked.
UPDATE job_runs AS o
   SET job_version = given.job_version, handler = given.handler, queue = given.queue, lane = given.lane,
       scheduled_at = CASE WHEN isfinite(o.publish_at) THEN greatest(o.scheduled_at, given.publish_at) ELSE o.scheduled_at END,
       publish_at = CASE WHEN isfinite(o.publish_at) THEN given.publish_at ELSE o.publish_at END,
       deadline_at = given.deadline_at,
       schedule_to_close_at = given.close_at,
       gates = o.gates | %(moved)s
  FROM unnest(%(run_ids)s::uuid[], %(versions)s::integer[], %(handlers)s::text[], %(queues)s::text[], %(lanes)s::text[],
              %(publish_at)s::timestamptz[], %(deadline_at)s::timestamptz[], %(close_at)s::timestamptz[])
       AS given (run_id, job_version, handler, queue, lane, publish_at, deadline_at, close_at)
 WHERE o.run_id = given.run_id
RETURNING o.run_id, o.job_id, o.shard, o.queue, o.lane, o.cause, o.job_version, o.attempt, o.scheduled_at,
          CASE WHEN isfinite(o.publish_at) THEN o.publish_at ELSE o.scheduled_at END AS publish_at, o.created_at,
          o.concurrency_key, o.tenant, o.priority, isfinite(o.publish_at) AS queued

-- name: hasten_run
-- Makes the next attempt of a retrying run due now; one that is due, has started or has ended stays as it is.
-- Index: job_runs_pkey; job_runs_due changes. Lock: the row, which the caller has locked.
UPDATE job_runs AS o
   SET publish_at = (SELECT tidewheel_now())
 WHERE o.run_id = %(run_id)s
   AND o.attempt = %(attempt)s - 1
   AND o.state = %(state)s
   AND o.publish_at > (SELECT tidewheel_now())
RETURNING o.run_id, o.job_id, o.shard, o.queue, o.lane, o.cause, o.job_version, o.attempt, o.scheduled_at, o.publish_at,
          o.created_at, o.concurrency_key, o.tenant, o.priority, true AS queued

-- name: replace_inputs
-- Replaces the inputs of runs that have not begun; their overlap policy stays.
-- Index: job_runs_pkey, the partitions' primary keys. Lock: the rows, under the locks of their runs.
INSERT INTO run_inputs AS i (run_id, created_at, tenant, payload, payload_content_type, labels, traceparent)
SELECT o.run_id, o.created_at, o.tenant, given.payload, given.content_type, given.labels::jsonb, given.traceparent
  FROM unnest(%(run_ids)s::uuid[], %(payloads)s::bytea[], %(content_types)s::text[], %(labels)s::text[], %(traceparents)s::text[])
       AS given (run_id, payload, content_type, labels, traceparent)
  JOIN job_runs AS o ON o.run_id = given.run_id
    ON CONFLICT (run_id, created_at) DO UPDATE
   SET payload = excluded.payload, payload_content_type = excluded.payload_content_type, labels = excluded.labels,
       traceparent = excluded.traceparent

-- part: fits_letter_filter(d)
-- True if a dead letter, with its failed run `f`, fits the filters that no index serves.
(%(kind)s::text IS NULL OR d.kind = %(kind)s)
    AND (%(redriven)s::boolean IS NULL OR (d.redriven_at IS NOT NULL) = %(redriven)s)
    AND (%(status)s::text IS NULL OR f.state = %(status)s)
    AND (%(error_type)s::text IS NULL OR f.error_type = %(error_type)s)
    AND (%(queue)s::text IS NULL OR f.queue = %(queue)s)
    AND (%(lane)s::text IS NULL OR f.lane = %(lane)s)

-- name: scan_dead_letters
-- Looks at the next `look` dead letters of a tenant, the oldest first; returns the first `limit` of these that match, and
-- as no match the last one looked at, if there were so many.
-- Index: dead_letters_by_tenant; dead_letters_by_job if a job is given; failed_runs_pkey. No lock.
-- Why: a rare error would read every dead letter in one statement.
  WITH looked AS MATERIALIZED (
    SELECT d.id, d.kind, d.run_id, d.created_at, d.redriven_at
      FROM dead_letters AS d
     WHERE d.tenant = %(tenant)s AND (d.created_at, d.id) > (%(after_at)s, %(after_id)s)
       AND d.created_at BETWEEN %(since)s AND %(until)s
       AND (%(ids)s::bigint[] IS NULL OR d.id = ANY (%(ids)s))
       AND (%(job_id)s::uuid IS NULL OR d.job_id = %(job_id)s)
     ORDER BY d.created_at, d.id
     LIMIT %(look)s
  )
(SELECT d.id, d.kind, d.run_id, d.created_at, true AS matches
   FROM looked AS d
   LEFT JOIN failed_runs AS f ON f.run_id = d.run_id
  WHERE {{fits_letter_filter(d)}}
  ORDER BY d.created_at, d.id
  LIMIT %(limit)s)
 UNION ALL
(SELECT d.id, d.kind, d.run_id, d.created_at, false
   FROM looked AS d
  WHERE (SELECT count(*) FROM looked) = %(look)s
  ORDER BY d.created_at DESC, d.id DESC
  LIMIT 1)

-- name: scan_failed_runs
-- Looks at the next `look` failed and timed-out runs of a tenant, by id; returns the first `limit` of these that match, and
-- as no match the last one looked at, if there were so many.
-- Index: failed_runs_by_tenant. No lock.
-- Why: as scan_dead_letters.
  WITH looked AS MATERIALIZED (
    SELECT f.run_id, f.job_id, f.state, f.error_type, f.queue, f.lane, f.finished_at
      FROM failed_runs AS f
     WHERE f.tenant = %(tenant)s AND f.run_id > %(after_id)s AND f.run_id < %(before_id)s
     ORDER BY f.run_id
     LIMIT %(look)s
  )
(SELECT f.run_id, true AS matches
   FROM looked AS f
  WHERE f.finished_at <= %(ended_until)s
    AND (%(job_id)s::uuid IS NULL OR f.job_id = %(job_id)s)
    AND (%(status)s::text IS NULL OR f.state = %(status)s)
    AND (%(error_type)s::text IS NULL OR f.error_type = %(error_type)s)
    AND (%(queue)s::text IS NULL OR f.queue = %(queue)s)
    AND (%(lane)s::text IS NULL OR f.lane = %(lane)s)
  ORDER BY f.run_id
  LIMIT %(limit)s)
 UNION ALL
(SELECT f.run_id, false
   FROM looked AS f
  WHERE (SELECT count(*) FROM looked) = %(look)s
  ORDER BY f.run_id DESC
  LIMIT 1)

-- name: find_retried_runs
-- Returns those of these failed runs that have a retry.
-- Index: job_runs_by_job, the partitions' indexes by job; failed_runs_pkey or failed_runs_by_tenant. No lock.
-- Why OFFSET 0: a join would be free to read all runs.
SELECT f.run_id
  FROM failed_runs AS f
 WHERE f.run_id = ANY (%(run_ids)s)
   AND EXISTS (SELECT FROM runs AS n
                WHERE n.job_id = f.job_id AND n.scheduled_at = f.scheduled_at AND n.parent_run_id = f.run_id
               OFFSET 0)

-- name: find_due_works
-- Returns the running works whose next batch is due, and the redrives that a process of the release before has changed.
-- Index: works_open; redrives_open, works_unfinished, works_pkey and redrives_pkey. No lock.
-- Why kinds: a work of a kind that this release does not know waits for a process that does.
SELECT work_id
  FROM ((SELECT work_id, next_at FROM works
          WHERE state = 'running' AND next_at <= %(now)s AND kind = ANY (%(kinds)s)
          ORDER BY next_at LIMIT 100)
         UNION
        (SELECT r.redrive_id, r.next_at
           FROM redrives AS r
           LEFT JOIN works AS w ON w.work_id = r.redrive_id
          WHERE r.state = 'running' AND w.state IS DISTINCT FROM 'running'
          LIMIT 100)
         UNION
        (SELECT w.work_id, w.next_at
           FROM works AS w
           JOIN redrives AS r ON r.redrive_id = w.work_id
          WHERE w.finished_at IS NULL AND r.finished_at IS NOT NULL
          LIMIT 100)) AS due
 ORDER BY next_at

-- name: adopt_redrives
-- Adds the works of redrives that have none, for a process of the release before has written and perhaps ended them.
-- Index: works_pkey; redrives is read whole, once in the life of a scheduler. Lock: new rows.
INSERT INTO works
SELECT (tidewheel_work_of(r)).*
  FROM redrives AS r
 WHERE NOT EXISTS (SELECT FROM works AS w WHERE w.work_id = r.redrive_id)
    ON CONFLICT DO NOTHING

-- name: lock_old_redrive
-- Locks the row in redrives of a tenant's work, if it has one.
-- Index: redrives_pkey. Lock: the row, before that of works.
SELECT true FROM redrives WHERE redrive_id = %(work_id)s AND tenant = %(tenant)s FOR UPDATE

-- name: take_old_redrive
-- Locks the row in redrives of a work, if it has one.
-- Index: redrives_pkey. Lock: the row, skipped if a request or another scheduler holds it.
SELECT true FROM redrives WHERE redrive_id = %(work_id)s FOR UPDATE SKIP LOCKED

-- name: follow_old_redrive
-- Brings the work of a redrive up to date with its row in redrives, which a process of the release before may have written.
-- Index: redrives_pkey, works_pkey. Lock: the row of works; that of redrives is locked already.
INSERT INTO works AS w
SELECT (tidewheel_work_of(r)).* FROM redrives AS r WHERE r.redrive_id = %(work_id)s
    ON CONFLICT (work_id) DO UPDATE
   SET state = excluded.state, "cursor" = excluded.cursor, done_count = excluded.done_count,
       rejected_count = excluded.rejected_count, rejections = excluded.rejections, next_at = excluded.next_at,
       reason = excluded.reason, finished_at = excluded.finished_at

-- name: write_old_redrive
-- Writes a work of the kind `redrive` to redrives, for processes of the release before.
-- Index: works_pkey, redrives_pkey. Lock: the row of redrives, which is locked already or new.
INSERT INTO redrives (redrive_id, tenant, state, kind, ids, job_id, status, error_type, queue, lane, since_at, until_at, rate,
                      matched_count, redriven_count, rejected_count, rejections, after_at, after_id, next_at, reason,
                      created_at, finished_at)
SELECT w.work_id, w.tenant, w.state, f.kind, f.ids, f.job_id, f.status, f.error_type, f.queue, f.lane, f.since, f.until,
       w.rate, w.matched_count, w.done_count, w.rejected_count, w.rejections, (w.cursor ->> 'at')::timestamptz,
       (w.cursor ->> 'id')::bigint, w.next_at, w.reason, w.created_at, w.finished_at
  FROM works AS w
 CROSS JOIN LATERAL jsonb_to_record(w.filter)
            AS f (kind text, ids bigint[], job_id uuid, status text, error_type text, queue text, lane text,
                  since timestamptz, until timestamptz)
 WHERE w.work_id = %(work_id)s AND w.kind = 'redrive'
    ON CONFLICT (redrive_id) DO UPDATE
   SET state = excluded.state, redriven_count = excluded.redriven_count, rejected_count = excluded.rejected_count,
       rejections = excluded.rejections, after_at = excluded.after_at, after_id = excluded.after_id,
       next_at = excluded.next_at, reason = excluded.reason, finished_at = excluded.finished_at

-- name: lock_due_work
-- Locks a running work and returns it.
-- Index: works_pkey. Lock: the row, skipped if a request or another scheduler holds it.
SELECT work_id, tenant, kind, filter, rate, "cursor", rejections, next_at, created_at
  FROM works
 WHERE work_id = %(work_id)s AND state = 'running' AND next_at <= %(now)s
   FOR UPDATE SKIP LOCKED

-- name: add_work
-- Inserts a work; a repeated one changes nothing.
-- Index: works_pkey. Lock: a new row.
INSERT INTO works (work_id, tenant, kind, state, filter, rate, "cursor", matched_count, rejections, next_at, reason, created_at)
VALUES (%(work_id)s, %(tenant)s, %(kind)s, 'running', %(filter)s, %(rate)s, %(cursor)s, %(matched)s, '[]', %(now)s, %(reason)s,
        %(now)s)
ON CONFLICT (work_id) DO NOTHING

-- name: advance_work
-- Moves a work's cursor after a batch.
-- Index: works_pkey. Lock: a row that is locked already.
UPDATE works
   SET done_count = done_count + %(done)s,
       rejected_count = rejected_count + %(rejected)s,
       rejections = %(rejections)s,
       "cursor" = %(cursor)s,
       next_at = %(next_at)s
 WHERE work_id = %(work_id)s

-- name: set_work_state
-- Changes the state of a work.
-- Index: works_pkey. Lock: a row that is locked already.
UPDATE works
   SET state = %(state)s, reason = coalesce(%(reason)s, reason), finished_at = %(finished_at)s
 WHERE work_id = %(work_id)s

-- name: lock_work
-- Locks a tenant's work and returns its kind and state.
-- Index: works_pkey. Lock: the row.
SELECT kind, state FROM works WHERE work_id = %(work_id)s AND tenant = %(tenant)s FOR UPDATE

-- name: read_job_key
-- The key of a job.
-- Index: jobs_pkey. No lock.
SELECT key FROM jobs WHERE job_id = %(job_id)s

-- name: find_roots
-- Those of these jobs that are roots of graphs: their runs are occurrences of workflows.
-- Index: jobs_roots, with an entry for each root only. No lock: the caller's lock of the timer or of the job's key excludes
-- a submit that makes it a root.
-- Why EXISTS: an installation without workflows reads no index.
SELECT job_id
  FROM jobs
 WHERE job_id = ANY (%(job_ids)s::uuid[]) AND root_job_id = job_id AND (SELECT EXISTS (SELECT FROM job_edges))

-- name: find_holding_versions
-- Those of these versions of roots whose overlap policy sees whole occurrences.
-- Index: job_versions_pkey. No lock: versions do not change.
SELECT v.job_id, v.version
  FROM unnest(%(job_ids)s::uuid[], %(versions)s::integer[]) AS g (job_id, version)
  JOIN job_versions AS v ON v.job_id = g.job_id AND v.version = g.version
 WHERE v.holds_place

-- name: add_releases
-- Inserts the releases of runs that end.
-- Index: releases_due. Lock: new rows.
INSERT INTO releases (shard, due_at, root_run_id, generation, scheduled_at, graph_at, run_id, job_id, tenant, state, began,
                      started_at, holds, traceparent)
SELECT new.shard, tidewheel_now(), new.root_run_id, new.generation, new.scheduled_at, new.graph_at, new.run_id, new.job_id, new.tenant,
       new.state, new.began, new.started_at, new.holds, new.traceparent
  FROM unnest(
        %(shards)s::smallint[], %(roots)s::uuid[], %(generations)s::smallint[], %(scheduled_at)s::timestamptz[],
        %(graph_at)s::timestamptz[], %(run_ids)s::uuid[], %(job_ids)s::uuid[], %(tenants)s::text[], %(states)s::text[],
        %(began)s::boolean[], %(started_at)s::timestamptz[], %(holds)s::boolean[], %(traceparents)s::text[]
       ) AS new (shard, root_run_id, generation, scheduled_at, graph_at, run_id, job_id, tenant, state, began, started_at, holds,
                 traceparent)

-- part: release(r)
-- The columns of a release; the instant of the graph is the root's.
r.id, r.shard, r.root_run_id, r.generation, r.scheduled_at,
       coalesce(r.graph_at, (SELECT w.graph_at FROM workflows AS w WHERE w.root_run_id = r.root_run_id), r.scheduled_at) AS graph_at,
       r.run_id, r.job_id, r.tenant, r.state, r.began, r.started_at, r.holds, r.cursor_id, r.traceparent

-- part: due_releases(r)
-- The ids of the next due releases of these shards, the oldest first.
SELECT next.id
  FROM unnest(%(shards)s::smallint[]) AS owned (shard)
 CROSS JOIN LATERAL (
    SELECT r.id, r.due_at
      FROM releases AS r
     WHERE r.shard = owned.shard AND r.due_at <= tidewheel_now()
     ORDER BY r.due_at, r.id
     LIMIT %(limit)s
 ) AS next
 ORDER BY next.due_at, next.id
 LIMIT %(limit)s

-- name: take_releases
-- Locks the next due releases of these shards, the oldest first.
-- Index: releases_due, releases_pkey, workflows_pkey. Lock: the rows, locked rows are skipped: another scheduler drains them.
WITH due AS MATERIALIZED ({{due_releases(r)}})
SELECT {{release(r)}}
  FROM releases AS r
 WHERE r.id IN (SELECT d.id FROM due AS d)
 ORDER BY r.due_at, r.id
   FOR UPDATE OF r SKIP LOCKED

-- name: take_given_releases
-- Locks those of these releases that are due.
-- Index: releases_pkey, workflows_pkey. Lock: as take_releases.
SELECT {{release(r)}}
  FROM releases AS r
 WHERE r.id = ANY (%(ids)s::bigint[]) AND r.shard = ANY (%(shards)s::smallint[]) AND r.due_at <= tidewheel_now()
 ORDER BY r.due_at, r.id
   FOR UPDATE OF r SKIP LOCKED

-- name: share_graphs
-- Tries to lock the graphs of these tenants against changes of their edges; returns those that it has locked.
-- Index: tenant_locks_pkey. Lock: a row and the advisory lock of 0.1 of each tenant, both shared; a change under way is not waited for.
SELECT t.tenant
  FROM (SELECT l.tenant, (hashtext('tidewheel.graphs')::bigint << 32) | (hashtext(l.tenant)::bigint & 4294967295) AS key
          FROM tenant_locks AS l
         WHERE l.tenant = ANY (%(tenants)s::text[]) AND l.name = 'graphs'
         ORDER BY l.tenant
           FOR SHARE SKIP LOCKED) AS t
 WHERE pg_try_advisory_xact_lock_shared(hashtext('tidewheel.graphs'), hashtext(t.tenant)) OR NOT {{tidewheel.no_stranger(t)}}

-- name: add_graph_locks
-- Inserts the rows of tenants that have none, and returns those tenants: their graphs are locked by it.
-- Index: tenant_locks_pkey. Lock: the new rows; waits for the first change of a tenant's edges ever.
INSERT INTO tenant_locks (tenant, name)
SELECT t.tenant, 'graphs'
  FROM (SELECT u.tenant, (hashtext('tidewheel.graphs')::bigint << 32) | (hashtext(u.tenant)::bigint & 4294967295) AS key
          FROM unnest(%(tenants)s::text[]) AS u (tenant)) AS t
 WHERE pg_try_advisory_xact_lock_shared(hashtext('tidewheel.graphs'), hashtext(t.tenant)) OR NOT {{tidewheel.no_stranger(t)}}
 ORDER BY t.tenant
    ON CONFLICT DO NOTHING
RETURNING tenant

-- name: find_children
-- The next children of these parents by the edges in force at an instant, in the order of the parents.
-- Index: job_edges_pkey. No lock: share_graphs excludes changes.
SELECT p.place::integer, e.child_job_id, e.condition, e.parents
  FROM unnest(%(job_ids)s::uuid[], %(graph_at)s::timestamptz[], %(cursors)s::uuid[])
       WITH ORDINALITY AS p (job_id, graph_at, cursor_id, place)
 CROSS JOIN LATERAL (
    SELECT d.child_job_id, d.condition, d.parents
      FROM job_edges AS d
     WHERE d.parent_job_id = p.job_id
       AND d.child_job_id > coalesce(p.cursor_id, '00000000-0000-0000-0000-000000000000')
       AND d.from_at < p.graph_at
       AND (d.until_at IS NULL OR p.graph_at <= d.until_at)
     ORDER BY d.child_job_id
     LIMIT %(limit)s
 ) AS e
 ORDER BY p.place, e.child_job_id

-- name: read_child_jobs
-- The columns of children that their runs need; of jobs just locked.
-- Index: jobs_pkey. No lock.
SELECT job_id, shard, paused, deleted_at IS NOT NULL FROM jobs WHERE job_id = ANY (%(job_ids)s::uuid[])

-- name: read_child_versions
-- The versions of these jobs that were in force at an instant; infinity is now.
-- Index: job_versions_pkey. No lock.
SELECT g.job_id, g.at, v.version, v.handler, v.queue, v.lane, v.overlap, v.definition, v.has_deadlines,
       v.concurrency_key, v.workflow_timeout_us, v.holds_place, v.priority
  FROM unnest(%(job_ids)s::uuid[], %(instants)s::timestamptz[]) AS g (job_id, at)
 CROSS JOIN LATERAL (
    SELECT w.*
      FROM job_versions AS w
     WHERE w.job_id = g.job_id AND w.effective_at < g.at
     ORDER BY w.version DESC
     LIMIT 1
 ) AS v

-- part: deadline(r)
-- The deadline of an occurrence, by its root's version: from the start of the root's run on.
-- Index: job_versions_pkey. No lock.
(SELECT coalesce(r.started_at, tidewheel_now()) + v.workflow_timeout_us * interval '1 us'
   FROM job_versions AS v
  WHERE v.job_id = r.job_id AND v.effective_at < r.graph_at
  ORDER BY v.version DESC
  LIMIT 1)

-- name: add_workflows
-- Inserts occurrences whose root has ended; an occurrence that was paused before keeps its state.
-- Index: workflows_pkey, job_versions_pkey. Lock: each row, in root_run_id order.
INSERT INTO workflows (root_run_id, tenant, root_job_id, shard, scheduled_at, graph_at, state, pending, created_at, deadline_at)
SELECT new.root_run_id, new.tenant, new.job_id, new.shard, new.scheduled_at, new.graph_at, 'open', 1, tidewheel_now(),
       {{deadline(new)}}
  FROM unnest(%(roots)s::uuid[], %(tenants)s::text[], %(job_ids)s::uuid[], %(shards)s::smallint[], %(scheduled_at)s::timestamptz[],
              %(graph_at)s::timestamptz[], %(started_at)s::timestamptz[])
       AS new (root_run_id, tenant, job_id, shard, scheduled_at, graph_at, started_at)
 ORDER BY new.root_run_id
    ON CONFLICT (root_run_id) DO UPDATE SET graph_at = excluded.graph_at, deadline_at = excluded.deadline_at

-- name: lock_workflows
-- Locks occurrences.
-- Index: workflows_pkey. Lock: each row, in root_run_id order; waits for another drain, or a request about it.
SELECT root_run_id, tenant, root_job_id, shard, scheduled_at, graph_at, state, generation, pending, failed, cancelled, reason,
       deadline_at
  FROM workflows
 WHERE root_run_id = ANY (%(roots)s::uuid[])
 ORDER BY root_run_id
   FOR UPDATE

-- name: add_marks
-- Adds the marks of parents to children that have several; returns the sums.
-- Index: joins_pkey. Lock: each row, in child_run_id order; the occurrence's lock excludes other marks.
INSERT INTO joins AS j (child_run_id, root_run_id, tenant, parents, marked, unmet)
SELECT new.*
  FROM unnest(%(run_ids)s::uuid[], %(roots)s::uuid[], %(tenants)s::text[], %(parents)s::integer[], %(marked)s::integer[],
              %(unmet)s::integer[]) AS new (run_id, root_run_id, tenant, parents, marked, unmet)
 ORDER BY new.run_id
    ON CONFLICT (child_run_id) DO UPDATE SET marked = j.marked + excluded.marked, unmet = j.unmet + excluded.unmet
RETURNING child_run_id, parents, marked, unmet

-- name: raise_marks
-- Adds the marks of parents to children that a resume runs again; the others have no join.
-- Index: joins_pkey. Lock: as add_marks.
UPDATE joins AS j
   SET marked = j.marked + new.marked, unmet = j.unmet + new.unmet
  FROM unnest(%(run_ids)s::uuid[], %(marked)s::integer[], %(unmet)s::integer[]) AS new (run_id, marked, unmet)
 WHERE j.child_run_id = new.run_id
RETURNING j.child_run_id, j.parents, j.marked, j.unmet

-- name: drop_joins
-- Deletes the joins of children that are decided.
-- Index: joins_pkey. Lock: rows that are locked already.
DELETE FROM joins WHERE child_run_id = ANY (%(run_ids)s::uuid[])

-- name: drop_joins_of
-- Deletes the joins that are left of occurrences that end.
-- Index: joins_by_root. Lock: the rows, under the occurrences' locks.
DELETE FROM joins WHERE root_run_id = ANY (%(roots)s::uuid[])

-- name: lock_blocked
-- Locks those of these runs that are still blocked.
-- Index: job_runs_pkey. Lock: each run, in run_id order; waits for a cancel under way.
SELECT run_id, job_id, job_version, tenant
  FROM job_runs
 WHERE run_id = ANY (%(run_ids)s::uuid[]) AND state = %(blocked)s
 ORDER BY run_id
   FOR UPDATE

-- name: unblock_runs
-- Queues blocked runs; their deadlines count from the times at which they are due.
-- Index: job_runs_pkey; job_runs_due and job_runs_deadline change. Lock: rows that lock_blocked has locked.
UPDATE job_runs AS o
   SET state = %(target)s,
       publish_at = given.publish_at,
       deadline_at = given.publish_at + least(given.starts_ms, given.closes_ms) * interval '1 ms',
       schedule_to_close_at = given.publish_at + given.closes_ms * interval '1 ms'
  FROM unnest(%(run_ids)s::uuid[], %(publish_at)s::timestamptz[], %(starts_ms)s::bigint[], %(closes_ms)s::bigint[])
       AS given (run_id, publish_at, starts_ms, closes_ms)
 WHERE o.run_id = given.run_id
RETURNING o.run_id, o.job_id, o.shard, o.queue, o.lane, o.cause, o.job_version, o.attempt, o.scheduled_at, o.publish_at,
          o.created_at, o.concurrency_key, o.tenant, o.priority

-- name: update_workflows
-- Updates open occurrences after a drain: one that has ended keeps the time of its end.
-- Index: workflows_pkey; workflows_by_end grows. Lock: rows that lock_workflows has locked.
UPDATE workflows AS w
   SET pending = given.pending, failed = given.failed, cancelled = given.cancelled, state = given.state,
       finished_at = CASE WHEN given.pending = 0 THEN tidewheel_now() END
  FROM unnest(%(roots)s::uuid[], %(pending)s::integer[], %(failed)s::integer[], %(cancelled)s::integer[], %(states)s::text[])
       AS given (root_run_id, pending, failed, cancelled, state)
 WHERE w.root_run_id = given.root_run_id AND w.finished_at IS NULL

-- name: read_job_keys
-- The keys of jobs.
-- Index: jobs_pkey. No lock.
SELECT job_id, key FROM jobs WHERE job_id = ANY (%(job_ids)s::uuid[])

-- name: drop_releases
-- Deletes drained releases.
-- Index: releases_pkey. Lock: rows that take_releases has locked.
DELETE FROM releases WHERE id = ANY (%(ids)s::bigint[])

-- name: postpone_releases
-- Sets the time of releases that are not drained now.
-- Index: releases_pkey; releases_due changes. Lock: rows that take_releases has locked.
UPDATE releases SET due_at = %(due_at)s WHERE id = ANY (%(ids)s::bigint[])

-- name: fail_release
-- Postpones a release that could not be drained; the last time it is quarantined, with the error.
-- Index: releases_pkey; releases_due and releases_failed change. Lock: the row.
UPDATE releases
   SET failures = failures + 1,
       error = CASE WHEN failures + 1 >= %(last)s THEN %(error)s END,
       due_at = CASE WHEN failures + 1 >= %(last)s THEN 'infinity' ELSE tidewheel_now() + %(pause)s::interval END
 WHERE id = %(id)s
RETURNING error IS NOT NULL

-- name: read_joins_of
-- The runs of an occurrence that wait for their parents.
-- Index: joins_by_root. No lock but the occurrence's.
SELECT child_run_id FROM joins WHERE root_run_id = %(root)s

-- name: drop_blocked
-- Deletes the blocked runs of an occurrence that has stopped: runs of its next generation take their place.
-- Index: job_runs_by_workflow. Lock: each run; the occurrence's lock excludes a drain.
DELETE FROM job_runs WHERE workflow_run_id = %(root)s AND state = %(blocked)s

-- name: advance_releases
-- Sets the cursor of releases with children left.
-- Index: releases_pkey. Lock: rows that take_releases has locked.
UPDATE releases AS r
   SET cursor_id = given.cursor_id
  FROM unnest(%(ids)s::bigint[], %(cursors)s::uuid[]) AS given (id, cursor_id)
 WHERE r.id = given.id

-- name: keep_root_runs
-- Keeps the runs of tenants' roots from ending until the commit.
-- Index: job_runs_pkey. Lock: each row against its deletion, in run_id order; waits for an end under way, which may be that of a
-- user's own transaction.
SELECT r.run_id
  FROM unnest(%(roots)s::uuid[], %(tenants)s::text[]) AS a (root, tenant)
  JOIN job_runs AS r ON r.run_id = a.root AND r.tenant = a.tenant AND r.workflow_run_id = r.run_id
 ORDER BY r.run_id
   FOR KEY SHARE OF r

-- name: keep_root_releases
-- Keeps the releases of roots from being drained until the commit. A later statement than keep_root_runs: a run that
-- has ended meanwhile has its release.
-- Index: releases_by_root. Lock: each row, in the order of the ids; waits for a drain under way.
SELECT r.id
  FROM unnest(%(roots)s::uuid[], %(tenants)s::text[]) AS a (root, tenant)
  JOIN releases AS r ON r.root_run_id = a.root AND r.run_id = r.root_run_id AND r.tenant = a.tenant
 ORDER BY r.id
   FOR KEY SHARE OF r

-- name: open_early
-- Inserts the occurrences of roots' runs that have begun and are not drained yet.
-- Index: job_runs_pkey, releases_by_root, workflows_pkey, job_versions_pkey. Lock: new rows, in root_run_id order; waits for a
-- drain.
-- Why a later statement than keep_root_releases: a drain may have deleted the release of a root without children. Its occurrence
-- would never end.
INSERT INTO workflows (root_run_id, tenant, root_job_id, shard, scheduled_at, graph_at, state, pending, created_at, deadline_at)
SELECT r.run_id, r.tenant, r.job_id, r.shard, r.scheduled_at, r.graph_at, 'open', 1, tidewheel_now(), {{deadline(r)}}
  FROM unnest(%(roots)s::uuid[], %(tenants)s::text[]) AS a (root, tenant)
 CROSS JOIN LATERAL (
    SELECT run_id, tenant, job_id, shard, scheduled_at, least(scheduled_at, started_at) AS graph_at, started_at
      FROM job_runs
     WHERE run_id = a.root AND workflow_run_id = run_id AND attempt > 0
     UNION ALL
    SELECT run_id, tenant, job_id, shard, scheduled_at, graph_at, started_at
      FROM releases
     WHERE root_run_id = a.root AND run_id = root_run_id AND began
 ) AS r
 WHERE r.tenant = a.tenant
 ORDER BY r.run_id
    ON CONFLICT DO NOTHING

-- name: set_workflow
-- Sets the state of an occurrence on request.
-- Index: workflows_pkey. Lock: a row that is locked already.
UPDATE workflows
   SET state = %(state)s, reason = %(reason)s, generation = %(generation)s, pending = %(pending)s, failed = %(failed)s,
       cancelled = %(cancelled)s, deadline_at = %(deadline_at)s, finished_at = NULL
 WHERE root_run_id = %(root)s

-- name: hasten_releases
-- Makes the postponed and the quarantined releases of an occurrence due.
-- Index: releases_by_root; releases_due and releases_failed change. Lock: the rows; locked ones are skipped: their drain waits for the
-- occurrence, and sees its new state.
UPDATE releases SET due_at = tidewheel_now(), failures = 0, error = NULL
 WHERE id IN (SELECT id FROM releases WHERE root_run_id = %(root)s AND due_at = 'infinity' FOR UPDATE SKIP LOCKED)

-- name: cancel_workflow_runs
-- Adds a cancel of each open run of an occurrence: from the commit on no executor claims one.
-- Index: job_runs_by_workflow. No lock: no drain writes runs of it any more.
INSERT INTO pending_cancels (run_id, tenant, reason)
SELECT o.run_id, o.tenant, %(reason)s
  FROM job_runs AS o
 WHERE o.workflow_run_id = %(root)s AND o.state <> %(cancelling)s

-- name: read_occurrence
-- An occurrence: its root, its instant, the instant of its graph, and its generation.
-- Index: workflows_pkey. No lock.
SELECT root_run_id, root_job_id, scheduled_at, graph_at, generation FROM workflows WHERE root_run_id = %(root)s

-- name: read_graph
-- The edges of an occurrence.
-- Index: job_edges_pkey. No lock: the drain that opened the occurrence held the graphs, after this instant.
WITH RECURSIVE below (job_id) AS (
    SELECT %(root_job_id)s::uuid
     UNION
    SELECT e.child_job_id
      FROM below AS b
      JOIN job_edges AS e ON e.parent_job_id = b.job_id AND e.from_at < %(at)s AND (e.until_at IS NULL OR %(at)s <= e.until_at)
)
SELECT e.parent_job_id, e.child_job_id, e.condition
  FROM below AS b
  JOIN job_edges AS e ON e.parent_job_id = b.job_id AND e.from_at < %(at)s AND (e.until_at IS NULL OR %(at)s <= e.until_at)
 ORDER BY e.parent_job_id, e.child_job_id

-- name: read_run_states
-- The states of runs that are open or have ended between two instants, with their times and attempts.
-- Index: job_runs_pkey, the index by run of the partitions of these days. No lock.
SELECT run_id, state, NULL AS reason, attempt, started_at, NULL::timestamptz AS finished_at
  FROM job_runs
 WHERE run_id = ANY (%(run_ids)s::uuid[])
 UNION ALL
SELECT run_id, state, reason, attempt, started_at, finished_at
  FROM finished_runs
 WHERE run_id = ANY (%(run_ids)s::uuid[]) AND finished_at >= %(since)s AND finished_at <= %(until)s

-- name: find_run_in_occurrence
-- A run's job, its state, and the occurrence that it belongs to; a retry belongs to that of the run that it retries, the node.
-- Index: job_runs_pkey, the partitions' index by run, workflows_pkey. No lock.
SELECT CASE WHEN r.workflow_run_id IS NULL THEN f.run_id ELSE r.run_id END AS node_run_id, r.job_id, r.state, r.generation, w.root_run_id, w.root_job_id, w.scheduled_at, w.graph_at, w.generation AS last_generation
  FROM runs AS r
  LEFT JOIN runs AS f ON f.run_id = r.root_run_id
  LEFT JOIN workflows AS w ON w.root_run_id = coalesce(r.workflow_run_id, f.workflow_run_id)
 WHERE r.run_id = %(run_id)s AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s)

-- name: read_parents
-- The parents of a job in the graph of an instant, with the conditions, by key; of all, or of one key.
-- Index: job_edges_by_child, jobs_pkey. No lock.
SELECT e.parent_job_id, j.key, e.condition
  FROM job_edges AS e
  JOIN jobs AS j ON j.job_id = e.parent_job_id
 WHERE e.child_job_id = %(job_id)s AND e.from_at < %(at)s AND (e.until_at IS NULL OR %(at)s <= e.until_at)
   AND (%(key)s::text IS NULL OR j.key = %(key)s)
 ORDER BY j.key

-- name: read_children
-- The children of a job in the graph of an instant, with the conditions, by key.
-- Index: job_edges_pkey, jobs_pkey. No lock.
SELECT e.child_job_id, j.key, e.condition
  FROM job_edges AS e
  JOIN jobs AS j ON j.job_id = e.child_job_id
 WHERE e.parent_job_id = %(job_id)s AND e.from_at < %(at)s AND (e.until_at IS NULL OR %(at)s <= e.until_at)
 ORDER BY j.key

-- name: read_batch_parents
-- The parents of a run of a batch, with their refs and the conditions, by ref; of all, or of one ref.
-- Index: run_edges_by_child, batch_runs_by_run. No lock.
SELECT e.parent_run_id, b.ref, e.condition
  FROM run_edges AS e
  JOIN batch_runs AS b ON b.run_id = e.parent_run_id
 WHERE e.child_run_id = %(run_id)s AND (%(ref)s::text IS NULL OR b.ref = %(ref)s)
 ORDER BY b.ref

-- name: read_parent_results
-- The sizes of the results of ended runs, the results if they have at most this many bytes together, and true for each whose day
-- is no longer stored.
-- Index: the partition's primary key. No lock.
SELECT given.run_id, octet_length(x.result) AS size,
       CASE WHEN sum(octet_length(x.result)) OVER () <= %(max_bytes)s THEN x.result END AS result,
       to_regclass('attempt_outputs_' || to_char(given.started_at AT TIME ZONE 'UTC', 'YYYYMMDD')) IS NULL AS expired
  FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[], %(started_at)s::timestamptz[]) AS given (run_id, attempt, started_at)
  LEFT JOIN attempt_outputs AS x
    ON x.run_id = given.run_id AND x.attempt = given.attempt AND x.started_at = given.started_at

-- name: read_root_inputs
-- The inputs of an ended run beyond its version, and its concurrency key, if that is not the version's.
-- Index: the partitions' index by run, job_versions_pkey, the partitions' primary key. No lock.
SELECT i.payload, i.payload_content_type, i.labels, i.overlap, i.traceparent,
       CASE WHEN r.concurrency_key IS DISTINCT FROM v.concurrency_key THEN r.concurrency_key END AS concurrency_key
  FROM finished_runs AS r
  JOIN job_versions AS v ON v.job_id = r.job_id AND v.version = r.job_version
  LEFT JOIN run_inputs AS i ON i.run_id = r.run_id AND i.run_id = %(run_id)s
 WHERE r.run_id = %(run_id)s

-- name: add_joins
-- Inserts the joins of the jobs that a resume runs again.
-- Index: joins_pkey. Lock: new rows.
INSERT INTO joins (child_run_id, root_run_id, tenant, parents, marked, unmet)
SELECT new.run_id, %(root)s, %(tenant)s, new.parents, 0, new.unmet
  FROM unnest(%(run_ids)s::uuid[], %(parents)s::integer[], %(unmet)s::integer[]) AS new (run_id, parents, unmet)

-- name: add_batch_workflow
-- Inserts the occurrence of a batch, which has no root; the graph of its jobs does not concern it.
-- Index: workflows_pkey. Lock: the new row.
INSERT INTO workflows (root_run_id, tenant, root_job_id, shard, scheduled_at, graph_at, state, pending, created_at)
VALUES (%(batch_id)s, %(tenant)s, '00000000-0000-0000-0000-000000000000', %(shard)s, %(now)s, 'epoch', 'open', %(pending)s, %(now)s)

-- name: add_batch
-- Inserts a batch.
-- Index: batches_pkey. Lock: the new row.
INSERT INTO batches (batch_id, tenant, open, total, callbacks) VALUES (%(batch_id)s, %(tenant)s, %(open)s, 0, %(callbacks)s)

-- name: grow_batch
-- Adds to the number of runs of a batch and of its pending ones.
-- Index: batches_pkey, workflows_pkey. Lock: both rows; lock_workflows has locked the occurrence.
WITH grown AS (
    UPDATE batches SET total = total + %(runs)s WHERE batch_id = %(batch_id)s RETURNING batch_id
)
UPDATE workflows SET pending = pending + %(runs)s WHERE root_run_id = (SELECT batch_id FROM grown)

-- name: read_batch
-- The columns of a batch that a request about it needs.
-- Index: batches_pkey, workflows_pkey. No lock: the caller has locked its occurrence.
SELECT b.open, b.total, w.finished_at
  FROM batches AS b
  JOIN workflows AS w ON w.root_run_id = b.batch_id
 WHERE b.batch_id = %(batch_id)s

-- name: find_batch_runs
-- Those of these refs that a batch has.
-- Index: batch_runs_pkey. No lock: the caller has locked the occurrence.
SELECT ref, run_id, job_id FROM batch_runs WHERE batch_id = %(batch_id)s AND ref = ANY (%(refs)s::text[])

-- name: find_pending_runs
-- Those of these runs of a batch that no drain has counted: they are open, or their releases are there.
-- Index: job_runs_pkey, releases_by_root. No lock: the caller has locked the occurrence, which a drain locks too.
SELECT run_id FROM job_runs WHERE run_id = ANY (%(run_ids)s::uuid[]) AND workflow_run_id = %(batch_id)s
 UNION ALL
SELECT run_id FROM releases WHERE root_run_id = %(batch_id)s AND run_id = ANY (%(run_ids)s::uuid[])

-- name: add_run_edges
-- Inserts edges between runs of a batch.
-- Index: run_edges_pkey. Lock: new rows.
INSERT INTO run_edges (batch_id, tenant, parent_run_id, child_run_id, condition)
SELECT %(batch_id)s, %(tenant)s, new.*
  FROM unnest(%(parents)s::uuid[], %(children)s::uuid[], %(conditions)s::text[]) AS new (parent_run_id, child_run_id, condition)

-- name: find_batch_children
-- The next children of these runs of batches, in the order of the parents.
-- Index: run_edges_pkey. No lock: the caller has locked the batches' occurrences.
SELECT p.place::integer, e.child_run_id, e.condition, 0
  FROM unnest(%(roots)s::uuid[], %(run_ids)s::uuid[], %(cursors)s::uuid[])
       WITH ORDINALITY AS p (batch_id, run_id, cursor_id, place)
 CROSS JOIN LATERAL (
    SELECT d.child_run_id, d.condition
      FROM run_edges AS d
     WHERE d.batch_id = p.batch_id
       AND d.parent_run_id = p.run_id
       AND d.child_run_id > coalesce(p.cursor_id, '00000000-0000-0000-0000-000000000000')
     ORDER BY d.child_run_id
     LIMIT %(limit)s
 ) AS e
 ORDER BY p.place, e.child_run_id

-- name: find_batch_delays
-- The delays after their parents of those of these runs of batches that have one.
-- Index: batch_runs_by_run. No lock: the caller has locked the batches' occurrences.
SELECT run_id, delay_ms FROM batch_runs WHERE run_id = ANY (%(run_ids)s::uuid[]) AND delay_ms IS NOT NULL

-- name: read_batch_members
-- The runs of a batch, each the latest of its ref.
-- Index: batch_runs_pkey. No lock: the caller has locked the occurrence.
SELECT run_id, ref, job_id FROM batch_runs WHERE batch_id = %(batch_id)s ORDER BY ref

-- name: read_ended_runs
-- The runs of a batch to repeat, which have ended between two instants, with their inputs.
-- Index: the partitions' indexes by run, of these days; order_keys_by_blocker, order_failures_by_run, order_keys_pkey. No lock: an ended run never changes.
SELECT r.run_id, r.tenant, r.job_id, r.job_version, r.state, r.attempt, r.scheduled_at, r.root_run_id, r.concurrency_key,
       i.payload, i.payload_content_type, i.labels, i.traceparent, {{blocks_key(r)}} AS blocks_key
  FROM finished_runs AS r
  LEFT JOIN order_keys AS k ON k.blocked_by = r.run_id AND k.blocked_by = ANY (%(run_ids)s::uuid[])
  LEFT JOIN run_inputs AS i
         ON i.run_id = r.run_id AND i.run_id = ANY (%(run_ids)s::uuid[]) AND i.created_at >= %(since)s AND i.created_at <= %(until)s
 WHERE r.run_id = ANY (%(run_ids)s::uuid[]) AND r.finished_at >= %(since)s AND r.finished_at <= %(until)s

-- name: read_batch_edges
-- The edges between the runs of a batch.
-- Index: run_edges_pkey. No lock: the caller has locked the occurrence.
SELECT parent_run_id, child_run_id, condition FROM run_edges WHERE batch_id = %(batch_id)s

-- name: repeat_batch_runs
-- Replaces runs of a batch that has ended by those that repeat them, in its refs and its edges; no run of the new ones has failed.
-- Index: batches_pkey, batch_runs_by_run, run_edges_pkey. Lock: the rows; lock_workflows has locked the occurrence.
WITH repeated AS (
    SELECT * FROM unnest(%(old)s::uuid[], %(new)s::uuid[]) AS given (old_run_id, new_run_id)
), reopened AS (
    UPDATE batches SET first_failed_run_id = NULL WHERE batch_id = %(batch_id)s
), renamed AS (
    UPDATE batch_runs AS b
       SET run_id = r.new_run_id
      FROM repeated AS r
     WHERE b.run_id = r.old_run_id
)
UPDATE run_edges AS e
   SET parent_run_id = coalesce(p.new_run_id, x.parent_run_id), child_run_id = coalesce(c.new_run_id, x.child_run_id)
  FROM run_edges AS x
  LEFT JOIN repeated AS p ON p.old_run_id = x.parent_run_id
  LEFT JOIN repeated AS c ON c.old_run_id = x.child_run_id
 WHERE x.batch_id = %(batch_id)s
   AND e.batch_id = x.batch_id AND e.parent_run_id = x.parent_run_id AND e.child_run_id = x.child_run_id
   AND (p.new_run_id IS NOT NULL OR c.new_run_id IS NOT NULL)

-- name: count_batch_ends
-- Adds ended runs to the counts of batches; returns what their triggers need.
-- Index: batches_pkey. Lock: the rows; lock_workflows has locked the occurrences.
UPDATE batches AS b
   SET succeeded = b.succeeded + given.succeeded, first_failed_run_id = coalesce(b.first_failed_run_id, given.failed_run_id)
  FROM unnest(%(batch_ids)s::uuid[], %(succeeded)s::integer[], %(failed_run_ids)s::uuid[])
       AS given (batch_id, succeeded, failed_run_id)
 WHERE b.batch_id = given.batch_id
RETURNING b.batch_id, b.total, b.succeeded, b.first_failed_run_id, b.callbacks

-- name: close_batch
-- Closes a batch, which then counts as no pending run any more.
-- Index: batches_pkey, workflows_pkey. Lock: both rows; lock_workflows has locked the occurrence.
WITH closed AS (
    UPDATE batches SET open = false WHERE batch_id = %(batch_id)s AND open RETURNING batch_id
)
UPDATE workflows SET pending = pending - 1 WHERE root_run_id = (SELECT batch_id FROM closed)

-- name: find_limited_tenants
-- Returns the tenants that limit their runs in flight.
-- Index: tenants_in_flight. No lock.
SELECT tenant FROM tenants WHERE in_flight IS NOT NULL

-- name: put_tenant_key
-- Writes the limit of a tenant's runs in flight to the row that counts them.
-- Index: run_keys_pkey. Lock: the row; waits for a claim or an end under way.
INSERT INTO run_keys (key_id, tenant, key, at_once, burst)
VALUES (%(key_id)s, %(tenant)s, '', %(at_once)s, 1)
    ON CONFLICT (key_id) DO UPDATE SET at_once = excluded.at_once

-- name: count_started_runs
-- Marks runs of a tenant that have started as runs that hold a place of it, among its next open runs. Returns how many it
-- marked and read, and the last one.
-- Index: job_runs_by_tenant, job_runs_pkey. Lock: each run in run_id order, locked rows are skipped: their attempts end, or a
-- later pass finds them. Changes no indexed column (HOT).
WITH read AS MATERIALIZED (
    SELECT r.run_id, r.state = ANY (%(states)s::text[]) AND r.gates & %(holds)s = 0 AS lacks_place
      FROM job_runs AS r
     WHERE r.tenant = %(tenant)s AND r.shard >= 0 AND r.run_id > %(after)s
     ORDER BY r.run_id
     LIMIT %(limit)s
), lacking AS MATERIALIZED (
    SELECT r.run_id
      FROM job_runs AS r
     WHERE r.run_id = ANY (ARRAY(SELECT read.run_id FROM read WHERE read.lacks_place))
       AND r.state = ANY (%(states)s::text[])
       AND r.gates & %(holds)s = 0
     ORDER BY r.run_id
       FOR UPDATE SKIP LOCKED
), marked AS (
    UPDATE job_runs AS o SET gates = o.gates | %(holds)s FROM lacking WHERE o.run_id = lacking.run_id RETURNING o.run_id
)
SELECT (SELECT count(*) FROM marked), (SELECT count(*) FROM read),
       (SELECT read.run_id FROM read ORDER BY read.run_id DESC LIMIT 1)

-- name: add_counted_runs
-- Adds runs to those that hold a place of their tenant.
-- Index: run_keys_pkey. Lock: the row, after the runs.
UPDATE run_keys SET running = running + %(runs)s WHERE key_id = %(key_id)s

-- name: find_rates
-- Returns the rates of tenants.
-- Index: tenants_pkey. No lock.
SELECT tenant, triggers_per_second FROM tenants WHERE tenant = ANY (%(tenants)s::text[])

-- name: add_tenant_rates
-- Inserts the rows of tenants that have none.
-- Index: tenant_rates_pkey. Lock: each new row, in the order of the names.
INSERT INTO tenant_rates (tenant, per_second)
SELECT given.tenant, given.rate
  FROM unnest(%(tenants)s::text[], %(rates)s::double precision[]) AS given (tenant, rate)
 WHERE NOT EXISTS (SELECT FROM tenant_rates AS t WHERE t.tenant = given.tenant)
 ORDER BY given.tenant
    ON CONFLICT (tenant) DO NOTHING

-- name: lock_tenant_rates
-- Locks the places of tenants, and returns them with the time.
-- Index: tenant_rates_pkey. Lock: each row in the order of the names.
SELECT t.tenant, t.per_second, t.first_bucket, t.used, t.held_from, tidewheel_now() AS now
  FROM tenant_rates AS t
 WHERE t.tenant = ANY (%(tenants)s::text[])
 ORDER BY t.tenant
   FOR UPDATE

-- name: write_tenant_rate
-- Writes the places of a tenant.
-- Index: tenant_rates_pkey. Lock: a row that is locked already. Changes no indexed column (HOT).
UPDATE tenant_rates
   SET per_second = %(per_second)s, first_bucket = %(first_bucket)s, used = %(used)s::integer[], held_from = %(held_from)s
 WHERE tenant = %(tenant)s

-- name: hold_runs
-- Buffers runs that were just written and found no place.
-- Index: job_runs_pkey; job_runs_due changes, job_runs_waiting grows. Lock: rows of this transaction.
UPDATE job_runs AS o
   SET state = %(target)s, publish_at = 'infinity', waits_for = given.waits_for, waits_from = o.publish_at
  FROM unnest(%(run_ids)s::uuid[], %(waits_for)s::bigint[]) AS given (run_id, waits_for)
 WHERE o.run_id = given.run_id AND o.state = ANY (%(sources)s)

-- name: announce_held
-- Lets the scheduler know that this transaction holds runs of tenants, until it ends.
-- Index: tenant_locks_pkey. Lock: a row of each tenant, shared.
SELECT tenant FROM tenant_locks WHERE tenant = ANY (%(tenants)s::text[]) AND name = 'rate' ORDER BY tenant FOR SHARE

-- name: add_rate_locks
-- Inserts the rows of tenants that have none: until the commit they are locked.
-- Index: tenant_locks_pkey. Lock: the new rows; waits for another transaction that inserts one.
INSERT INTO tenant_locks (tenant, name)
SELECT t.tenant, 'rate' FROM unnest(%(tenants)s::text[]) AS t (tenant) ORDER BY t.tenant
    ON CONFLICT DO NOTHING

-- name: announce_old_held
-- Does so for schedulers of 0.1.
-- No index. Lock: a shared advisory lock for each tenant, unless a stranger holds it.
SELECT pg_advisory_xact_lock_shared(k.key)
  FROM (SELECT given.key FROM unnest(%(key_ids)s::bigint[]) AS given (key)) AS k
 WHERE {{tidewheel.no_stranger(k)}}

-- name: sees_all_held
-- Returns true if no open transaction holds runs of a tenant, and none begins to until this one ends.
-- Index: tenant_locks_pkey. Lock: the row of the tenant, and the advisory lock of 0.1, without a wait; the row of tenant_rates is locked
-- already.
SELECT pg_try_advisory_xact_lock(t.key) OR NOT {{tidewheel.no_stranger(t)}}
  FROM (SELECT %(key_id)s::bigint AS key
          FROM tenant_locks AS l
         WHERE l.tenant = %(tenant)s AND l.name = 'rate'
           FOR UPDATE SKIP LOCKED) AS t

-- name: find_held_tenants
-- Returns the tenants that have taken places.
-- Index: none, a row for each. No lock.
SELECT tenant FROM tenant_rates

-- name: read_tenant_rate
-- Returns the rate of a tenant.
-- Index: tenants_pkey. No lock.
SELECT triggers_per_second FROM tenants WHERE tenant = %(tenant)s

-- name: release_held_runs
-- Queues the oldest held runs of a tenant, each at one of these times or at its own, which is later.
-- Index: job_runs_waiting, job_runs_pkey; job_runs_due changes.
-- Lock: each run, locked rows are skipped.
WITH chosen AS MATERIALIZED (
    SELECT r.run_id, r.waits_from
      FROM job_runs AS r
     WHERE r.waits_for = %(key_id)s AND r.waits_from <= %(until)s
     ORDER BY r.waits_from, r.run_id
     LIMIT %(count)s
       FOR UPDATE SKIP LOCKED
), next AS MATERIALIZED (
    SELECT c.run_id, greatest(c.waits_from, (%(times)s::timestamptz[])[row_number() OVER (ORDER BY c.waits_from, c.run_id)]) AS at
      FROM chosen AS c
)
UPDATE job_runs AS o
   SET state = %(target)s, publish_at = next.at, waits_for = NULL, waits_from = NULL
  FROM next
 WHERE o.run_id = next.run_id
RETURNING o.run_id, o.job_id, o.shard, o.queue, o.lane, o.cause, o.job_version, o.attempt, o.scheduled_at, o.publish_at,
          o.created_at, o.concurrency_key, o.tenant, o.priority

-- name: first_held
-- Returns the time of the oldest held run of a tenant.
-- Index: job_runs_waiting. No lock.
SELECT waits_from FROM job_runs WHERE waits_for = %(key_id)s ORDER BY waits_from, run_id LIMIT 1

-- name: drop_tenant_rate
-- Deletes the places of a tenant without a rate.
-- Index: tenant_rates_pkey. Lock: a row that is locked already.
DELETE FROM tenant_rates WHERE tenant = %(tenant)s

-- name: add_order_keys
-- Locks ordering keys; inserts those that there are not yet. Returns all.
-- Index: order_keys_pkey. Lock: each key in key_id order, waits for another transaction that writes or ends a run of it.
INSERT INTO order_keys AS k (key_id, tenant, key)
SELECT new.key_id, new.tenant, new.key
  FROM unnest(%(key_ids)s::bigint[], %(tenants)s::text[], %(keys)s::text[]) AS new (key_id, tenant, key)
 ORDER BY new.key_id
    ON CONFLICT (key_id) DO UPDATE SET key = k.key
RETURNING k.key_id, k.next_no, k.head, k.blocked_by, k.wake_at

-- name: extend_orders
-- Gives new runs the next numbers of their keys, and makes the first of them the head of a free key. Returns both.
-- Index: order_keys_pkey. Lock: each key in key_id order, waits for another transaction that writes or ends a run of it.
INSERT INTO order_keys AS k (key_id, tenant, key, next_no, head)
SELECT new.key_id, new.tenant, new.key, new.runs, new.run_id
  FROM unnest(%(key_ids)s::bigint[], %(tenants)s::text[], %(keys)s::text[], %(counts)s::bigint[], %(run_ids)s::uuid[])
       AS new (key_id, tenant, key, runs, run_id)
 ORDER BY new.key_id
    ON CONFLICT (key_id) DO UPDATE
   SET next_no = k.next_no + excluded.next_no,
       head = CASE WHEN k.head IS NULL AND k.blocked_by IS NULL AND k.wake_at IS NULL THEN excluded.head ELSE k.head END
RETURNING k.key_id, k.next_no, k.head

-- name: lock_order_keys
-- Locks ordering keys and returns them, but those whose last run ends: these it deletes. A last run has the number before the next.
-- Index: order_keys_pkey. Lock: each key in key_id order, after all other rows of the transaction.
WITH locked AS MATERIALIZED (
    SELECT k.key_id, k.next_no, k.head, k.blocked_by, k.wake_at, k.ctid AS at
      FROM order_keys AS k
     WHERE k.key_id = ANY (%(key_ids)s::bigint[])
       AND {{is_patient(session)}}
     ORDER BY k.key_id
       FOR UPDATE
), gone AS (
    DELETE FROM order_keys AS k
     USING (SELECT l.at
              FROM locked AS l
              JOIN unnest(%(run_ids)s::uuid[], %(order_nos)s::bigint[]) AS ended (run_id, order_no)
                ON ended.run_id = l.head AND ended.order_no + 1 = l.next_no
             WHERE l.blocked_by IS NULL) AS last
     WHERE k.ctid = last.at
    RETURNING k.key_id
)
SELECT l.key_id, l.next_no, l.head, l.blocked_by, l.wake_at
  FROM locked AS l
 WHERE l.key_id NOT IN (SELECT g.key_id FROM gone AS g)

-- name: promote_in_order
-- Queues the next run of each free key, unless another transaction holds it, or one before it has failed: no later one passes.
-- Makes it the head. Returns the definition of each version with its first run.
-- Index: job_runs_in_order, order_failures_pkey, order_keys_pkey, job_versions_pkey; job_runs_due and job_runs_waiting change.
-- Lock: each run, locked rows are skipped: a transaction with a locked key waits for no open run.
WITH next AS MATERIALIZED (
    SELECT first.at
      FROM unnest(%(key_ids)s::bigint[]) AS k (key_id)
     CROSS JOIN LATERAL (
        SELECT r.ctid AS at, r.order_no
          FROM job_runs AS r
         WHERE r.key_id = k.key_id AND r.order_no IS NOT NULL AND r.state = %(buffered)s
         ORDER BY r.order_no
         LIMIT 1
     ) AS first
     WHERE NOT EXISTS (SELECT FROM order_failures AS f WHERE f.key_id = k.key_id AND f.order_no < first.order_no OFFSET 0)
), locked AS MATERIALIZED (
    SELECT found.at
      FROM next AS n
     CROSS JOIN LATERAL (
        SELECT p.ctid AS at FROM job_runs AS p WHERE p.ctid = n.at AND p.state = %(buffered)s FOR UPDATE SKIP LOCKED
     ) AS found
), promoted AS (
    UPDATE job_runs AS o
       SET state = %(target)s, publish_at = greatest(o.scheduled_at, (SELECT tidewheel_now())), waits_for = NULL
      FROM locked
     WHERE o.ctid = locked.at
    RETURNING o.run_id, o.job_id, o.shard, o.queue, o.lane, o.cause, o.job_version, o.attempt, o.scheduled_at, o.publish_at,
              o.created_at, o.concurrency_key, o.tenant, o.priority, o.key_id
), headed AS (
    UPDATE order_keys AS k
       SET head = found.run_id, blocked_by = NULL, blocked_at = NULL, wake_at = NULL
      FROM (SELECT w.at, p.run_id
              FROM promoted AS p
             CROSS JOIN LATERAL (SELECT q.ctid AS at FROM order_keys AS q WHERE q.key_id = p.key_id OFFSET 0) AS w) AS found
     WHERE k.ctid = found.at
)
SELECT p.*, CASE WHEN row_number() OVER (PARTITION BY p.job_id, p.job_version) = 1
                 THEN (SELECT v.definition FROM job_versions AS v WHERE v.job_id = p.job_id AND v.version = p.job_version) END
  FROM promoted AS p

-- name: find_next_in_order
-- Returns those of these ordering keys that have a next run: the run if it has failed, null if it waits.
-- Index: job_runs_in_order, order_failures_pkey. No lock: no run begins to wait or fails while the key is locked.
SELECT k.key_id, CASE WHEN coalesce(failed.order_no < waits.order_no, true) THEN failed.run_id END AS failed
  FROM unnest(%(key_ids)s::bigint[]) AS k (key_id)
  LEFT JOIN LATERAL (
    SELECT r.order_no
      FROM job_runs AS r
     WHERE r.key_id = k.key_id AND r.order_no IS NOT NULL AND r.state = %(buffered)s
     ORDER BY r.order_no
     LIMIT 1
  ) AS waits ON true
  LEFT JOIN LATERAL (
    SELECT f.order_no, f.run_id FROM order_failures AS f WHERE f.key_id = k.key_id ORDER BY f.order_no LIMIT 1
  ) AS failed ON true
 WHERE waits.order_no IS NOT NULL OR failed.order_no IS NOT NULL

-- name: add_order_failures
-- Records runs that have failed before their turn in an order.
-- Index: order_keys_pkey; order_failures grows. Lock: the new rows; the keys are locked already.
INSERT INTO order_failures (key_id, order_no, tenant, run_id)
SELECT given.key_id, given.order_no, (SELECT k.tenant FROM order_keys AS k WHERE k.key_id = given.key_id), given.run_id
  FROM unnest(%(key_ids)s::bigint[], %(order_nos)s::bigint[], %(run_ids)s::uuid[]) AS given (key_id, order_no, run_id)

-- name: drop_order_failures
-- Deletes the records of runs that have failed before their turn, since it has come, or a retry takes their place.
-- Index: order_failures_by_run. Lock: the rows; their keys are locked already.
DELETE FROM order_failures WHERE run_id = ANY (%(run_ids)s::uuid[]) RETURNING run_id, order_no

-- name: write_order_keys
-- Changes ordering keys.
-- Index: order_keys_pkey; the partial ones change where a key is blocked or woken. Lock: rows that are locked already.
UPDATE order_keys AS k
   SET next_no = given.next_no, head = given.head, blocked_by = given.blocked_by, wake_at = given.wake_at,
       blocked_at = CASE WHEN given.blocked_by IS NOT NULL THEN coalesce(k.blocked_at, tidewheel_now()) END
  FROM unnest(%(key_ids)s::bigint[], %(next_nos)s::bigint[], %(heads)s::uuid[], %(blockers)s::uuid[], %(wake_at)s::timestamptz[])
       AS given (key_id, next_no, head, blocked_by, wake_at)
 CROSS JOIN LATERAL (SELECT q.ctid AS at FROM order_keys AS q WHERE q.key_id = given.key_id OFFSET 0) AS found
 WHERE k.ctid = found.at

-- name: drop_order_keys
-- Deletes ordering keys without open runs that are not blocked.
-- Index: order_keys_pkey. Lock: rows that are locked already.
DELETE FROM order_keys WHERE key_id = ANY (%(key_ids)s::bigint[])

-- name: read_blockers
-- Returns the columns of runs that block a key which its event needs.
-- Index: order_keys_by_blocker, the partitions' index by run, jobs_pkey. No lock: this transaction has ended the runs.
SELECT f.run_id, f.tenant, f.job_id, j.key, f.shard::integer, f.job_version, k.key
  FROM order_keys AS k
  JOIN finished_runs AS f ON f.run_id = k.blocked_by
  JOIN jobs AS j ON j.job_id = f.job_id
 WHERE k.blocked_by = ANY (%(run_ids)s::uuid[])

-- name: find_woken_orders
-- Returns ordering keys whose next run another transaction held, without those left out.
-- Index: order_keys_wake. No lock.
SELECT key_id
  FROM order_keys
 WHERE wake_at <= tidewheel_now() AND key_id <> ALL (%(left)s::bigint[])
 ORDER BY wake_at
 LIMIT %(limit)s

-- part: is_reserved(d)
-- True while no tenant may take the name of a deletion: its time is not over, or the archive may have rows of the tenant.
-- No index: whether archived_days has any row. No lock.
(d.free_at IS NULL OR d.free_at > (SELECT tidewheel_now()) OR (NOT d.left_archive AND EXISTS (SELECT FROM archived_days)))

-- name: find_deletions
-- Those of the given tenants that are being deleted, or whose names are reserved, each with the end of the reservation if it is
-- known, and true if the archive alone reserves it.
-- Index: tenant_deletions_pkey. No lock.
SELECT d.tenant, d.free_at, coalesce(d.free_at <= tidewheel_now(), false)
  FROM tenant_deletions AS d
 WHERE d.tenant = ANY (%(tenants)s) AND {{is_reserved(d)}}

-- name: share_kept_since
-- Keeps retention from dropping further days until the transaction ends.
-- No index. Lock: kept_since_lock, and the advisory lock of 0.1, both shared; waits for a pass of retention that marks days, some
-- milliseconds. The DELETE reads and writes no row: it locks its table.
WITH locked AS (DELETE FROM kept_since_lock WHERE false)
SELECT pg_advisory_xact_lock_shared(k.key)
  FROM (SELECT hashtext('tidewheel.kept_since')::bigint AS key) AS k
 WHERE {{tidewheel.no_stranger(k)}}

-- name: read_kept_since
-- Returns the begin of the day from which a tenant's finished runs are all stored; null if none was removed.
-- Index: tenant_periods_pkey; run_days has a row for each day. No lock.
SELECT greatest((SELECT max(d.day) + 1 FROM run_days AS d WHERE d.dropped_at IS NOT NULL),
                (SELECT max(p.kept_since) FROM tenant_periods AS p WHERE p.tenant = %(tenant)s))::timestamp AT TIME ZONE 'UTC'

-- name: find_read_tenants
-- Those of the given tenants that exist, or are being deleted.
-- Index: tenants_pkey, tenant_deletions_pkey. No lock.
SELECT tenant FROM tenants WHERE tenant = ANY (%(tenants)s)
 UNION ALL
SELECT tenant FROM tenant_deletions WHERE tenant = ANY (%(tenants)s) AND finished_at IS NULL

-- name: take_tenant
-- Deletes the row of a tenant that is to be deleted, at once or if its time has come; returns its creation.
-- Index: tenants_pkey. Lock: the row; waits for a change of its limits.
DELETE FROM tenants WHERE tenant = %(tenant)s AND (%(at_once)s OR delete_at <= tidewheel_now()) RETURNING created_at

-- name: add_deletion
-- Records the deletion of a tenant: from its commit on no request finds the tenant.
-- Index: tenant_deletions_pkey. Lock: the new row.
INSERT INTO tenant_deletions (tenant, created_at) VALUES (%(tenant)s, %(created_at)s)

-- name: revoke_keys_of
-- Revokes the API keys of a tenant.
-- Index: api_keys_by_tenant. Lock: the rows.
UPDATE api_keys SET revoked_at = tidewheel_now() WHERE tenant = %(tenant)s AND revoked_at IS NULL

-- name: cancel_tenant
-- Inserts a cancellation of all runs of a tenant, also of those to come: from its commit on no claim that begins takes one.
-- Index: cancellations_pkey. Lock: the new row, after claims_lock.
INSERT INTO cancellations (tenant, created_before, include_started, reason, created_by)
VALUES (%(tenant)s, '9999-12-31 00:00:00+00', true, %(reason)s, %(reason)s)
