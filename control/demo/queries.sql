-- name: count_ready
-- Counts executors, members (schedulers and relays) and the partitions that intake owns.
-- Reads whole tables of a few rows. No lock.
SELECT (SELECT count(*) FROM executors) AS executors,
       (SELECT count(*) FROM members) AS members,
       (SELECT count(*) FROM intake_offsets) AS partitions

-- name: count_runs
-- Counts all runs, open runs and unpublished outbox rows of the demo's own database.
-- Reads whole tables, once a second at the end. No lock.
SELECT (SELECT count(*) FROM runs) AS runs,
       (SELECT count(*) FROM job_runs) AS job_runs,
       (SELECT count(*) FROM outbox) AS outbox
