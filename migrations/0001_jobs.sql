-- Who exists and what they asked for: installation settings, tenants, jobs with their versions, and the timers.

-- The clock that decides what is due. STABLE, so that an index serves a comparison with it and every row of a statement
-- sees one instant; databases made for tests put an offset behind it, nothing else ever replaces it.
CREATE FUNCTION tidewheel_now() RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN clock_timestamp();

CREATE TABLE settings (
    name  text PRIMARY KEY,
    value jsonb NOT NULL
);
COMMENT ON TABLE settings IS 'Facts of this installation; shards never changes';
INSERT INTO settings (name, value) VALUES ('shards', '64');

CREATE TABLE tenants (
    tenant     text PRIMARY KEY,
    paused     boolean NOT NULL DEFAULT false,
    limits     jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT tidewheel_now()
);
INSERT INTO tenants (tenant) VALUES ('default');

-- One narrow-ish row per job; the wide and immutable part lies in job_versions.
CREATE TABLE jobs (
    job_id        uuid PRIMARY KEY,
    tenant        text NOT NULL REFERENCES tenants,
    key           text NOT NULL,
    bucket        smallint NOT NULL CHECK (bucket BETWEEN 0 AND 4095),
    shard         smallint NOT NULL,
    version       integer NOT NULL,
    spec_hash     bytea,
    schedule_kind text,
    interval_anchor timestamptz,
    interval_us      bigint,
    labels        jsonb,
    paused        boolean NOT NULL DEFAULT false,
    paused_by     text,
    pause_reason  text,
    paused_at     timestamptz,
    paused_until  timestamptz,
    consecutive_failures integer NOT NULL DEFAULT 0,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    finished_at   timestamptz,
    deleted_at    timestamptz
) WITH (fillfactor = 85);
COMMENT ON COLUMN jobs.version IS '0 only inside the transaction that creates the job';
COMMENT ON COLUMN jobs.interval_anchor IS 'when an interval was first accepted; kept across edits that leave interval_us alone';
COMMENT ON COLUMN jobs.deleted_at IS 'a tombstone: re-creation continues the versions';
CREATE INDEX jobs_by_key ON jobs (tenant, key);
CREATE INDEX jobs_fixed_delay ON jobs (job_id) WHERE schedule_kind = 'fixed_delay' AND deleted_at IS NULL;

CREATE TABLE job_versions (
    job_id       uuid NOT NULL REFERENCES jobs,
    version      integer NOT NULL CHECK (version > 0),
    tenant       text NOT NULL,
    effective_at timestamptz NOT NULL,
    spec         jsonb NOT NULL,
    schedule     text NOT NULL,
    catch_up     text NOT NULL,
    on_resume    text NOT NULL,
    handler      text,
    queue        text NOT NULL,
    lane         text NOT NULL,
    overlap      text NOT NULL,
    definition   bytea NOT NULL,
    PRIMARY KEY (job_id, version)
);
COMMENT ON COLUMN job_versions.spec IS 'as submitted, before defaults, without the payload (which lies in definition)';
COMMENT ON COLUMN job_versions.schedule IS 'canonical JSON with defaults explicit: the memo key of recurrence';
COMMENT ON COLUMN job_versions.definition IS 'Avro JobDefinition, single-object: copied into every run request';

-- The timer row is the job's lock: firing, edit, pause, resume and delete all meet on it.
CREATE TABLE timers (
    job_id       uuid PRIMARY KEY,
    tenant       text NOT NULL,
    shard        smallint NOT NULL,
    due_at       timestamptz NOT NULL,
    scheduled_at timestamptz NOT NULL,
    version      integer NOT NULL,
    catch_up_end timestamptz
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN timers.due_at IS 'when firing must look at it; infinity while paused';
COMMENT ON COLUMN timers.scheduled_at IS 'the next unfired instant; the cursor of a catch-up';
CREATE INDEX timers_due ON timers (shard, due_at);

CREATE TABLE overrides (
    job_id       uuid NOT NULL,
    scheduled_at timestamptz NOT NULL,
    tenant       text NOT NULL,
    kind         text NOT NULL CHECK (kind IN ('skip', 'move')),
    moved_to     timestamptz,
    created_at      timestamptz NOT NULL,
    created_by      text,
    PRIMARY KEY (job_id, scheduled_at)
);
COMMENT ON TABLE overrides IS 'one coming occurrence skipped or moved; identity stays the nominal instant';

-- The ledger of what did not fire, long spans as one row.
CREATE TABLE skips (
    skip_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id      uuid NOT NULL,
    tenant      text NOT NULL,
    job_version integer NOT NULL,
    reason      text NOT NULL CHECK (reason IN ('overlap', 'misfire', 'paused', 'excluded', 'bound', 'manual', 'catch_up_limit')),
    first_at    timestamptz NOT NULL,
    last_at     timestamptz NOT NULL,
    occurrences bigint NOT NULL,
    is_exact    boolean NOT NULL DEFAULT true,
    created_at     timestamptz NOT NULL
);
COMMENT ON COLUMN skips.is_exact IS 'false where the span holds more occurrences than were worth counting';
CREATE INDEX skips_by_job ON skips (job_id, first_at);

-- What could not be worked with, kept for a person to look at.
CREATE TABLE quarantine (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind     text NOT NULL CHECK (kind IN ('job', 'outbox')),
    tenant   text,
    job_id   uuid,
    topic    text,
    key      bytea,
    value    bytea,
    headers  bytea[],
    error    text NOT NULL,
    created_at  timestamptz NOT NULL
);
CREATE INDEX quarantine_by_job ON quarantine (job_id) WHERE job_id IS NOT NULL;

CREATE TABLE audit_log (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_at     timestamptz NOT NULL,
    tenant      text NOT NULL,
    actor       text,
    action      text NOT NULL,
    subject     text NOT NULL,
    before_hash bytea,
    after_hash  bytea
);
CREATE INDEX audit_log_by_tenant ON audit_log (tenant, created_at);
