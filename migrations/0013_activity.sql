-- Figures of ended runs for plots: each process adds rows each 5 seconds, and a scheduler merges older rows into fewer ones. They are
-- counted after COMMIT, so a process that dies loses those of its last seconds: no decision rests on them.
CREATE TABLE activity (
    id      bigint GENERATED ALWAYS AS IDENTITY,
    tenant  text NOT NULL,
    at      timestamptz NOT NULL,
    grain   smallint NOT NULL,
    queue   text NOT NULL,
    lane    text NOT NULL,
    state   text NOT NULL,
    runs    bigint NOT NULL,
    stages  bigint[] NOT NULL,
    took    double precision[] NOT NULL,
    slowest uuid[] NOT NULL,
    PRIMARY KEY (tenant, at, id)
);
COMMENT ON COLUMN activity.at IS 'the begin of the time in which the runs ended';
COMMENT ON COLUMN activity.grain IS 'the length of that time: 0 for 5 seconds, 1 for a minute, 2 for an hour';
COMMENT ON COLUMN activity.stages IS
    'lateness: the number of the stage times 2^48, plus the bucket of job_days times 2^32, plus the count (tidewheel/activity.py)';
COMMENT ON COLUMN activity.took IS 'the seconds of the last attempts of the three slowest runs, the longest first';
COMMENT ON COLUMN activity.slowest IS 'these runs, in the same order';
CREATE INDEX activity_by_grain ON activity (grain, at);
