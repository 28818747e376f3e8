-- name: list_api_keys
-- Returns a page of the keys of a tenant, or of all, the newest first.
-- Index: api_keys_by_tenant, from its end; for all tenants the table is read whole. No lock.
SELECT key_id, name, tenant, scopes, rate, created_at, expires_at, revoked_at, last_used_at, queues
  FROM api_keys
 WHERE (%(tenant)s::text IS NULL OR tenant = %(tenant)s) AND (created_at, key_id) < (%(before_at)s, %(before_id)s)
 ORDER BY created_at DESC, key_id DESC
 LIMIT %(limit)s

-- name: show_api_key
-- Returns a key of a tenant, or of any.
-- Index: api_keys_pkey. No lock.
SELECT key_id, name, tenant, scopes, rate, created_at, expires_at, revoked_at, last_used_at, queues
  FROM api_keys
 WHERE key_id = %(key_id)s AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)

-- name: add_api_key
-- Writes a key of the HTTP API; returns its instants.
-- Index: api_keys_pkey. Lock: the new row.
INSERT INTO api_keys (key_id, tenant, name, secret_hash, scopes, rate, expires_at)
VALUES (%(key_id)s, %(tenant)s, %(name)s, %(secret_hash)s, %(scopes)s, %(rate)s, tidewheel_now() + %(lifetime)s::interval)
RETURNING created_at, expires_at

-- name: add_executor_key
-- Writes a key with the scope execute, as add_api_key. Why another statement: a database of 0.1.0 has no such column.
-- Index: api_keys_pkey. Lock: the new row.
INSERT INTO api_keys (key_id, tenant, name, secret_hash, scopes, queues, rate, expires_at)
VALUES (%(key_id)s, %(tenant)s, %(name)s, %(secret_hash)s, %(scopes)s, %(queues)s, %(rate)s, tidewheel_now() + %(lifetime)s::interval)
RETURNING created_at, expires_at

-- name: lock_keys_of_tenant
-- Lets one caller at a time count the keys of a tenant; its own key is among them.
-- Index: api_keys_by_tenant. Lock: the rows.
SELECT FROM api_keys WHERE tenant = %(tenant)s AND revoked_at IS NULL ORDER BY created_at, key_id FOR UPDATE

-- name: read_key_limits
-- Returns the keys of a tenant in force, and the limits of what its own keys may create.
-- Index: tenants_pkey, api_keys_by_tenant. No lock.
SELECT (SELECT count(*) FROM api_keys AS k
         WHERE k.tenant = t.tenant AND k.revoked_at IS NULL AND coalesce(k.expires_at > tidewheel_now(), true)),
       t.max_keys, t.max_key_rate
  FROM tenants AS t
 WHERE t.tenant = %(tenant)s

-- name: revoke_api_key
-- Revokes a key; returns its tenant, and true if it was revoked before.
-- Index: api_keys_pkey. Lock: the row, before it is read.
WITH locked AS MATERIALIZED (
    SELECT key_id, tenant, revoked_at FROM api_keys
     WHERE key_id = %(key_id)s AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s) FOR UPDATE
), revoked AS (
    UPDATE api_keys SET revoked_at = tidewheel_now() WHERE key_id IN (SELECT key_id FROM locked WHERE revoked_at IS NULL)
)
SELECT tenant, revoked_at IS NOT NULL FROM locked
