-- part: page_of_audit_log(looked)
-- The end of what a page has looked at, and the entries that fit its filter, the newest first.
SELECT e.at, e.id, f.*
  FROM (SELECT count(*) = %(look)s AS is_full FROM looked) AS c
  LEFT JOIN LATERAL (SELECT at, id FROM looked WHERE c.is_full ORDER BY at, id LIMIT 1) AS e ON true
  LEFT JOIN LATERAL (
    SELECT l.id, l.at, l.tenant, l.door, l.actor_kind, l.actor, l.named, l.key_id, l.action, l.object, l.request_id,
           l.version_before, l.version_after, l.objects, l.result, l.reason
      FROM looked AS l
     WHERE (%(actor)s::text IS NULL OR %(actor)s IN (l.actor, l.named, l.key_id))
       AND (%(object)s::text IS NULL OR l.object = %(object)s)
       AND (%(action)s::text IS NULL OR l.action = %(action)s)
       AND (%(door)s::text IS NULL OR l.door = %(door)s)
     ORDER BY l.at DESC, l.id DESC
     LIMIT %(limit)s
  ) AS f ON true
 ORDER BY f.at DESC, f.id DESC

-- name: list_audit_log
-- Returns the end of what a page has looked at, and the entries of a tenant that fit, the newest first; one row at least.
-- Index: audit_log_by_tenant, walked backwards over at most `look` rows. No lock.
WITH looked AS MATERIALIZED (
    SELECT * FROM audit_log
     WHERE tenant = %(tenant)s AND (at, id) < (%(before_at)s, %(before_id)s) AND at >= %(since)s
     ORDER BY at DESC, id DESC
     LIMIT %(look)s
)
{{page_of_audit_log(looked)}}

-- name: list_audit_log_of_object
-- Returns the same for one object.
-- Index: audit_log_by_object, walked backwards over at most `look` rows. No lock.
WITH looked AS MATERIALIZED (
    SELECT * FROM audit_log
     WHERE tenant = %(tenant)s AND object = %(object)s AND (at, id) < (%(before_at)s, %(before_id)s) AND at >= %(since)s
     ORDER BY at DESC, id DESC
     LIMIT %(look)s
)
{{page_of_audit_log(looked)}}

-- name: list_audit_log_of_all
-- Returns the same for all tenants.
-- Index: audit_log_pkey, walked backwards over at most `look` rows. No lock.
WITH looked AS MATERIALIZED (
    SELECT * FROM audit_log
     WHERE (at, id) < (%(before_at)s, %(before_id)s) AND at >= %(since)s
     ORDER BY at DESC, id DESC
     LIMIT %(look)s
)
{{page_of_audit_log(looked)}}
