-- name: read_outbox
-- Due rows of the held slices, class by class, oldest first, up to so many bytes; parked topics and what is under way
-- are passed over.
-- Index: outbox_due, from the low-water mark. No lock: the slice is this relay's by an advisory lock.
SELECT place, id, slice, class, publish_at, topic, key, value, headers
  FROM (
SELECT o.ctid::text AS place, o.id, s.slice, s.class, o.publish_at, o.topic, o.key, o.value, o.headers, s.position,
       sum(coalesce(octet_length(o.value), 0)) OVER running - coalesce(octet_length(o.value), 0) AS bytes_before
  FROM unnest(%(slices)s::smallint[], %(classes)s::text[], %(marks)s::timestamptz[], %(limits)s::integer[])
       WITH ORDINALITY AS s (slice, class, mark, most, position)
 CROSS JOIN LATERAL (
    SELECT r.ctid, r.id, r.publish_at, r.topic, r.key, r.value, r.headers
      FROM outbox AS r
     WHERE r.slice = s.slice
       AND r.class = s.class
       AND r.publish_at >= s.mark
       AND r.publish_at <= (SELECT tidewheel_now())
       AND r.topic <> ALL (%(parked)s)
       AND r.id <> ALL (%(under_way)s::bigint[])
     ORDER BY r.publish_at, r.id
     LIMIT s.most
  ) AS o
WINDOW running AS (ORDER BY s.position, o.publish_at, o.id ROWS UNBOUNDED PRECEDING)
) AS batch
 WHERE bytes_before < %(most_bytes)s
 ORDER BY position, publish_at, id

-- name: probe_outbox
-- The database's clock, and the earliest row of each held slice and class.
-- Index: outbox_due, one descent each, from the low-water mark. No lock.
SELECT s.class, earliest.publish_at, (SELECT tidewheel_now()) AS now
  FROM unnest(%(slices)s::smallint[], %(classes)s::text[], %(marks)s::timestamptz[]) AS s (slice, class, mark)
  LEFT JOIN LATERAL (
    SELECT r.publish_at
      FROM outbox AS r
     WHERE r.slice = s.slice AND r.class = s.class AND r.publish_at >= s.mark AND r.topic <> ALL (%(parked)s)
     ORDER BY r.publish_at
     LIMIT 1
  ) AS earliest ON true

-- name: delete_outbox
-- Rows whose delivery is proven. By physical address, and by id in case the table was rewritten meanwhile: such a row
-- stays and is published once more. Two arrays and not their pairs, for a join would read the whole table; and `+ 0`,
-- for else the planner would rather walk outbox_due for the ids.
-- Index: none, by tid. Lock: the rows, which nobody else touches.
DELETE FROM outbox WHERE ctid = ANY (%(places)s::tid[]) AND id + 0 = ANY (%(ids)s::bigint[])

-- name: set_row_aside
-- A row that Kafka refuses for good, kept with its error for a person to look at.
-- No index, no lock.
INSERT INTO set_aside (kind, topic, key, value, headers, error, made_at)
VALUES ('outbox', %(topic)s, %(key)s, %(value)s, %(headers)s, %(error)s, tidewheel_now())

-- name: try_slice
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
