-- name: lock_migrations
-- One runner at a time. Lock: a session-wide advisory lock.
SELECT pg_advisory_lock(hashtext('tidewheel.migrations'))

-- name: make_migrations_table
-- Where applied files are remembered. No index but the primary key.
CREATE TABLE IF NOT EXISTS tidewheel_migrations (
    name       text PRIMARY KEY,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)

-- name: migrations_table_exists
-- Whether this database was ever migrated. No lock.
SELECT to_regclass('tidewheel_migrations') IS NOT NULL

-- name: read_migrations
-- What was applied. No lock, a handful of rows.
SELECT name, checksum, applied_at FROM tidewheel_migrations ORDER BY name

-- name: record_migration
-- One file is in. No lock beyond the runner's.
INSERT INTO tidewheel_migrations (name, checksum) VALUES (%(name)s, %(checksum)s)

-- name: store_schema
-- One schema of this release, for older readers. By primary key; a repeat changes nothing.
INSERT INTO schemas (fingerprint, name, version, schema)
VALUES (%(fingerprint)s, %(name)s, %(version)s, %(text)s)
ON CONFLICT (fingerprint) DO NOTHING

-- name: find_schema
-- A schema by its fingerprint. By primary key, no lock.
SELECT schema FROM schemas WHERE fingerprint = %(fingerprint)s
