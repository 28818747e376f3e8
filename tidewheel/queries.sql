-- name: heartbeat_member
-- A member says that it lives; the first beat enters it. Brings the database's clock along.
-- Index: members_pkey. Lock: its own row.
INSERT INTO members (member_id, role, name, heartbeat_count, last_heartbeat_at, started_at)
VALUES (%(member_id)s, %(role)s, %(name)s, 0, tidewheel_now(), tidewheel_now())
ON CONFLICT (member_id) DO UPDATE SET heartbeat_count = members.heartbeat_count + 1, last_heartbeat_at = tidewheel_now()
RETURNING last_heartbeat_at

-- name: live_members
-- Who of a role was heard of lately; also removes those that have been silent for an hour. A beat from the future is one
-- from before the clock was set back: who lives beats again.
-- No index: a handful of rows. Lock: the rows removed.
WITH gone AS (
    DELETE FROM members WHERE last_heartbeat_at < tidewheel_now() - interval '1 hour'
)
SELECT member_id FROM members
 WHERE role = %(role)s
   AND last_heartbeat_at > tidewheel_now() - %(timeout)s::interval
   AND last_heartbeat_at < tidewheel_now() + %(timeout)s::interval
 ORDER BY member_id

-- name: read_clock
-- The clock that decides what is due, and so what day it is.
-- No index, no lock.
SELECT tidewheel_now()

-- name: leave
-- A member says goodbye, so that the others need not wait for its silence.
-- Index: members_pkey. Lock: its own row.
DELETE FROM members WHERE member_id = %(member_id)s
