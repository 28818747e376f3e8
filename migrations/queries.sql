-- name: lock_migrations
-- Allows one runner at a time. Lock: the table of applied files, not waited for; that runner writes it, and everybody reads it.
-- Why no wait: a transaction that waits would hold up CREATE INDEX CONCURRENTLY of the other runner.
LOCK TABLE tidewheel_migrations IN SHARE UPDATE EXCLUSIVE MODE NOWAIT

-- name: make_migrations_table
-- The record of applied files. No index but the primary key.
CREATE TABLE IF NOT EXISTS tidewheel_migrations (
    name       text PRIMARY KEY,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)

-- name: migrations_table_exists
-- Returns true if this database has been migrated before. No lock.
SELECT to_regclass('tidewheel_migrations') IS NOT NULL

-- name: read_migrations
-- Returns the applied files. No lock; a few rows.
SELECT name, checksum, applied_at FROM tidewheel_migrations ORDER BY name

-- name: record_migration
-- Records one applied file. No lock but the runner's.
INSERT INTO tidewheel_migrations (name, checksum) VALUES (%(name)s, %(checksum)s)

-- name: find_processes_of_other_releases
-- Returns the processes that have a row and another version than this release, also those without a late heartbeat.
-- No index: a handful of rows. No lock. Why: a frozen process continues later; its row stays for a day.
SELECT role, version, host, pid FROM processes WHERE version <> %(version)s ORDER BY version, role, host, pid

-- name: count_silent_processes
-- Returns the number of processes of another version than this release whose last heartbeat is as old as given.
-- No index: a handful of rows. No lock.
SELECT count(*) FROM processes WHERE version <> %(version)s AND last_heartbeat_at < tidewheel_now() - %(silent)s::interval

-- name: forget_silent_processes
-- Deletes the rows of these processes; returns role, version, host, pid and the last heartbeat of each.
-- No index: a handful of rows. Lock: the deleted rows.
DELETE FROM processes WHERE version <> %(version)s AND last_heartbeat_at < tidewheel_now() - %(silent)s::interval
RETURNING role, version, host, pid, last_heartbeat_at

-- name: find_existing_tables
-- Returns those of these names that are tables, in their order.
-- Index: pg_class by name. No lock.
SELECT c.relname::text
  FROM pg_class AS c
 WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND c.relname = ANY (%(names)s::text[])
 ORDER BY c.relname

-- name: store_schema
-- Stores one schema of this release, for older readers; a repeat changes nothing. By primary key.
INSERT INTO schemas (fingerprint, name, version, schema)
VALUES (%(fingerprint)s, %(name)s, %(version)s, %(text)s)
ON CONFLICT (fingerprint) DO NOTHING

-- name: find_schema
-- Returns a schema by its fingerprint. By primary key, no lock.
SELECT schema FROM schemas WHERE fingerprint = %(fingerprint)s

-- name: find_tables
-- Returns each of these tables and views with: true if its policy is in force, true if it is a table with a tenant, those of
-- the given rights that a role has.
-- Index: pg_class by name, pg_attribute, pg_policy. No lock.
SELECT c.relname::text, c.relrowsecurity AND EXISTS (SELECT FROM pg_policy AS p WHERE p.polrelid = c.oid AND p.polname = 'of_tenant'),
       c.relkind <> 'v' AND EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attname = 'tenant' AND NOT a.attisdropped),
       ARRAY(SELECT g FROM unnest(%(rights)s::text[]) AS g
              WHERE %(role)s::text IS NOT NULL AND has_table_privilege(%(role)s::text, c.oid, g))
  FROM pg_class AS c
 WHERE c.relnamespace = current_schema()::regnamespace AND c.relname = ANY (%(names)s::text[])
 ORDER BY c.relname

-- name: find_policy
-- Returns a row if a table has its policy, in force or not.
-- Index: pg_policy by table and name. No lock.
SELECT 1 FROM pg_policy WHERE polrelid = to_regclass(quote_ident(%(table)s::text)) AND polname = 'of_tenant'

-- name: find_role
-- Returns a row if the role exists.
-- Index: pg_authid by name. No lock.
SELECT 1 FROM pg_roles WHERE rolname = %(role)s

-- name: is_bound
-- Returns true if row-level security binds the current role.
-- No index, no lock.
SELECT row_security_active('jobs')

-- name: record_tenant_role
-- Records the role as which sessions act for a tenant.
-- Index: settings_pkey. Lock: the row.
INSERT INTO settings (name, value) VALUES ('tenant_role', to_jsonb(%(role)s::text))
ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE settings.value <> excluded.value

-- name: forget_tenant_role
-- Deletes the record of the role.
-- Index: settings_pkey. Lock: the row.
DELETE FROM settings WHERE name = 'tenant_role'

-- name: read_role
-- Returns true if row-level security does not bind a role, and it inherits as given; no row if it does not exist.
-- Index: pg_authid by name. No lock.
SELECT rolsuper OR rolbypassrls AND rolinherit = %(inherits)s FROM pg_roles WHERE rolname = %(role)s

-- name: is_member
-- Returns true if a role may act as another one.
-- Index: pg_auth_members. No lock.
SELECT pg_has_role(%(role)s::text, %(of)s::text, 'MEMBER')

-- name: find_roles_of_default
-- Returns the roles that may call these functions for tenant `default` alone: granted by name, and without a row of their own.
-- Index: pg_proc by name, pg_authid; tenant_roles is small. No lock.
SELECT DISTINCT r.rolname::text
  FROM pg_proc AS p
 CROSS JOIN LATERAL aclexplode(p.proacl) AS a
  JOIN pg_roles AS r ON r.oid = a.grantee
 WHERE p.pronamespace = current_schema()::regnamespace AND p.proname = ANY (%(functions)s::text[])
   AND NOT pg_has_role(r.oid, p.proowner, 'MEMBER') AND NOT has_table_privilege(r.oid, 'outbox', 'INSERT')
   AND NOT EXISTS (SELECT FROM tenant_roles AS t
                     JOIN pg_roles AS g ON g.rolname = t.role
                    WHERE pg_has_role(r.oid, g.oid, 'MEMBER'))
 ORDER BY 1

-- name: read_role_prefix
-- Returns the first part of the names of the services' roles; no row if this database has none. 0.1.0 has recorded `true`.
-- Index: settings_pkey. No lock.
SELECT CASE WHEN value = 'true' THEN 'tidewheel' ELSE value #>> '{}' END FROM settings WHERE name = 'service_roles'

-- name: record_service_roles
-- Records that this database has the roles of the services, and the first part of their names.
-- Index: settings_pkey. Lock: the row.
INSERT INTO settings (name, value) VALUES ('service_roles', to_jsonb(%(prefix)s::text))
ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE settings.value <> excluded.value

-- name: find_grants
-- Returns the rights of these roles on these tables, views and sequences.
-- Index: pg_class by name, pg_authid. No lock.
SELECT c.relname::text, r.rolname::text, array_agg(a.privilege_type::text)
  FROM pg_class AS c
 CROSS JOIN LATERAL aclexplode(c.relacl) AS a
  JOIN pg_roles AS r ON r.oid = a.grantee
 WHERE c.relnamespace = current_schema()::regnamespace
   AND c.relname = ANY (%(names)s::text[]) AND r.rolname = ANY (%(roles)s::text[])
 GROUP BY c.relname, r.rolname

-- name: find_column_grants
-- Returns the columns that a role may read by grants on columns, by table.
-- Index: pg_class by schema, pg_attribute by table. No lock.
SELECT c.relname::text, array_agg(a.attname::text)
  FROM pg_class AS c
  JOIN pg_attribute AS a ON a.attrelid = c.oid
 CROSS JOIN LATERAL aclexplode(a.attacl) AS g
 WHERE c.relnamespace = current_schema()::regnamespace AND g.grantee = to_regrole(quote_ident(%(role)s::text))
   AND g.privilege_type = 'SELECT'
 GROUP BY c.relname
