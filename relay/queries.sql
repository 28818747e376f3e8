-- name: read_outbox
-- Returns due rows of the held slices between two positions of each, lane by lane, oldest first.
-- Index: outbox_due, from the low-water mark.
-- No lock: an advisory lock makes the slice this relay's.
-- Why: rows of paused topics and rows in flight are skipped. A subquery with a LIMIT that refers to `s` runs once for each row of
-- `s`, in their order, so the rows come in the order of the loop.
SELECT s.position::smallint, o.publish_at, o.topic, o.key, o.value, o.headers, o.ctid, int8send(o.id)
  FROM unnest(%(slice_lanes)s::smallint[], %(marks)s::timestamptz[], %(mark_ids)s::bigint[], %(ends)s::timestamptz[],
              %(end_ids)s::bigint[], %(limits)s::integer[])
       WITH ORDINALITY AS s (slice_lane, mark, mark_id, last, last_id, row_limit, position)
 CROSS JOIN LATERAL (
    SELECT r.ctid, r.id, r.publish_at, r.topic, r.key, r.value, r.headers
      FROM outbox AS r
     WHERE r.slice_lane = s.slice_lane
       AND (r.publish_at, r.id) > (s.mark, s.mark_id)
       AND (r.publish_at, r.id) <= (s.last, s.last_id)
       AND r.publish_at <= (SELECT tidewheel_now())
       AND r.topic <> ALL (%(backed_off)s)
       AND r.id <> ALL (%(in_flight)s::bigint[])
     ORDER BY r.publish_at, r.id
     LIMIT s.row_limit
  ) AS o
 ORDER BY s.position

-- name: probe_outbox
-- Returns the database's clock, and the earliest due time of each held slice and lane.
-- Index: outbox_due, one descent for each slice and lane, from the low-water mark. No lock.
SELECT s.position::smallint, earliest.publish_at, (SELECT tidewheel_now()) AS now
  FROM unnest(%(slice_lanes)s::smallint[], %(marks)s::timestamptz[], %(mark_ids)s::bigint[])
       WITH ORDINALITY AS s (slice_lane, mark, mark_id, position)
  LEFT JOIN LATERAL (
    SELECT r.publish_at
      FROM outbox AS r
     WHERE r.slice_lane = s.slice_lane AND (r.publish_at, r.id) > (s.mark, s.mark_id)
       AND r.topic <> ALL (%(backed_off)s)
     ORDER BY r.publish_at, r.id
     LIMIT 1
  ) AS earliest ON true

-- name: delete_outbox
-- Deletes acknowledged rows by physical address, and by id in case the table was rewritten since.
-- Index: none, by tid. Lock: the rows, which no other transaction touches.
-- Why: a row of a rewritten table stays and is published again. Two arrays and not their pairs, since a join would read the whole
-- table. `+ 0`, since the planner would otherwise scan outbox_due for the ids.
DELETE FROM outbox WHERE ctid = ANY (%(ctids)s::tid[]) AND id + 0 = ANY (%(ids)s::bigint[])

-- name: quarantine_outbox_row
-- Moves a row that Kafka refuses for good to quarantine; does nothing if it is gone.
-- Index: none, by tid. Lock: the row, which no other transaction touches.
WITH refused AS (
    DELETE FROM outbox WHERE ctid = ANY (%(ctids)s::tid[]) AND id + 0 = ANY (%(ids)s::bigint[])
    RETURNING topic, key, value, headers
)
INSERT INTO quarantine (kind, topic, key, value, headers, error, created_at)
SELECT 'outbox', topic, key, value, headers, %(error)s, tidewheel_now() FROM refused

-- name: postpone_outbox
-- Makes rows that are too large for their topic due later; does nothing to a row that is gone, or was moved before.
-- Index: none, by tid. Lock: the rows, which no other transaction touches.
-- Why: a row that stays due is read again at once, with all that are behind it.
UPDATE outbox SET publish_at = tidewheel_now() + %(pause)s
 WHERE ctid = ANY (%(ctids)s::tid[]) AND id + 0 = ANY (%(ids)s::bigint[])

-- name: try_lock_slice
-- Returns whether the slice could be locked for this relay.
-- Lock: a session-wide advisory lock, one per slice, released with the session.
SELECT pg_try_advisory_lock(hashtext('tidewheel.relay'), %(slice)s)

-- name: release_slice
-- Releases a slice for another relay.
-- Lock: the slice's advisory lock.
SELECT pg_advisory_unlock(hashtext('tidewheel.relay'), %(slice)s)

-- name: ping
-- Keeps the session that holds the locks alive.
-- No index, no lock.
SELECT 1
