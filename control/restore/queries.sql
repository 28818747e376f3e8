-- name: lock_restore
-- Keeps a second restore out.
-- Lock: restore_lock, not waited for.
LOCK TABLE restore_lock IN SHARE ROW EXCLUSIVE MODE NOWAIT

-- name: read_restore
-- Returns the state of the restore that is under way; no row if none is.
-- Index: settings_pkey. No lock.
SELECT value FROM settings WHERE name = 'restore'

-- name: read_backup
-- Returns the last sign of life in the database, its clock, and the id of the last outbox row that it may have.
-- Index: members_pkey and further small tables. No lock.
SELECT greatest((SELECT max(m.last_heartbeat_at) FROM members AS m),
                (SELECT max(e.last_heartbeat_at) FROM executors AS e),
                (SELECT max(p.last_heartbeat_at) FROM processes AS p)) AS backup_at,
       tidewheel_now() AS now,
       (SELECT last_value FROM outbox_id_seq) AS last_outbox_id

-- name: raise_epoch
-- Raises the epoch. From the commit on a process of the old one finds no session.
-- Index: settings_pkey. Lock: the row.
INSERT INTO settings AS s (name, value) VALUES ('epoch', '1')
ON CONFLICT (name) DO UPDATE SET value = to_jsonb((s.value #>> '{}')::integer + 1)

-- name: store_restore
-- Stores the state of the restore.
-- Index: settings_pkey. Lock: the row.
INSERT INTO settings (name, value) VALUES ('restore', %(state)s)
ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: end_restore
-- Ends the restore: services may start.
-- Index: settings_pkey. Lock: the row.
DELETE FROM settings WHERE name = 'restore'

-- name: owns_database
-- Returns true if this role may set parameters of the database.
-- No index. No lock.
SELECT pg_has_role(d.datdba, 'USAGE') FROM pg_database AS d WHERE d.datname = current_database()

-- name: refuse_writes
-- Makes later sessions of this database read-only, but for those that choose otherwise at their start.
-- No index. Lock: the row of the database's parameters.
DO $do$
BEGIN
    EXECUTE 'ALTER DATABASE ' || quote_ident(current_database()) || ' SET default_transaction_read_only = on';
END
$do$

-- name: accept_writes
-- Lets later sessions write again.
-- No index. Lock: the row of the database's parameters.
DO $do$
BEGIN
    EXECUTE 'ALTER DATABASE ' || quote_ident(current_database()) || ' RESET default_transaction_read_only';
END
$do$

-- name: unbound
-- Lets transactions of this session last as long as they need, also the one that it is in.
-- No index. No lock.
-- Why: a session lives for up to 30 s after its end was requested, and a job may have 100,000 runs in one transaction.
SELECT set_config(p.name, '0', false) FROM pg_settings AS p WHERE p.name = 'transaction_timeout'

-- name: end_sessions
-- Ends all other sessions of this database, and waits for the end of each; returns their processes and names, with false for
-- those that have not ended by it.
-- No index. No lock.
-- Why: a parameter of the database applies to new sessions. A session of a superuser ends by a superuser alone.
SELECT a.pid, coalesce(nullif(a.application_name, ''), a.usename), pg_terminate_backend(a.pid, %(wait_ms)s)
  FROM pg_stat_activity AS a
  JOIN pg_roles AS r ON r.oid = a.usesysid
 WHERE a.datname = current_database() AND a.pid <> ALL (%(own)s::integer[])
   AND (NOT r.rolsuper OR (SELECT me.rolsuper FROM pg_roles AS me WHERE me.rolname = current_user))

-- name: find_sessions
-- Returns those of these processes that still serve this database.
-- No index. No lock.
-- Why: a session that ends by itself before it is ended counts as not ended.
SELECT pid FROM pg_stat_activity WHERE pid = ANY (%(processes)s::integer[]) AND datname = current_database()

-- name: read_stored_offsets
-- Returns the stored offsets of intake.
-- Index: intake_offsets_pkey. No lock.
SELECT topic, partition, next_offset FROM intake_offsets

-- name: lock_timers
-- Locks the timers of these jobs, with the columns of their versions that firing needs.
-- Index: timers_pkey, job_versions_pkey. Lock: the timers.
SELECT t.job_id, t.tenant, t.shard, t.scheduled_at, t.version, v.schedule_json, v.handler, v.queue, v.lane, v.overlap,
       v.definition, v.has_deadlines, v.concurrency_key, v.priority, v.ordering_key, v.passes, v.policy_json,
       nullif(t.due_at, 'infinity'), t.catch_up_end, t.hold_reason, t.overridden, t.repeats_until
  FROM timers AS t
  JOIN job_versions AS v ON v.job_id = t.job_id AND v.version = t.version
 WHERE t.job_id = ANY (%(job_ids)s::uuid[])
 ORDER BY t.job_id
   FOR UPDATE OF t

-- name: read_versions
-- Returns the columns that new runs need of their versions.
-- Index: job_versions_pkey, jobs_pkey. No lock.
SELECT v.job_id, v.version, v.tenant, j.shard, v.queue, v.lane, v.handler, v.overlap, v.definition, v.has_deadlines,
       v.concurrency_key, v.priority
  FROM unnest(%(job_ids)s::uuid[], %(versions)s::integer[]) AS given (job_id, version)
  JOIN job_versions AS v ON v.job_id = given.job_id AND v.version = given.version
  JOIN jobs AS j ON j.job_id = v.job_id

-- name: find_runs
-- Returns those of these runs that exist, each with true while it is open.
-- Index: job_runs_pkey, the partitions' index by run. No lock.
SELECT run_id, finished_at IS NULL FROM runs WHERE run_id = ANY (%(run_ids)s::uuid[])

-- name: set_ending
-- Gives open runs the attempt in which they have ended before, so that the state machine allows this end.
-- Index: job_runs_pkey. Lock: the rows.
UPDATE job_runs AS r
   SET state = given.state, attempt = given.attempt, executor_id = given.executor_id, started_at = given.started_at,
       publish_at = coalesce(given.publish_at, r.scheduled_at), claimed_from = NULL
  FROM unnest(%(run_ids)s::uuid[], %(states)s::text[], %(attempts)s::integer[], %(executors)s::uuid[],
              %(started)s::timestamptz[], %(published)s::timestamptz[])
       AS given (run_id, state, attempt, executor_id, started_at, publish_at)
 WHERE r.run_id = given.run_id

-- name: set_ended
-- Gives ended runs that have other times those of their completions.
-- Index: the partitions' index by run. Lock: the rows, which move to the partition of their day.
UPDATE finished_runs AS f
   SET finished_at = given.finished_at, created_at = least(f.created_at, given.finished_at)
  FROM unnest(%(run_ids)s::uuid[], %(finished)s::timestamptz[]) AS given (run_id, finished_at)
 WHERE f.run_id = given.run_id AND f.finished_at >= %(since)s AND f.finished_at <> given.finished_at

-- name: set_failed
-- The same for their copies in the list of failures.
-- Index: failed_runs_pkey. Lock: the rows.
UPDATE failed_runs AS f
   SET finished_at = given.finished_at
  FROM unnest(%(run_ids)s::uuid[], %(finished)s::timestamptz[]) AS given (run_id, finished_at)
 WHERE f.run_id = given.run_id

-- name: add_unknown_attempts
-- Records the attempts of runs up to a number that have no record: what became of them is not known.
-- Index: attempts' primary key. Lock: waits for an uncommitted row with the same key.
INSERT INTO attempts (run_id, attempt, tenant, started_at, finished_at, outcome, error_type, error_message)
SELECT given.run_id, number, given.tenant, given.at, given.at, 'lost', 'not_restored',
       'its record was lost with the database; it may have run'
  FROM unnest(%(run_ids)s::uuid[], %(tenants)s::text[], %(attempts)s::integer[], %(at)s::timestamptz[])
       AS given (run_id, tenant, attempt, at)
 CROSS JOIN LATERAL generate_series(1, given.attempt) AS number
 WHERE NOT EXISTS (SELECT FROM ended_attempts AS a WHERE a.run_id = given.run_id AND a.attempt = number)

-- name: raise_attempts
-- Raises the attempt of open runs past that of their last message, so that no claim issues one again; returns these runs.
-- Index: job_runs_pkey. Lock: the rows.
-- Why <=: a run that had an executor in the backup may have lost that attempt afterwards.
UPDATE job_runs AS r
   SET attempt = given.attempt + %(unpublished)s::integer, executor_id = NULL, started_at = NULL, claimed_from = NULL,
       state = CASE WHEN r.state = %(running)s THEN %(queued)s ELSE r.state END,
       publish_at = CASE WHEN r.state = %(running)s THEN tidewheel_now() ELSE r.publish_at END
  FROM unnest(%(run_ids)s::uuid[], %(attempts)s::integer[]) AS given (run_id, attempt)
 WHERE r.run_id = given.run_id AND NOT r.state = ANY (%(kept)s::text[])
   AND (r.attempt < given.attempt OR r.attempt = given.attempt AND r.state = %(running)s)
RETURNING r.run_id, r.tenant, r.attempt

-- name: find_running
-- Returns running runs, a page by id, with their attempts.
-- Index: job_runs_pkey. No lock.
SELECT r.run_id, r.attempt
  FROM job_runs AS r
 WHERE r.run_id > %(after)s AND r.state = %(running)s
 ORDER BY r.run_id
 LIMIT %(limit)s

-- name: find_requested
-- Returns those of these runs that are open and that no executor owns, with their definitions.
-- Index: job_runs_pkey, job_versions_pkey. No lock.
SELECT r.run_id, r.attempt, r.scheduled_at, v.definition
  FROM job_runs AS r
  JOIN job_versions AS v ON v.job_id = r.job_id AND v.version = r.job_version
 WHERE r.run_id = ANY (%(run_ids)s::uuid[]) AND NOT r.state = ANY (%(owned)s::text[])
 ORDER BY r.run_id

-- name: find_unclaimed
-- Returns open runs that no executor owns and that were due before an instant, with their definitions.
-- Index: job_runs_pkey, job_versions_pkey. No lock.
SELECT r.run_id, r.attempt, r.scheduled_at, v.definition
  FROM job_runs AS r
  JOIN job_versions AS v ON v.job_id = r.job_id AND v.version = r.job_version
 WHERE r.run_id > %(after)s AND NOT r.state = ANY (%(owned)s::text[])
   AND (r.publish_at <= %(before)s OR (r.publish_at = 'infinity' AND r.scheduled_at <= %(before)s))
 ORDER BY r.run_id
 LIMIT %(limit)s

-- name: read_written_messages
-- Returns the messages of some topics, a page by id.
-- No index: a scan of the outbox for each page. No lock.
SELECT o.id, o.topic, o.value
  FROM outbox AS o
 WHERE o.id > %(after)s AND (o.topic = ANY (%(topics)s::text[]) OR o.topic LIKE ANY (%(others)s::text[]))
 ORDER BY o.id
 LIMIT %(limit)s

-- name: read_needless_requests
-- Returns the run messages that the restore has written and no claim needs, a page by id: of runs that are over, or whose
-- attempt was raised.
-- Index: job_runs_pkey; a scan of the outbox for each page. No lock.
SELECT o.id
  FROM outbox AS o
 WHERE o.id > %(after)s AND starts_with(o.topic, %(runs)s)
   AND NOT EXISTS (SELECT FROM job_runs AS r WHERE r.run_id = convert_from(o.key, 'UTF8')::uuid AND r.attempt = 0)
 ORDER BY o.id
 LIMIT %(limit)s

-- name: delete_messages
-- Deletes messages of the outbox.
-- No index: a scan of the outbox. Lock: the rows.
DELETE FROM outbox AS o WHERE o.id = ANY (%(ids)s::bigint[])
