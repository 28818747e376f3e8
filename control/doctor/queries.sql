-- name: read_server
-- Returns the database's clock, and the server's connections: used and allowed.
-- No index, no lock.
SELECT tidewheel_now(), (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer

-- name: find_missing_relations
-- Returns those of these names that are no relation of the schema, and those that are invalid indexes.
-- Index: pg_class by name. No lock.
SELECT w.name, i.indexrelid IS NOT NULL AS is_invalid
  FROM unnest(%(names)s::text[]) AS w (name)
  LEFT JOIN pg_class AS c ON c.relname = w.name AND c.relnamespace = current_schema()::regnamespace
  LEFT JOIN pg_index AS i ON i.indexrelid = c.oid AND NOT i.indisvalid
 WHERE c.oid IS NULL OR i.indexrelid IS NOT NULL
 ORDER BY w.name

-- name: may_act
-- Returns true if this session has the rights of a service; the monitor's role has none.
-- No index, no lock.
SELECT has_table_privilege('outbox', 'INSERT')

-- name: find_snapshot_holders
-- Returns transactions and prepared transactions that are older than a limit: vacuum removes no row that died since.
-- No index, no lock.
SELECT 'transaction' AS kind, a.pid::text AS name, coalesce(a.application_name, '') AS application,
       clock_timestamp() - a.xact_start AS age
  FROM pg_stat_activity AS a
 WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
   AND a.xact_start < clock_timestamp() - %(older_than)s::interval
   AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
   AND a.backend_type = 'client backend'
UNION ALL
SELECT 'prepared', p.gid, '', clock_timestamp() - p.prepared
  FROM pg_prepared_xacts AS p
 WHERE p.database = current_database() AND p.prepared < clock_timestamp() - %(older_than)s::interval
 ORDER BY 4 DESC

-- name: find_idle_slots
-- Returns replication slots without a reader that keep WAL or dead rows, with the bytes of WAL.
-- No index, no lock.
SELECT s.slot_name::text, coalesce(pg_wal_lsn_diff(
           CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, s.restart_lsn), 0)::bigint
  FROM pg_replication_slots AS s
 WHERE NOT s.active AND (s.restart_lsn IS NOT NULL OR s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL)
 ORDER BY 1

-- name: find_statements
-- Returns the schema of the view pg_stat_statements; no row without the extension.
-- Index: pg_extension by name. No lock.
SELECT n.nspname::text
  FROM pg_extension AS e
  JOIN pg_namespace AS n ON n.oid = e.extnamespace
 WHERE e.extname = 'pg_stat_statements'

-- name: find_quarantined
-- Returns quarantined jobs with their last error, refused messages of the outbox by topic, and occurrences of workflows with a
-- quarantined release.
-- Index: quarantine_by_job, timers_pkey, jobs_pkey, releases_failed; quarantine as a whole: each row is a fault that an operator looks at. No lock.
SELECT 'job' AS kind, j.tenant, j.key, last.error
  FROM (SELECT DISTINCT ON (q.job_id) q.job_id, q.error FROM quarantine AS q WHERE q.job_id IS NOT NULL
         ORDER BY q.job_id, q.id DESC) AS last
  JOIN timers AS t ON t.job_id = last.job_id AND t.hold_reason = 'quarantine'
  JOIN jobs AS j ON j.job_id = last.job_id
UNION ALL
SELECT 'outbox', '', q.topic, max(q.error)
  FROM quarantine AS q
 WHERE q.kind = 'outbox'
 GROUP BY q.topic
UNION ALL
SELECT 'release', r.tenant, r.root_run_id::text, max(r.error)
  FROM releases AS r
 WHERE r.error IS NOT NULL
 GROUP BY r.tenant, r.root_run_id
 LIMIT 1000

-- name: find_blocked_keys
-- Returns ordering keys that a failed run blocks, with that run and the time since then, the longest first.
-- Index: order_keys_blocked as a whole, a few rows. No lock.
SELECT k.tenant, k.key, k.blocked_by, tidewheel_now() - k.blocked_at
  FROM order_keys AS k
 WHERE k.blocked_by IS NOT NULL
 ORDER BY k.blocked_at
 LIMIT %(limit)s

-- name: read_key_ages
-- Returns the number of keys of run messages, and the age of the newest.
-- No index: two rows. No lock.
SELECT count(*), tidewheel_now() - max(created_at) FROM message_keys

-- name: read_task_token_key_facts
-- Returns the number of keys of task tokens, the age of the newest, and true if one is in `settings` too.
-- No index: two rows. No lock.
SELECT count(*), tidewheel_now() - max(k.created_at),
       coalesce(bool_or(encode(k.secret, 'hex') = (SELECT value #>> '{}' FROM settings WHERE name = 'task_token_key')), false)
  FROM task_token_keys AS k

-- name: find_expiring_keys
-- Returns the API keys that were used in the last 30 days and expire soon, the next one first.
-- No index: the keys are few, and read whole. No lock.
SELECT key_id, name, tenant, expires_at - tidewheel_now()
  FROM api_keys
 WHERE revoked_at IS NULL AND expires_at > tidewheel_now() AND expires_at < tidewheel_now() + %(soon)s::interval
   AND last_used_at > tidewheel_now() - interval '30 days'
 ORDER BY expires_at
 LIMIT %(limit)s

-- name: read_last_archived_day
-- Returns the last day that the archive has; null without an archive.
-- Index: archived_days_pkey. No lock.
SELECT max(day) FROM archived_days

-- name: read_retention
-- Returns the age of the last pass of retention, how late it is, and the cause; no row before the first pass.
-- No index: one row. No lock.
SELECT tidewheel_now() - passed_at, behind, held_by FROM retention_state WHERE passed_at IS NOT NULL

-- name: read_replication
-- Returns the servers for which commits are to wait, and each standby with its bytes of WAL not yet received; null in what the user may not read.
-- No index, no lock.
SELECT current_setting('synchronous_standby_names'), s.pid, s.application_name, s.sync_state,
       pg_wal_lsn_diff(pg_current_wal_lsn(), s.flush_lsn)::bigint
  FROM (VALUES (1)) AS one (x)
  LEFT JOIN pg_stat_replication AS s ON s.application_name IS DISTINCT FROM 'pg_basebackup'
 ORDER BY 3

-- name: read_restore
-- Returns the time from which a restore that has not ended reads Kafka, and true while a process works on it; no row without one.
-- Index: settings_pkey. No lock.
SELECT value ->> 'since',
       EXISTS (SELECT FROM pg_locks AS l
                WHERE l.relation = 'restore_lock'::regclass AND l.mode = 'ShareRowExclusiveLock' AND l.granted
                  AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()))
  FROM settings
 WHERE name = 'restore'
