-- name: enable_standby
-- Begins to record changed rows; a repeat begins again, and makes the records of earlier batches void.
-- No index: one row. Lock: the row.
INSERT INTO standby AS s (enabled_at) VALUES (tidewheel_now())
ON CONFLICT (one) DO UPDATE
   SET enabled_at = tidewheel_now(), listed = false, first_batch = s.batch + 1, mark_due = false, complete_at = NULL

-- name: forget_refused_records
-- Deletes the records that Kafka has refused: each row is listed again.
-- No index: quarantine, which is short. Lock: the rows.
DELETE FROM quarantine WHERE kind = 'outbox' AND topic = ANY (%(topics)s::text[])

-- name: finish_listing
-- Notes that every row that existed before is in standby_changes.
-- No index: one row. Lock: the row.
UPDATE standby SET listed = true

-- name: disable_standby
-- Stops recording; false if it was off.
-- No index: one row. Lock: the row.
UPDATE standby SET enabled_at = NULL, listed = false, mark_due = false, complete_at = NULL WHERE enabled_at IS NOT NULL

-- name: forget_changes
-- Deletes every noted change.
-- No index: all rows. Lock: the table, which nothing reads while recording is off.
TRUNCATE standby_changes

-- name: read_standby
-- Returns the state of recording and of the raise; no row if there was neither.
-- No index: one row. No lock.
SELECT s.site, s.enabled_at, s.listed, s.batch, s.complete_at, tidewheel_now() - s.complete_at AS age,
       (SELECT count(*) FROM standby_changes) AS changes, s.raised_site, s.raised_batch, s.raised_as_of, s.raised_at
  FROM standby AS s

-- name: lock_raise
-- Lets one raise at a time write, until its transaction ends.
-- Lock: standby_records, which a raise alone writes.
LOCK TABLE standby_records IN SHARE ROW EXCLUSIVE MODE

-- name: has_jobs
-- Returns true if the installation has a job.
-- Index: none; one row of jobs. No lock.
SELECT EXISTS (SELECT FROM jobs)

-- name: forget_records
-- Deletes the records of a raise.
-- No index: all rows. Lock: both tables, which only a raise reads.
TRUNCATE standby_records, standby_rows

-- name: read_shards
-- Returns the number of shards.
-- Index: settings_pkey. No lock.
SELECT (value #>> '{}')::integer FROM settings WHERE name = 'shards'

-- name: count_left_out
-- Returns the number of records behind a batch of a site, and the time since the first of them was copied.
-- No index: all records. No lock.
SELECT count(*), tidewheel_now() - min(copied_at) FROM standby_records WHERE site = %(site)s AND batch > %(batch)s

-- name: take_latest
-- Copies the last records of all rows up to a batch of a site, without those that are gone.
-- No index: sorts all records. Lock: the new rows.
INSERT INTO standby_rows (kind, row)
SELECT l.kind, l.row
  FROM (SELECT DISTINCT ON (r.kind, r.key) r.kind, r.row
          FROM standby_records AS r
         WHERE r.site = %(site)s AND r.batch BETWEEN %(first_batch)s AND %(batch)s
         ORDER BY r.kind, r.key, r.batch DESC) AS l
 WHERE l.row IS NOT NULL

-- name: find_row_shapes
-- Returns the sets of columns that the rows of a table have, and their numbers.
-- No index: all rows of the table. No lock.
SELECT s.columns, count(*)
  FROM (SELECT ARRAY(SELECT k FROM jsonb_object_keys(r.row - 'run_inputs') AS k ORDER BY k) AS columns
          FROM standby_rows AS r
         WHERE r.kind = %(kind)s) AS s
 GROUP BY s.columns

-- name: find_columns
-- Returns the columns of a table that take a value, and whether each is an identity.
-- Index: pg_attribute_relid_attnum_index. No lock.
SELECT a.attname::text, a.attidentity <> ''
  FROM pg_attribute AS a
 WHERE a.attrelid = to_regclass(%(kind)s) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''

-- name: drop_first_tenants
-- Deletes the tenants that a new database has.
-- No index: all rows. Lock: the rows.
DELETE FROM tenants

-- name: begin_settling_again
-- Lets freezes settle by the transactions of this server: the lost one counted others.
-- No index: a few rows. Lock: the rows, which no other transaction sees.
UPDATE freezes SET settles_at = NULL WHERE NOT settled

-- name: find_input_days
-- Returns the days of the inputs of open runs.
-- No index: all rows of runs. No lock.
SELECT DISTINCT ((r.row -> 'run_inputs' ->> 'created_at')::timestamptz AT TIME ZONE 'UTC')::date
  FROM standby_rows AS r
 WHERE r.kind = 'job_runs' AND jsonb_typeof(r.row -> 'run_inputs') = 'object'

-- name: add_run_inputs
-- Inserts the inputs of open runs.
-- No index: all rows of runs. Lock: the new rows.
INSERT INTO run_inputs
SELECT i.*
  FROM standby_rows AS r
 CROSS JOIN LATERAL jsonb_populate_record(NULL::run_inputs, r.row -> 'run_inputs') AS i
 WHERE r.kind = 'job_runs' AND jsonb_typeof(r.row -> 'run_inputs') = 'object'

-- name: doubt_runs
-- Makes the due runs of at-most-once jobs attempts of the lost site: they may have begun there after the last record.
-- Index: job_runs_by_job. Lock: the rows, which no other transaction sees.
UPDATE job_runs AS r
   SET state = 'running', attempt = r.attempt + 1, executor_id = %(executor_id)s, started_at = tidewheel_now()
  FROM job_versions AS v
 WHERE v.job_id = r.job_id AND v.version = r.job_version AND v.spec ->> 'delivery' = 'at_most_once'
   AND r.state IN ('queued', 'retrying') AND r.publish_at <= tidewheel_now()
RETURNING r.run_id

-- name: doubt_waiting_runs
-- Cancels the waiting runs of at-most-once jobs: the lost site may have let them begin.
-- Index: job_runs_by_job. Lock: the new rows.
INSERT INTO pending_cancels (run_id, tenant, reason)
SELECT r.run_id, r.tenant, %(reason)s
  FROM job_runs AS r
  JOIN job_versions AS v ON v.job_id = r.job_id AND v.version = r.job_version
 WHERE v.spec ->> 'delivery' = 'at_most_once' AND r.state IN ('buffered', 'blocked')
RETURNING run_id

-- name: pause_doubtful_jobs
-- Pauses the at-most-once jobs that have a timer: an occurrence since the last record may have begun at the lost site.
-- Index: job_versions_pkey, timers_pkey. Lock: the rows, which no other transaction sees.
WITH doubtful AS (
    UPDATE timers AS t
       SET due_at = 'infinity', hold_reason = 'pause'
      FROM job_versions AS v
     WHERE v.job_id = t.job_id AND v.version = t.version AND v.spec ->> 'delivery' = 'at_most_once'
       AND t.hold_reason IS DISTINCT FROM 'quarantine'
    RETURNING t.job_id
)
UPDATE jobs AS j
   SET paused = true, paused_at = coalesce(j.paused_at, %(as_of)s), paused_by = coalesce(j.paused_by, 'standby raise'),
       pause_reason = coalesce(j.pause_reason, %(reason)s), paused_until = NULL
  FROM doubtful AS d
 WHERE j.job_id = d.job_id
RETURNING j.tenant, j.key

-- name: add_lost_executors
-- Inserts the executors of attempts that were running, whose counters stand still: their leases end as those of any other.
-- Index: executors_pkey; reads the open runs once. Lock: the new rows.
INSERT INTO executors (executor_id, name, queues, handlers, slots, last_heartbeat_at, started_at, stopping)
SELECT DISTINCT r.executor_id, 'lost site', '{}'::text[], '{}'::text[], 0, tidewheel_now(), tidewheel_now(), true
  FROM job_runs AS r
 WHERE r.executor_id IS NOT NULL AND r.state = ANY (%(states)s)
ON CONFLICT DO NOTHING

-- name: store_raise
-- Stores the site and the batch that the rows are of.
-- No index: one row. Lock: the row.
INSERT INTO standby AS s (raised_site, raised_batch, raised_as_of, raised_at)
VALUES (%(site)s, %(batch)s, %(as_of)s, tidewheel_now())
ON CONFLICT (one) DO UPDATE
   SET raised_site = excluded.raised_site, raised_batch = excluded.raised_batch, raised_as_of = excluded.raised_as_of,
       raised_at = excluded.raised_at
