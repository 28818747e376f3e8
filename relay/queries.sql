-- name: read_outbox
-- Returns due rows of the held slices between two positions of each, lane by lane, oldest first; of topics that leave early also those
-- that are due within `ahead`.
-- Index: outbox_due, from the low-water mark.
-- No lock: a row of relay_slices makes the slice this relay's.
-- Why: rows of paused topics and rows in flight are skipped. The ids in flight are a subquery, for a kept plan hashes it: it compares an
-- array one by one, 480 us a row with 8,000 ids. A subquery with a LIMIT that refers to `s` runs once for each row of
-- `s`, in their order, so the rows come in the order of the loop.
SELECT s.position::smallint, o.publish_at, o.topic, o.key, o.value, o.headers, o.ctid, int8send(o.id)
  FROM unnest(%(slice_lanes)s::smallint[], %(marks)s::timestamptz[], %(mark_ids)s::bigint[], %(ends)s::timestamptz[],
              %(end_ids)s::bigint[], %(limits)s::integer[], %(ahead)s::interval[])
       WITH ORDINALITY AS s (slice_lane, mark, mark_id, last, last_id, row_limit, ahead, position)
 CROSS JOIN LATERAL (
    SELECT r.ctid, r.id, r.publish_at, r.topic, r.key, r.value, r.headers
      FROM outbox AS r
     WHERE r.slice_lane = s.slice_lane
       AND (r.publish_at, r.id) > (s.mark, s.mark_id)
       AND (r.publish_at, r.id) <= (s.last, s.last_id)
       AND r.publish_at <= (SELECT tidewheel_now()) + s.ahead
       AND (r.publish_at <= (SELECT tidewheel_now()) OR r.topic = ANY (%(early_topics)s))
       AND r.topic <> ALL (%(backed_off)s)
       AND r.id NOT IN (SELECT unnest(%(in_flight)s::bigint[]))
     ORDER BY r.publish_at, r.id
     LIMIT s.row_limit
  ) AS o
 ORDER BY s.position

-- name: probe_outbox
-- Returns the database's clock, and the earliest due time of each held slice and lane.
-- Index: outbox_due, one descent for each slice and lane, from the low-water mark. No lock.
-- Why: no Python instant is beyond the year 9999, and a damaged row there must not fail the poll. No read returns it.
SELECT s.position::smallint,
       CASE WHEN earliest.publish_at <= '9999-12-31 00:00Z' THEN earliest.publish_at END AS publish_at,
       (SELECT tidewheel_now()) AS now
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

-- name: find_early_queues
-- Returns the queues whose live executors all keep early messages, with the slots of these.
-- Index: none; a row for each executor. No lock.
-- Why: an executor of one tenant in another language reads no topic. 30 s are two ordinary leases.
SELECT q.queue, sum(e.slots)::integer
  FROM executors AS e
 CROSS JOIN LATERAL unnest(e.queues) AS q (queue)
 WHERE e.acts_for IS NULL AND e.last_heartbeat_at > (SELECT tidewheel_now()) - coalesce(e.lease, interval '15 s') * 2
 GROUP BY q.queue
HAVING bool_and(e.keeps_early)

-- name: count_executors
-- Returns the handlers and the slots of each live executor of a queue.
-- Index: executors_pkey; a handful of rows. No lock.
-- Why: 30 s are two ordinary leases. An executor that is gone for longer counts no more.
SELECT e.handlers, e.slots
  FROM executors AS e
 WHERE %(queue)s::text = ANY (e.queues)
   AND NOT e.stopping
   AND e.last_heartbeat_at > (SELECT tidewheel_now()) - coalesce(e.lease, interval '15 s') * 2

-- name: find_unclaimed
-- Returns those of these runs that are open, with the instant from which an executor can claim them, whether one still can, and
-- whether one runs them.
-- Index: job_runs_pkey. No lock; the answer is a measurement.
-- Why: frozen runs and those that no live executor can run stay unclaimed, and must not hold others back. A run that is buffered or
-- waits has an infinite publish_at, which Python cannot hold.
SELECT r.run_id, greatest(least(r.publish_at, '9999-12-30'), '0001-01-02') AS publish_at,
       r.state = ANY (%(sources)s::text[])
       AND r.publish_at <= (SELECT tidewheel_now())
       AND (%(handlers)s::text[] IS NULL OR r.handler = ANY (%(handlers)s::text[]))
       AND {{tidewheel.transitions.not_frozen(r)}} AS can_be_claimed,
       r.state = %(running)s AS is_running
  FROM job_runs AS r
 WHERE r.run_id = ANY (%(run_ids)s::uuid[])

-- part: of_lead(entry)
-- True of a row of the tenant and priority that are read in order. The statements that read these and that stage all others must agree:
-- a row that both passed over would not leave.
-- No index, no lock.
(coalesce(entry.tenant, '') = %(tenant)s AND coalesce(entry.priority, 5) = %(priority)s)

-- part: due_in_order(entry)
-- True of a due row that is read in order, of the slice and behind the mark of `s`.
-- Index: outbox_due, from the marks of the held topic. No lock.
entry.slice_lane = s.slice_lane
       AND (entry.publish_at, entry.id) > (s.mark, s.mark_id)
       AND entry.publish_at <= (SELECT tidewheel_now())
       AND entry.topic = %(topic)s
       AND {{of_lead(entry)}}

-- name: stage_outbox
-- Returns tenant, priority and entry (time, address, id and size) of the due rows of one topic, slice by slice, oldest first. Leaves out
-- those of the tenant and priority that are read in order, if there are any.
-- Index: outbox_due, from the marks of the held topic. No lock.
-- Why: rows of a held topic are kept as addresses. One bytea a row costs a third of three columns.
SELECT s.position::smallint, o.tenant, o.priority, o.entry
  FROM unnest(%(slice_lanes)s::smallint[], %(marks)s::timestamptz[], %(mark_ids)s::bigint[], %(ends)s::timestamptz[],
              %(end_ids)s::bigint[])
       WITH ORDINALITY AS s (slice_lane, mark, mark_id, last, last_id, position)
 CROSS JOIN LATERAL (
    SELECT coalesce(r.tenant, '') AS tenant, coalesce(r.priority, 5::smallint) AS priority,
           timestamptz_send(r.publish_at) || tidsend(r.ctid) || int8send(r.id)
           || int4send(coalesce(octet_length(r.value), 0)) AS entry
      FROM outbox AS r
     WHERE r.slice_lane = s.slice_lane
       AND (r.publish_at, r.id) > (s.mark, s.mark_id)
       AND (r.publish_at, r.id) <= (s.last, s.last_id)
       AND r.publish_at <= (SELECT tidewheel_now())
       AND r.topic = %(topic)s
       AND (%(tenant)s::text IS NULL OR NOT {{of_lead(r)}})
       AND r.id NOT IN (SELECT unnest(%(known)s::bigint[]))
     ORDER BY r.publish_at, r.id
     LIMIT %(row_limit)s
  ) AS o
 ORDER BY s.position

-- name: read_in_order
-- Returns due rows of one topic, tenant and priority from marks on, slice by slice, oldest first.
-- Index: outbox_due, from the marks of the held topic. No lock.
-- Why: a row that leaves in its order anyway is read once, and not staged. Ids in flight as in read_outbox.
SELECT (s.position + %(before)s)::smallint, o.publish_at, o.topic, o.key, o.value, o.headers, o.ctid, int8send(o.id)
  FROM unnest(%(slice_lanes)s::smallint[], %(marks)s::timestamptz[], %(mark_ids)s::bigint[])
       WITH ORDINALITY AS s (slice_lane, mark, mark_id, position)
 CROSS JOIN LATERAL (
    SELECT r.ctid, r.id, r.publish_at, r.topic, r.key, r.value, r.headers
      FROM outbox AS r
     WHERE {{due_in_order(r)}}
       AND r.id NOT IN (SELECT unnest(%(known)s::bigint[]))
     ORDER BY r.publish_at, r.id
     LIMIT %(row_limit)s
  ) AS o
 ORDER BY s.position

-- name: count_in_order
-- Returns the number of due rows of one topic, tenant and priority from marks on, each slice up to a limit.
-- Index: outbox_due, from the marks of the held topic. No lock.
SELECT coalesce(sum(o.runs), 0)::integer, coalesce(bool_or(o.runs = %(row_limit)s), false)
  FROM unnest(%(slice_lanes)s::smallint[], %(marks)s::timestamptz[], %(mark_ids)s::bigint[]) AS s (slice_lane, mark, mark_id)
 CROSS JOIN LATERAL (
    SELECT count(*) AS runs
      FROM (SELECT
              FROM outbox AS r
             WHERE {{due_in_order(r)}}
             ORDER BY r.publish_at, r.id
             LIMIT %(row_limit)s) AS c
  ) AS o

-- name: fetch_outbox
-- Returns chosen rows by physical address, and by id in case the table was rewritten since.
-- Index: none, by tid. No lock.
SELECT r.slice_lane, r.publish_at, r.topic, r.key, r.value, r.headers, r.ctid, int8send(r.id)
  FROM outbox AS r
 WHERE r.ctid = ANY (%(ctids)s::tid[]) AND r.id + 0 = ANY (%(ids)s::bigint[])

-- name: read_weights
-- Returns the tenants that have a weight of their own.
-- Index: tenants_pkey, all of it. No lock.
SELECT t.tenant, t.weight FROM tenants AS t WHERE t.weight <> 1

-- name: report_held
-- Records the queues and lanes whose runs this relay holds back.
-- Index: members_pkey. Lock: its own row, against its heartbeat.
UPDATE members SET held = %(held)s WHERE member_id = %(member_id)s

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

-- name: delete_expired_replies
-- Deletes replies that have been due for so long and whose topics fail; returns their number by topic.
-- Index: outbox_due, of each slice and lane up to that instant. Lock: the rows; one in flight is gone for its own deletion.
WITH expired AS (
    DELETE FROM outbox
     WHERE ctid = ANY (ARRAY(
        SELECT o.ctid
          FROM unnest(%(slice_lanes)s::smallint[]) AS s (slice_lane)
         CROSS JOIN LATERAL (
            SELECT r.ctid
              FROM outbox AS r
             WHERE r.slice_lane = s.slice_lane
               AND r.publish_at < (SELECT tidewheel_now()) - %(kept)s::interval
               AND r.topic = ANY (%(topics)s::text[])
             ORDER BY r.publish_at, r.id
             LIMIT %(limit)s
          ) AS o
         LIMIT %(limit)s
     ))
    RETURNING topic
)
SELECT e.topic, count(*) FROM expired AS e GROUP BY e.topic ORDER BY e.topic

-- name: try_lock_slice
-- Tries to keep relays of 0.1 from a slice; returns whether it does, and whether none of them has it. In a schema of its own an
-- installation has none beside it.
-- No index. Lock: a session-wide advisory lock, one per slice, released with the session.
SELECT t.locked, t.locked OR NOT {{tidewheel.no_stranger(k)}}
  FROM (SELECT (hashtext('tidewheel.relay')::bigint << 32) | %(slice)s::integer AS key) AS k
 CROSS JOIN (SELECT current_setting('tidewheel.own_schema', true) IS DISTINCT FROM 'on'
                    AND pg_try_advisory_lock(hashtext('tidewheel.relay'), %(slice)s::integer)) AS t (locked)

-- name: unlock_slice
-- Releases that lock.
-- No index, no lock.
SELECT pg_advisory_unlock(hashtext('tidewheel.relay'), %(slice)s)

-- name: lock_slice
-- Locks a slice, so that the next statement sees the relay that has taken it last; the first lock of a slice inserts its row.
-- Index: relay_slices_pkey. Lock: the row, for some milliseconds; ON CONFLICT locks it, and changes nothing.
INSERT INTO relay_slices AS s (slice) VALUES (%(slice)s)
    ON CONFLICT (slice) DO UPDATE SET member_id = excluded.member_id WHERE false

-- name: take_slice
-- Makes a locked slice this relay's; no row while it is that of another live one.
-- Index: relay_slices_pkey, members_pkey. Lock: the row, which lock_slice has locked.
UPDATE relay_slices AS s
   SET member_id = %(member_id)s
 WHERE s.slice = %(slice)s
   AND NOT EXISTS (SELECT FROM members AS m
                    WHERE m.member_id = s.member_id AND m.member_id <> %(member_id)s
                      AND m.last_heartbeat_at > tidewheel_now() - %(timeout)s::interval
                      AND m.last_heartbeat_at < tidewheel_now() + %(timeout)s::interval)

-- name: release_slice
-- Frees a slice for another relay.
-- Index: relay_slices_pkey. Lock: the row.
UPDATE relay_slices SET member_id = NULL WHERE slice = %(slice)s AND member_id = %(member_id)s

-- name: find_slices
-- Returns the slices of this relay, every second: so the session that holds the old locks stays alive.
-- No index: eight rows. No lock.
SELECT slice FROM relay_slices WHERE member_id = %(member_id)s
