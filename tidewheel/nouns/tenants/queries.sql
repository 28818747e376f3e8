-- name: find_tenant
-- Returns a row if the tenant exists.
-- Index: tenants_pkey. No lock.
SELECT 1 FROM tenants WHERE tenant = %(tenant)s

-- part: tenant_columns(t)
-- A tenant's limits, the begin of its pause, its database roles, and its deletion.
-- Index: freezes_pkey, a few rows; tenant_roles_pkey. No lock.
t.tenant, t.created_at, t.weight, t.triggers_per_second, t.in_flight, t.jobs, t.payload_bytes, t.keys, t.key_rate, t.timezone,
       (SELECT min(f.created_at) FROM freezes AS f
         WHERE f.tenant = t.tenant AND f.queue IS NULL AND f.labels IS NULL AND f.key_prefix IS NULL
           AND f.thawed_at IS NULL) AS paused_at,
       t.delete_at, ARRAY(SELECT r.role FROM tenant_roles AS r WHERE r.acts_for = t.tenant ORDER BY r.role) AS roles,
       t.accepted_at, t.jobs_deleted, t.runs_ended, t.removed, t.at_table, t.removed_at, t.free_at

-- part: all_tenants(t)
-- The tenants, with those that are being deleted, and those whose names are reserved.
-- Index: tenants_pkey, tenant_deletions_pkey. No lock.
-- Why smallint: only with equal types does a page read both by their indexes, in order.
(SELECT n.tenant, n.created_at, n.weight, n.triggers_per_second, n.in_flight, n.max_jobs AS jobs, n.max_payload_bytes AS payload_bytes,
        n.max_keys AS keys, n.max_key_rate AS key_rate, n.timezone,
        n.delete_at, NULL::timestamptz AS accepted_at, NULL::bigint AS jobs_deleted, NULL::bigint AS runs_ended, NULL::jsonb AS removed,
        NULL::text AS at_table, NULL::timestamptz AS removed_at, NULL::timestamptz AS free_at
   FROM tenants AS n
  UNION ALL
 SELECT d.tenant, d.created_at, 1::smallint, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, d.accepted_at, d.jobs, d.runs, d.removed, d.at_table,
        d.finished_at,
        d.free_at
   FROM tenant_deletions AS d
  WHERE {{tidewheel.transitions.is_reserved(d)}}) AS t

-- name: list_tenants
-- Returns a page of the tenants by name.
-- Index: tenants_pkey, tenant_deletions_pkey. No lock.
SELECT {{tenant_columns(t)}}
  FROM {{all_tenants(t)}}
 WHERE t.tenant > %(after)s
 ORDER BY t.tenant
 LIMIT %(limit)s

-- name: show_tenant
-- Returns one tenant.
-- Index: tenants_pkey, tenant_deletions_pkey. No lock.
SELECT {{tenant_columns(t)}} FROM {{all_tenants(t)}} WHERE t.tenant = %(tenant)s

-- name: read_tenant_periods
-- Returns the shorter periods of a tenant.
-- Index: tenant_periods_pkey. No lock.
SELECT state, extract(day FROM keep)::integer AS days, kept_since FROM tenant_periods WHERE tenant = %(tenant)s ORDER BY state

-- name: set_tenant_period
-- Writes a shorter period of a tenant, or lifts it; no row if it is so already. The position stays, since runs are gone.
-- Index: tenant_periods_pkey. Lock: the row; lock_tenant has locked the tenant.
INSERT INTO tenant_periods AS p (tenant, state, keep)
SELECT %(tenant)s, %(state)s, %(keep)s::interval
 WHERE %(keep)s::interval IS NOT NULL OR EXISTS (SELECT FROM tenant_periods AS o WHERE o.tenant = %(tenant)s AND o.state = %(state)s)
ON CONFLICT (tenant, state) DO UPDATE SET keep = excluded.keep WHERE p.keep IS DISTINCT FROM excluded.keep

-- name: free_name
-- Deletes the record of a deletion that reserves its name no more.
-- Index: tenant_deletions_pkey. Lock: the row.
DELETE FROM tenant_deletions AS d WHERE d.tenant = %(tenant)s AND NOT {{tidewheel.transitions.is_reserved(d)}}

-- name: schedule_deletion
-- Writes the time at which a tenant is deleted; no row if there is no tenant, or it has one.
-- Index: tenants_pkey. Lock: the row.
UPDATE tenants SET delete_at = tidewheel_now() + %(grace)s::interval WHERE tenant = %(tenant)s AND delete_at IS NULL

-- name: keep_tenant
-- Deletes that time; no row if there is no tenant, or it has none.
-- Index: tenants_pkey. Lock: the row.
UPDATE tenants SET delete_at = NULL WHERE tenant = %(tenant)s AND delete_at IS NOT NULL

-- name: grant_role
-- Writes that a database role acts for a tenant; no row if it does so already.
-- Index: tenant_roles_pkey. Lock: the new row.
INSERT INTO tenant_roles (role, acts_for) VALUES (%(role)s, %(tenant)s) ON CONFLICT DO NOTHING

-- name: revoke_role
-- Deletes that row, and writes one that acts for no tenant: none is named ''. A role without any row would act for `default`.
-- Index: tenant_roles_pkey. Lock: the rows.
WITH revoked AS (
    DELETE FROM tenant_roles WHERE role = %(role)s AND acts_for = %(tenant)s RETURNING role
), kept AS (
    INSERT INTO tenant_roles (role, acts_for) SELECT role, '' FROM revoked ON CONFLICT DO NOTHING
)
SELECT FROM revoked

-- name: add_tenant
-- Writes a tenant; no row if it exists.
-- Index: tenants_pkey. Lock: the new row; waits for an uncommitted insert of the same tenant.
INSERT INTO tenants (tenant, weight, triggers_per_second, in_flight, max_jobs, max_payload_bytes, max_keys, max_key_rate, timezone)
VALUES (%(tenant)s, coalesce(%(weight)s::smallint, 1), %(triggers_per_second)s, %(in_flight)s, %(jobs)s, %(payload_bytes)s,
        %(keys)s, %(key_rate)s, %(timezone)s)
    ON CONFLICT DO NOTHING

-- name: change_limits
-- Writes the limits and the zone of a tenant; no row if there is no tenant, or nothing differs.
-- Index: tenants_pkey. Lock: the row.
UPDATE tenants
   SET weight = coalesce(%(weight)s::smallint, 1), triggers_per_second = %(triggers_per_second)s, in_flight = %(in_flight)s,
       max_jobs = %(jobs)s, max_payload_bytes = %(payload_bytes)s, max_keys = %(keys)s, max_key_rate = %(key_rate)s, timezone = %(timezone)s,
       in_flight_since = CASE WHEN %(in_flight)s::integer IS NULL THEN NULL
                              WHEN in_flight IS NULL THEN tidewheel_now()
                              ELSE in_flight_since END
 WHERE tenant = %(tenant)s
   AND (weight, triggers_per_second, in_flight, max_jobs, max_payload_bytes, max_keys, max_key_rate, timezone) IS DISTINCT FROM
       (coalesce(%(weight)s::smallint, 1), %(triggers_per_second)s::double precision, %(in_flight)s::integer, %(jobs)s::integer, %(payload_bytes)s::integer,
        %(keys)s::integer, %(key_rate)s::double precision, %(timezone)s::text)

-- name: forget_job_room
-- Deletes the room that the last count of a tenant's jobs has left: jobs that come without a quota are not counted.
-- Index: job_rooms_pkey. Lock: the row; waits for submits of the tenant.
DELETE FROM job_rooms WHERE tenant = %(tenant)s

-- name: lock_tenant
-- Locks a tenant against other changes of its limits.
-- Index: tenants_pkey. Lock: the row; waits.
SELECT 1 FROM tenants WHERE tenant = %(tenant)s FOR NO KEY UPDATE

-- name: count_open_runs
-- Returns the number of a tenant's open runs by state, of its first ones by id.
-- Index: job_runs_by_tenant, at most as many rows as the limit. No lock.
SELECT state, count(*)
  FROM (SELECT state FROM job_runs WHERE tenant = %(tenant)s AND shard >= 0 ORDER BY run_id LIMIT %(limit)s) AS counted
 GROUP BY state

-- name: count_finished_runs
-- Returns the number of a tenant's finished runs from an id on, up to a limit.
-- Index: finished_runs_by_tenant in each partition, at most as many entries as the limit in all. No lock.
SELECT count(*)
  FROM (SELECT 1 FROM finished_runs WHERE tenant = %(tenant)s AND run_id >= %(first_id)s LIMIT %(limit)s) AS counted

-- name: count_tenant_jobs
-- Returns the number of a tenant's jobs, of its first ones by key, deleted ones among those.
-- Index: jobs_by_key, at most as many rows as the limit. No lock.
SELECT count(*) FILTER (WHERE deleted_at IS NULL), count(*)
  FROM (SELECT deleted_at FROM jobs WHERE tenant = %(tenant)s ORDER BY key COLLATE "C" LIMIT %(limit)s) AS counted
