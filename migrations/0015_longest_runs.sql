-- The longest run of a job and day, so that it is found after its figures of 5 seconds are merged. A scheduler of 0.1.0 leaves both empty.
ALTER TABLE job_days ADD COLUMN longest float8;
ALTER TABLE job_days ADD COLUMN longest_run_id uuid;
COMMENT ON COLUMN job_days.longest IS 'the seconds of the longest last attempt, from its start to the end of its run';
COMMENT ON COLUMN job_days.longest_run_id IS 'its run, whose row may be removed earlier';
