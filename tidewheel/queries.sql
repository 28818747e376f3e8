-- name: heartbeat_member
-- Records a heartbeat of a member; the first one inserts its row. Returns the database's clock.
-- Index: members_pkey. Lock: its own row.
INSERT INTO members (member_id, role, name, heartbeat_count, last_heartbeat_at, started_at)
VALUES (%(member_id)s, %(role)s, %(name)s, 0, tidewheel_now(), tidewheel_now())
ON CONFLICT (member_id) DO UPDATE SET heartbeat_count = members.heartbeat_count + 1, last_heartbeat_at = tidewheel_now()
RETURNING last_heartbeat_at

-- name: live_members
-- Returns the members of a role with a recent heartbeat; deletes those without one for an hour.
-- No index: a handful of rows. Lock: the deleted rows.
-- Why: a heartbeat from the future is one from before the clock was set back. A live member sends another.
WITH gone AS (
    DELETE FROM members WHERE last_heartbeat_at < tidewheel_now() - interval '1 hour'
)
SELECT member_id FROM members
 WHERE role = %(role)s
   AND last_heartbeat_at > tidewheel_now() - %(timeout)s::interval
   AND last_heartbeat_at < tidewheel_now() + %(timeout)s::interval
 ORDER BY member_id

-- name: read_now
-- Returns the time by the database's clock, which decides what is due.
-- No index, no lock.
SELECT tidewheel_now()

-- name: delete_member
-- Deletes a member that stops, so that the others need not wait for its timeout.
-- Index: members_pkey. Lock: its own row.
DELETE FROM members WHERE member_id = %(member_id)s
