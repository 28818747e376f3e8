-- The interval that a run has set by next_in, where the run ended in a client's own transaction, and the version of the run. A service
-- of an earlier build leaves them out: the job runs next after its regular delay.
ALTER TABLE deferred_effects ADD COLUMN job_version integer, ADD COLUMN next_in interval;
COMMENT ON COLUMN deferred_effects.next_in IS 'the time to the job''s next run, if the attempt has set it; job_version is that of the run';
