-- name: read_outbox
-- Due rows of the held slices between two places of each, class by class, oldest first; parked topics and what is under
-- way are passed over. The order is that of the loop: a subquery with a LIMIT that looks back is run once for each row of
-- `s`, in their order. Index: outbox_due, from the low-water mark. No lock: the slice is this relay's by an advisory lock.
SELECT s.position::smallint, o.publish_at, o.topic, o.key, o.value, o.headers, o.ctid, int8send(o.id)
  FROM unnest(%(slices)s::smallint[], %(classes)s::text[], %(marks)s::timestamptz[], %(mark_ids)s::bigint[],
              %(ends)s::timestamptz[], %(end_ids)s::bigint[], %(limits)s::integer[])
       WITH ORDINALITY AS s (slice, lane, mark, mark_id, last, last_id, most, position)
 CROSS JOIN LATERAL (
    SELECT r.ctid, r.id, r.publish_at, r.topic, r.key, r.value, r.headers
      FROM outbox AS r
     WHERE r.slice = s.slice
       AND r.lane = s.lane
       AND (r.publish_at, r.id) > (s.mark, s.mark_id)
       AND (r.publish_at, r.id) <= (s.last, s.last_id)
       AND r.publish_at <= (SELECT tidewheel_now())
       AND r.topic <> ALL (%(parked)s)
       AND r.id <> ALL (%(under_way)s::bigint[])
     ORDER BY r.publish_at, r.id
     LIMIT s.most
  ) AS o
 ORDER BY s.position

-- name: probe_outbox
-- The database's clock, and the earliest row of each class in the held slices.
-- Index: outbox_due, one descent for each of both, from the low-water mark. No lock.
SELECT s.lane, min(earliest.publish_at), (SELECT tidewheel_now()) AS now
  FROM unnest(%(slices)s::smallint[], %(classes)s::text[], %(marks)s::timestamptz[], %(mark_ids)s::bigint[])
       AS s (slice, lane, mark, mark_id)
  LEFT JOIN LATERAL (
    SELECT r.publish_at
      FROM outbox AS r
     WHERE r.slice = s.slice AND r.lane = s.lane AND (r.publish_at, r.id) > (s.mark, s.mark_id)
       AND r.topic <> ALL (%(parked)s)
     ORDER BY r.publish_at, r.id
     LIMIT 1
  ) AS earliest ON true
 GROUP BY s.lane

-- name: delete_outbox
-- Rows whose delivery is proven. By physical address, and by id in case the table was rewritten meanwhile: such a row
-- stays and is published once more. Two arrays and not their pairs, for a join would read the whole table; and `+ 0`,
-- for else the planner would rather walk outbox_due for the ids.
-- Index: none, by tid. Lock: the rows, which nobody else touches.
DELETE FROM outbox WHERE ctid = ANY (%(places)s::tid[]) AND id + 0 = ANY (%(ids)s::bigint[])

-- name: set_row_aside
-- A row that Kafka refuses for good, moved to where a person looks at it; nothing when it is gone already.
-- Index: none, by tid. Lock: the row, which nobody else touches.
WITH refused AS (
    DELETE FROM outbox WHERE ctid = ANY (%(places)s::tid[]) AND id + 0 = ANY (%(ids)s::bigint[])
    RETURNING topic, key, value, headers
)
INSERT INTO quarantine (kind, topic, key, value, headers, error, created_at)
SELECT 'outbox', topic, key, value, headers, %(error)s, tidewheel_now() FROM refused

-- name: try_lock_slice
-- Whether a slice could be made this relay's own.
-- Lock: a session-wide advisory lock, one per slice, gone with the session.
SELECT pg_try_advisory_lock(hashtext('tidewheel.relay'), %(slice)s)

-- name: release_slice
-- Lets another relay have a slice.
-- Lock: the slice's advisory lock.
SELECT pg_advisory_unlock(hashtext('tidewheel.relay'), %(slice)s)

-- name: ping
-- Keeps the session that holds the locks from being taken for dead.
-- No index, no lock.
SELECT 1
