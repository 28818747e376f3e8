-- The jobs that keep a number of their finished runs, by the spec of a version. A row is in force while its version is the job's
-- current one: an edit by a service of 0.1.0 ends it. Retention removes it when its version is over and its runs are old.
CREATE TABLE history_limits (
    job_id     uuid PRIMARY KEY,
    tenant     text NOT NULL,
    version    integer NOT NULL,
    keep       integer NOT NULL,
    kept_since date,
    walked     date
);
COMMENT ON COLUMN history_limits.version IS 'the version of the job whose spec has the limit';
COMMENT ON COLUMN history_limits.kept_since IS 'no run of an instant from this day on is removed yet; it moves before runs go';
COMMENT ON COLUMN history_limits.walked IS 'the last closed day by which the runs of the job were looked at';
