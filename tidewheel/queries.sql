-- name: heartbeat_member
-- Records a heartbeat of a member; the first one inserts its row. Returns the database's clock.
-- Index: members_pkey. Lock: its own row.
INSERT INTO members (member_id, role, name, heartbeat_count, last_heartbeat_at, started_at)
VALUES (%(member_id)s, %(role)s, %(name)s, 0, tidewheel_now(), tidewheel_now())
ON CONFLICT (member_id) DO UPDATE SET heartbeat_count = members.heartbeat_count + 1, last_heartbeat_at = tidewheel_now()
RETURNING last_heartbeat_at

-- name: live_members
-- Returns the members of a role with a recent heartbeat; deletes those without one for an hour.
-- No index: a handful of rows. Lock: the deleted rows.
-- Why: a heartbeat from the future is one from before the clock was set back. A live member sends another.
WITH gone AS (
    DELETE FROM members WHERE last_heartbeat_at < tidewheel_now() - interval '1 hour'
)
SELECT member_id FROM members
 WHERE role = %(role)s
   AND last_heartbeat_at > tidewheel_now() - %(timeout)s::interval
   AND last_heartbeat_at < tidewheel_now() + %(timeout)s::interval
 ORDER BY member_id

-- part: is_live(member)
-- True for a member with a heartbeat within a time that is longer than the ordinary timeout: what it reports holds.
-- No index, no lock.
member.last_heartbeat_at > (SELECT tidewheel_now()) - interval '15 s'

-- part: is_service(session)
-- True if the role of a session has the rights of a service, or may act as one that has: all services write the outbox.
-- No index: the roles. No lock.
EXISTS (SELECT FROM pg_roles AS r WHERE pg_has_role(session.usesysid, r.oid, 'MEMBER') AND has_table_privilege(r.oid, 'outbox', 'INSERT'))

-- name: find_services
-- Returns those of these sessions that are a service's.
-- No index, no lock.
SELECT s.pid FROM pg_stat_activity AS s WHERE s.pid = ANY (%(processes)s::integer[]) AND {{is_service(s)}}

-- part: no_stranger(old)
-- True unless a session whose role has no rights of a service holds an advisory key of 0.1, or waits for it: then services go on without
-- that key. A prepared transaction has no process, and none of a service is prepared. In a schema of its own an installation has no
-- processes of 0.1, and another installation may hold the key.
-- No index, no lock.
(current_setting('tidewheel.own_schema', true) IS DISTINCT FROM 'on'
 AND NOT EXISTS (SELECT FROM pg_locks AS l
                   LEFT JOIN pg_stat_activity AS s ON s.pid = l.pid
                  WHERE l.locktype = 'advisory'
                    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
                    AND (l.classid::bigint << 32 | l.objid::bigint) = old.key
                    AND (l.pid IS NULL OR (s.pid IS NOT NULL AND NOT {{is_service(s)}}))))

-- name: try_old_lock
-- Takes an advisory key of 0.1 until the transaction ends; returns false while a process of 0.1 has it.
-- No index. Lock: the key, not waited for; one of a stranger is passed over.
SELECT CASE WHEN current_setting('tidewheel.own_schema', true) IS DISTINCT FROM 'on' THEN pg_try_advisory_xact_lock(k.key) OR NOT {{no_stranger(k)}} ELSE true END
  FROM (SELECT hashtext('tidewheel.' || %(name)s::text)::bigint AS key) AS k

-- part: prepared(held)
-- The prepared transaction that holds a lock, by the lock of its own id: pg_locks shows no process of it.
-- No index, no lock.
(SELECT x.gid, x.owner, x.prepared
   FROM pg_locks AS o
   JOIN pg_prepared_xacts AS x ON x.transaction = o.transactionid
  WHERE o.locktype = 'transactionid' AND o.pid IS NULL AND o.virtualtransaction = held.virtualtransaction)

-- name: find_lock_holders
-- Returns the sessions without the rights of a service that hold an advisory key of 0.1, those that have kept claims waiting for five
-- seconds, and prepared transactions that do either: process or name, role, what is held, age. The age is null where this role may not
-- see it. A claim of another installation in this database, which shares its key for a moment, is left out: it locks tables of a schema
-- that has a claims_lock too.
-- No index, no lock.
SELECT DISTINCT l.pid, p.gid, coalesce(s.usename::text, p.owner::text, '?') AS role, 'the advisory lock ' || k.name AS what,
       clock_timestamp() - coalesce(s.xact_start, s.backend_start, p.prepared) AS age
  FROM (SELECT n.name, hashtext('tidewheel.' || n.name) AS code
          FROM unnest(ARRAY['claims', 'kept_since', 'retention', 'archive', 'tenant_repair', 'relay', 'graphs']) AS n (name)) AS k
  JOIN pg_locks AS l
    ON l.locktype = 'advisory' AND l.granted
   AND CASE WHEN k.name IN ('relay', 'graphs') THEN l.objsubid = 2 AND l.classid::bigint = k.code::bigint & 4294967295
            ELSE l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = k.code END
  LEFT JOIN pg_stat_activity AS s ON s.pid = l.pid
  LEFT JOIN LATERAL {{prepared(l)}} AS p ON l.pid IS NULL
 WHERE current_setting('tidewheel.own_schema', true) IS DISTINCT FROM 'on'
   AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
   AND (l.pid IS NULL OR (s.pid IS NOT NULL AND NOT {{is_service(s)}}))
   AND NOT (l.mode = 'ShareLock'
            AND EXISTS (SELECT FROM pg_locks AS o
                          JOIN pg_class AS c ON c.oid = o.relation
                          JOIN pg_class AS n ON n.relnamespace = c.relnamespace AND n.relname = 'claims_lock'
                         WHERE o.virtualtransaction = l.virtualtransaction AND n.oid <> 'claims_lock'::regclass))
 UNION ALL
SELECT l.pid, p.gid, coalesce(s.usename::text, p.owner::text, '?'), 'the table claims_lock',
       clock_timestamp() - coalesce(s.xact_start, p.prepared)
  FROM pg_locks AS l
  LEFT JOIN pg_stat_activity AS s ON s.pid = l.pid
  LEFT JOIN LATERAL {{prepared(l)}} AS p ON l.pid IS NULL
 WHERE l.relation = 'claims_lock'::regclass AND l.granted
   AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
   AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
   AND coalesce(clock_timestamp() - coalesce(s.xact_start, p.prepared) > interval '5 s', true)
 ORDER BY 1, 2, 4

-- name: heartbeat_process
-- Records a heartbeat of a process; the first one inserts its row. Deletes rows that are a day old.
-- Index: processes_pkey; a handful of rows. Lock: its own row, and the deleted rows.
WITH gone AS (
    DELETE FROM processes
     WHERE last_heartbeat_at < tidewheel_now() - interval '1 day' AND process_id <> %(process_id)s
)
INSERT INTO processes (process_id, role, host, pid, version, settings, sent_at, fallbacks, last_heartbeat_at, started_at)
VALUES (%(process_id)s, %(role)s, %(host)s, %(pid)s, %(version)s, %(settings)s, %(sent_at)s, %(fallbacks)s, tidewheel_now(), tidewheel_now())
ON CONFLICT (process_id) DO UPDATE
   SET sent_at = excluded.sent_at, fallbacks = excluded.fallbacks, last_heartbeat_at = excluded.last_heartbeat_at

-- name: delete_process
-- Deletes the row of a process that stops.
-- Index: processes_pkey. Lock: its own row.
DELETE FROM processes WHERE process_id = %(process_id)s

-- name: read_now
-- Returns the time by the database's clock, which decides what is due.
-- No index, no lock.
SELECT tidewheel_now()

-- name: delete_member
-- Deletes a member that stops, so that the others need not wait for its timeout.
-- Index: members_pkey. Lock: its own row.
DELETE FROM members WHERE member_id = %(member_id)s

-- name: read_message_keys
-- Returns the keys of run messages, and true for those old enough to sign.
-- No index: two rows. No lock.
SELECT key_id, secret, created_at <= tidewheel_now() - make_interval(secs => %(signs_after)s) FROM message_keys

-- name: read_task_token_keys
-- Returns the keys of task tokens, the newest first, each with its age in seconds.
-- Index: task_token_keys_pkey. No lock.
SELECT secret, extract(epoch FROM tidewheel_now() - created_at)::double precision FROM task_token_keys ORDER BY key_id DESC

-- name: count_repeats
-- Adds to the newest entry of the last minute that each of these changes repeats; returns the positions of those counted.
-- Index: audit_log_by_object, audit_log_pkey. Lock: the entries; one that another transaction counts in is skipped.
-- Why: a client in a loop of refused requests would write more entries than all operators.
UPDATE audit_log AS a
   SET objects = a.objects + same.objects
  FROM (SELECT g.number, g.objects, l.at, l.id
          FROM unnest(%(tenants)s::text[], %(changed)s::text[], %(actions)s::text[], %(results)s::text[], %(doors)s::text[],
                      %(kinds)s::text[], %(actors)s::text[], %(named)s::text[], %(key_ids)s::text[], %(objects)s::bigint[])
               WITH ORDINALITY AS g (tenant, object, action, result, door, kind, actor, named, key_id, objects, number)
         CROSS JOIN LATERAL (
            SELECT at, id
              FROM audit_log
             WHERE tenant = g.tenant AND object = g.object AND at > tidewheel_now() - interval '1 minute'
               AND action = g.action AND result = g.result AND door = g.door AND actor_kind = g.kind
               AND (g.actor IS NULL OR actor = g.actor)
               AND named IS NOT DISTINCT FROM g.named AND key_id IS NOT DISTINCT FROM g.key_id
             ORDER BY at DESC, id DESC
             LIMIT 1
               FOR UPDATE SKIP LOCKED
         ) AS l) AS same
 WHERE a.at = same.at AND a.id = same.id
RETURNING same.number

-- name: read_search_path
-- Returns the schemas in which this session looks names up.
-- No index, no lock.
SELECT string_agg(quote_ident(s), ', ') FROM unnest(current_schemas(false)) AS s

-- name: act_for_tenant
-- Makes the transaction act as a role for one tenant.
-- No index, no lock.
SELECT set_config('search_path', %(search_path)s, true), set_config('tidewheel.tenant', %(tenant)s, true),
       set_config('role', %(role)s, true)

-- name: read_epoch
-- Returns the epoch of the database, 0 unless it was restored, and true while a restore is under way.
-- Index: settings_pkey. No lock.
SELECT coalesce((SELECT (e.value #>> '{}')::integer FROM settings AS e WHERE e.name = 'epoch'), 0),
       EXISTS (SELECT FROM settings AS r WHERE r.name = 'restore')

-- name: read_position
-- Returns the position up to which the WAL of this primary is on disk, so all that it has committed, and what identifies a copy of its tables.
-- Index: pg_database_datname_index. No lock.
-- Why pg_walfile_name: a segment's name begins with the timeline in which the server writes.
SELECT s.system_identifier AS cluster, d.oid::bigint AS database, to_regclass('jobs')::oid::bigint AS jobs,
       ('x' || left(pg_walfile_name(p.position), 8))::bit(32)::integer AS timeline, p.position::text AS position, session_user::text AS role
  FROM pg_control_system() AS s, pg_database AS d, (SELECT pg_current_wal_flush_lsn() AS position) AS p
 WHERE d.datname = current_database()

-- name: read_progress
-- Returns how much of a position of the primary this standby has replayed, and whether it has the same tables.
-- Index: pg_database_datname_index. No lock.
-- Why: positions of two timelines cannot be compared. Few roles may see what is received; a checkpoint and a written page store it too.
SELECT s.system_identifier = %(cluster)s::bigint AS is_same_cluster, pg_is_in_recovery() AS is_standby,
       GREATEST(c.timeline_id, r.min_recovery_end_timeline, w.received_tli) AS timeline,
       pg_wal_lsn_diff(%(position)s::text::pg_lsn, pg_last_wal_replay_lsn())::bigint AS behind_bytes,
       session_user = %(role)s::text AS is_same_role,
       d.oid::bigint = %(database)s::bigint AND to_regclass('jobs')::oid::bigint IS NOT DISTINCT FROM %(jobs)s::bigint AS has_tables
  FROM pg_control_system() AS s, pg_control_checkpoint() AS c, pg_control_recovery() AS r, pg_database AS d
  LEFT JOIN pg_stat_wal_receiver AS w ON true
 WHERE d.datname = current_database()

-- name: add_activity
-- Adds the figures of ended runs of the last seconds, a row for each class. A tenant that is deleted gets none.
-- Index: tenants_pkey; activity_pkey and activity_by_grain grow. No lock.
INSERT INTO activity (tenant, at, grain, queue, lane, state, runs, stages, took, slowest)
SELECT r.tenant, r.at, 0, r.queue, r.lane, r.state, r.runs, r.stages, r.took, r.slowest
  FROM jsonb_to_recordset(%(rows)s)
       AS r (tenant text, at timestamptz, queue text, lane text, state text, runs bigint, stages bigint[],
             took double precision[], slowest uuid[])
  JOIN tenants AS t ON t.tenant = r.tenant

-- name: restamp_events
-- Gives the events that this transaction has appended to the outbox the present time.
-- Index: outbox_due, the events since the begin of the transaction. Lock: rows of this transaction.
SELECT tidewheel_restamp_events()

-- name: read_columns
-- Returns the types of columns of a table, in the order of their names here, with the OIDs of these types.
-- Index: pg_attribute_relid_attnam_index. No lock.
SELECT format_type(a.atttypid, NULL), a.atttypid
  FROM unnest(%(names)s::text[]) WITH ORDINALITY AS n (name, position)
  JOIN pg_attribute AS a ON a.attrelid = %(table)s::regclass AND a.attname = n.name
 ORDER BY n.position
