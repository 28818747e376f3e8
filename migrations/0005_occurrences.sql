-- What every occurrence becomes, and what people do about coming ones: policies, pauses that end by themselves, turns that
-- are waited for, calendars, backfills.

-- How a version is fired beyond its schedule: catch_up, window, on_resume, jitter, calendars. Canonical JSON with every
-- default in sight, as `schedule` beside it: the two together are the memo key of a decision.
ALTER TABLE job_versions ADD COLUMN policy text NOT NULL DEFAULT '{}';
ALTER TABLE job_versions DROP COLUMN catch_up, DROP COLUMN on_resume;
ALTER TABLE job_versions ADD COLUMN retired_at timestamptz;
COMMENT ON COLUMN job_versions.retired_at IS 'when its job was deleted under it; a version in force at T has effective_at < T <= retired_at';

-- Why due_at is not the next instant: nobody has to guess from an infinity.
ALTER TABLE timers ADD COLUMN hold_reason text CHECK (hold_reason IN ('pause', 'quarantine', 'run'));
ALTER TABLE timers ADD COLUMN overridden boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN timers.hold_reason IS 'pause: due_at is paused_until or infinity; quarantine: it could not be fired; run: a fixed_delay job whose run is open';
COMMENT ON COLUMN timers.overridden IS 'overrides has rows that firing must look at';
COMMENT ON COLUMN timers.scheduled_at IS 'the first instant that nothing is recorded of yet; the cursor of a catch-up';
COMMENT ON COLUMN timers.catch_up_end IS 'up to here a catch-up was decided: what is due fires, and is not decided again';

ALTER TABLE overrides ADD COLUMN done_at timestamptz;
ALTER TABLE overrides ADD COLUMN reason text;
COMMENT ON COLUMN overrides.done_at IS 'when a moved occurrence became a run';
COMMENT ON COLUMN overrides.reason IS 'what the request gave';

-- Whether somebody waits for the turn, so that giving up one that nobody waits for stays one DELETE.
ALTER TABLE active_runs ADD COLUMN has_waiters boolean NOT NULL DEFAULT false;
CREATE INDEX active_runs_waiting ON active_runs (job_id) WHERE has_waiters;

-- The oldest buffered run of a job is found by walking its open runs from the front.
DROP INDEX open_runs_by_job;
CREATE INDEX open_runs_by_job ON open_runs (job_id, scheduled_at);

-- When the next run that makes up for something may leave, in microseconds since 1970. A sequence, because it is moved on
-- without a lock that lasts: on-time firing must not wait for whoever catches up.
CREATE SEQUENCE catch_up_pace MINVALUE 0 START 0;

ALTER TABLE run_inputs ADD COLUMN late_ms bigint;
COMMENT ON COLUMN run_inputs.late_ms IS 'how late the run was made, where its occurrence was missed and made up for';

-- Named sets of days of a tenant.
CREATE TABLE calendars (
    tenant     text NOT NULL REFERENCES tenants,
    name       text NOT NULL,
    version    integer NOT NULL,
    days       date[] NOT NULL,
    weekdays   smallint[] NOT NULL,
    source     text,
    updated_at timestamptz NOT NULL,
    since      timestamptz,
    PRIMARY KEY (tenant, name)
);
COMMENT ON COLUMN calendars.since IS 'when days that had come were last changed: what lies before it is shifted no more';
COMMENT ON COLUMN calendars.weekdays IS '0 is Sunday, as in cron';
COMMENT ON COLUMN calendars.source IS 'where the days came from, such as a file''s name';

CREATE TABLE job_calendars (
    tenant text NOT NULL,
    name   text NOT NULL,
    job_id uuid NOT NULL REFERENCES jobs,
    PRIMARY KEY (tenant, name, job_id),
    FOREIGN KEY (tenant, name) REFERENCES calendars
);
COMMENT ON TABLE job_calendars IS 'which jobs'' current versions name a calendar: their timers are set anew when it changes';
CREATE INDEX job_calendars_by_job ON job_calendars (job_id);

-- A past range made up for on request; the scheduler makes its runs some at a time. Its runs are found by their ids: all
-- have created_at in their first 48 bits, and no other backfill of the job has the same.
CREATE TABLE backfills (
    backfill_id    uuid PRIMARY KEY,
    tenant         text NOT NULL,
    job_id         uuid NOT NULL,
    shard          smallint NOT NULL,
    state          text NOT NULL CHECK (state IN ('running', 'paused', 'finished', 'cancelled')),
    first_at       timestamptz NOT NULL,
    last_at        timestamptz NOT NULL,
    what           text NOT NULL CHECK (what IN ('missing_only', 'all')),
    versions       text NOT NULL CHECK (versions IN ('as_of', 'current')),
    job_version    integer NOT NULL,
    overlap        text,
    newest_first   boolean NOT NULL,
    max_concurrent integer NOT NULL,
    occurrences    bigint NOT NULL,
    wanted         bigint NOT NULL,
    made           bigint NOT NULL DEFAULT 0,
    passed_over    bigint NOT NULL DEFAULT 0,
    cursor_at      timestamptz,
    request_id     text,
    traceparent    text,
    reason         text,
    created_at        timestamptz NOT NULL,
    finished_at    timestamptz
);
COMMENT ON COLUMN backfills.job_version IS 'the current one when it was accepted';
COMMENT ON COLUMN backfills.overlap IS 'null: the job''s, one after another where that does not allow all';
COMMENT ON COLUMN backfills.occurrences IS 'of the range, when it was accepted';
COMMENT ON COLUMN backfills.wanted IS 'how many of them were to be run then';
COMMENT ON COLUMN backfills.cursor_at IS 'the next instant to look at; null when none is left';
COMMENT ON COLUMN backfills.created_at IS 'in whole milliseconds';
CREATE INDEX backfills_open ON backfills (shard, backfill_id) WHERE state IN ('running', 'paused');
CREATE UNIQUE INDEX backfills_by_job ON backfills (job_id, created_at);
CREATE INDEX backfills_by_tenant ON backfills (tenant, created_at);

INSERT INTO settings (name, value) VALUES ('tzdata', 'null');
