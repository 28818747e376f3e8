-- name: read_now
-- The clock that decides what is due, to measure lateness by.
-- No index, no lock.
SELECT tidewheel_now()

-- name: count_ready
-- Who is there already: executors, schedulers and relays, and the partitions that intake has taken.
-- Read whole: each holds a few rows. No lock.
SELECT (SELECT count(*) FROM executors) AS executors,
       (SELECT count(*) FROM members) AS members,
       (SELECT count(*) FROM intake_offsets) AS partitions

-- name: count_runs
-- All runs there are, those that have not ended, and what has not left for Kafka; the demo's database holds its own only.
-- Read whole, once a second at the end. No lock.
SELECT (SELECT count(*) FROM job_runs) AS runs,
       (SELECT count(*) FROM open_runs) AS open_runs,
       (SELECT count(*) FROM outbox) AS outbox
