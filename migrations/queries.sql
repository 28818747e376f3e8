-- name: lock_migrations
-- Allows one runner at a time. Lock: an advisory lock of the session.
SELECT pg_advisory_lock(hashtext('tidewheel.migrations'))

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

-- name: store_schema
-- Stores one schema of this release, for older readers; a repeat changes nothing. By primary key.
INSERT INTO schemas (fingerprint, name, version, schema)
VALUES (%(fingerprint)s, %(name)s, %(version)s, %(text)s)
ON CONFLICT (fingerprint) DO NOTHING

-- name: find_schema
-- Returns a schema by its fingerprint. By primary key, no lock.
SELECT schema FROM schemas WHERE fingerprint = %(fingerprint)s
