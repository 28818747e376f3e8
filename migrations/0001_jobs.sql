-- Jobs: the clock, installation settings, tenants, jobs with their versions, calendars, timers, and skipped
-- occurrences.

-- The clock that decides what is due. STABLE: an index serves a comparison with it, and all rows of a statement see one
-- time. Databases made for tests add an offset to it; no other code replaces it.
CREATE FUNCTION tidewheel_now() RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN clock_timestamp();

-- `task_token_key` signs and checks task tokens. A token is a signature, so no row is written before it is sent out. A
-- client that can read this table can end any run by SQL too.
CREATE TABLE settings (
    name  text PRIMARY KEY,
    value jsonb NOT NULL
);
COMMENT ON TABLE settings IS 'facts of this installation; the value of shards never changes';
INSERT INTO settings (name, value)
VALUES ('shards', '64'),
       ('tzdata', 'null'),
       ('task_token_key', to_jsonb(encode(sha256((gen_random_uuid()::text || gen_random_uuid()::text)::bytea), 'hex')));

CREATE TABLE tenants (
    tenant              text PRIMARY KEY,
    weight              smallint NOT NULL DEFAULT 1 CHECK (weight BETWEEN 1 AND 100),
    created_at          timestamptz NOT NULL DEFAULT tidewheel_now(),
    triggers_per_second double precision CHECK (triggers_per_second > 0),
    in_flight           integer CHECK (in_flight > 0),
    max_jobs            integer CHECK (max_jobs > 0),
    max_payload_bytes   integer CHECK (max_payload_bytes > 0),
    in_flight_since     timestamptz
);
COMMENT ON TABLE tenants IS 'a limit that is null is no bound; a pause is a row of freezes';
COMMENT ON COLUMN tenants.in_flight_since IS 'the time at which in_flight became a bound, until the runs that had started are counted';
CREATE INDEX tenants_in_flight ON tenants (tenant) WHERE in_flight IS NOT NULL;
CREATE INDEX tenants_to_count ON tenants (tenant) WHERE in_flight_since IS NOT NULL;
INSERT INTO tenants (tenant) VALUES ('default');

-- Deletions of tenants. From its acceptance on a tenant has its row here and none in tenants: so requests do not find it,
-- and no statement of requests reads more than before. The row reserves the name until free_at
-- (docs/adr/0074-deletion-of-tenants.md).
CREATE TABLE tenant_deletions (
    tenant      text PRIMARY KEY,
    created_at  timestamptz NOT NULL,
    accepted_at timestamptz NOT NULL DEFAULT tidewheel_now(),
    state       text NOT NULL DEFAULT 'stopping' CHECK (state IN ('stopping', 'removing', 'removed')),
    waits_for   text[],
    jobs        bigint NOT NULL DEFAULT 0,
    runs        bigint NOT NULL DEFAULT 0,
    removed     jsonb NOT NULL DEFAULT '{}',
    round       integer NOT NULL DEFAULT 1,
    round_rows  bigint NOT NULL DEFAULT 0,
    at_table    text,
    at_page     bigint NOT NULL DEFAULT 0,
    at_key      text[],
    finished_at timestamptz,
    free_at     timestamptz,
    left_archive boolean NOT NULL DEFAULT false
);
COMMENT ON COLUMN tenant_deletions.left_archive IS 'true once `tidewheel archive run` has removed its rows from the archive';
COMMENT ON COLUMN tenant_deletions.created_at IS 'of the tenant';
COMMENT ON COLUMN tenant_deletions.state IS 'stopping: jobs and runs end; removing: rows are removed';
COMMENT ON COLUMN tenant_deletions.waits_for IS 'the transactions that were open after the acceptance, and may have found the tenant: no row is removed before they end';
COMMENT ON COLUMN tenant_deletions.jobs IS 'the number of jobs that it has deleted';
COMMENT ON COLUMN tenant_deletions.runs IS 'the number of runs that it has ended or requested to stop';
COMMENT ON COLUMN tenant_deletions.removed IS 'the number of removed rows by table';
COMMENT ON COLUMN tenant_deletions.round IS 'the pass over all tables; the last one finds no row';
COMMENT ON COLUMN tenant_deletions.at_table IS 'with at_page or at_key: the position of the pass; null at its begin';
COMMENT ON COLUMN tenant_deletions.at_key IS 'the last values of the index by which rows are removed; null at the begin of a table';
COMMENT ON COLUMN tenant_deletions.free_at IS 'the time from which a tenant may be created with this name';
CREATE INDEX tenant_deletions_open ON tenant_deletions (tenant) WHERE finished_at IS NULL;

-- One small row per job; job_versions holds the large and immutable part. No foreign key to tenants: intake checks the
-- tenant of each request. With that key and the one of job_versions, two look-ups with row locks for each new job were
-- half of PostgreSQL's work for it (docs/performance.md).
CREATE TABLE jobs (
    job_id               uuid PRIMARY KEY,
    tenant               text NOT NULL,
    key                  text NOT NULL,
    bucket               smallint NOT NULL CHECK (bucket BETWEEN 0 AND 4095),
    shard                smallint NOT NULL,
    version              integer NOT NULL,
    spec_hash            bytea,
    schedule_kind        text,
    interval_anchor      timestamptz,
    interval_us          bigint,
    labels               jsonb,
    paused               boolean NOT NULL DEFAULT false,
    paused_by            text,
    pause_reason         text,
    paused_at            timestamptz,
    paused_until         timestamptz,
    consecutive_failures integer NOT NULL DEFAULT 0,
    created_at           timestamptz NOT NULL,
    updated_at           timestamptz NOT NULL,
    finished_at          timestamptz,
    deleted_at           timestamptz,
    root_job_id          uuid
) WITH (fillfactor = 85);
COMMENT ON COLUMN jobs.version IS '0 only inside the transaction that creates the job';
COMMENT ON COLUMN jobs.interval_anchor IS 'the time at which an interval was first accepted; kept across edits that keep interval_us';
COMMENT ON COLUMN jobs.deleted_at IS 'set on a deleted job; creating it again continues its versions';
COMMENT ON COLUMN jobs.root_job_id IS 'the root of its graph, for the root its own id; null for a job without parents and children';
CREATE INDEX jobs_by_root ON jobs (root_job_id) WHERE root_job_id IS NOT NULL;
CREATE INDEX jobs_roots ON jobs (job_id) WHERE root_job_id = job_id;
CREATE INDEX jobs_by_key ON jobs (tenant, key COLLATE "C"); -- in the order of bytes, so that a prefix is a range
CREATE INDEX jobs_fixed_delay ON jobs (job_id) WHERE schedule_kind = 'fixed_delay' AND deleted_at IS NULL;

-- No foreign key to jobs, as above: a version is written in the transaction that writes its job, and nowhere else. Code
-- that removes a job's row must remove its versions too.
CREATE TABLE job_versions (
    job_id        uuid NOT NULL,
    version       integer NOT NULL CHECK (version > 0),
    tenant        text NOT NULL,
    effective_at  timestamptz NOT NULL,
    spec          jsonb NOT NULL,
    schedule_json text NOT NULL,
    handler       text NOT NULL,
    queue         text NOT NULL,
    lane          text NOT NULL,
    overlap       text NOT NULL,
    definition    bytea NOT NULL,
    policy_json   text NOT NULL DEFAULT '{}',
    retired_at    timestamptz,
    has_deadlines boolean NOT NULL DEFAULT false,
    concurrency_key text,
    at_once       integer,
    every_us      bigint,
    burst         integer NOT NULL DEFAULT 1,
    key_template  text,
    workflow_timeout_us bigint,
    holds_place   boolean NOT NULL DEFAULT false,
    priority      smallint NOT NULL DEFAULT 5,
    ordering_key  text,
    passes        boolean NOT NULL DEFAULT false,
    dedupe        text,
    PRIMARY KEY (job_id, version)
);
COMMENT ON COLUMN job_versions.spec IS 'as submitted, before defaults, without the payload, which is part of definition';
COMMENT ON COLUMN job_versions.schedule_json IS 'canonical JSON with explicit defaults; with policy_json the cache key of a decision';
COMMENT ON COLUMN job_versions.policy_json IS 'canonical JSON with explicit defaults: catch_up, window, on_resume, jitter, calendars';
COMMENT ON COLUMN job_versions.definition IS 'Avro JobDefinition in single-object encoding; copied into every run request';
COMMENT ON COLUMN job_versions.retired_at IS 'the deletion of its job; a version in force at T has effective_at < T <= retired_at';
COMMENT ON COLUMN job_versions.concurrency_key IS 'the key of its runs; at_once, every_us and burst are its limit, as in run_keys';
COMMENT ON COLUMN job_versions.key_template IS 'the key as submitted, if it has fields of the payload; concurrency_key or ordering_key is that of runs with the job''s own payload, or the same text if that lacks a field';
COMMENT ON COLUMN job_versions.holds_place IS 'of a root: its overlap policy sees whole occurrences of its workflow';
COMMENT ON COLUMN job_versions.ordering_key IS 'the key in whose order its runs start; never beside concurrency_key';
COMMENT ON COLUMN job_versions.passes IS 'with ordering_key: a failed run lets the next one start';
COMMENT ON COLUMN job_versions.dedupe IS 'canonical JSON: what its triggers leave out of their dedupe';
COMMENT ON COLUMN job_versions.priority IS 'of its runs, 0 to 9; 9 goes first';
COMMENT ON COLUMN job_versions.has_deadlines IS 'true if schedule_to_start or schedule_to_close is set: firing decodes no other definitions';

-- The edges of graphs, as periods: an edit of a job closes the periods in which it has other parents. The graph of an
-- occurrence is the edges in force at its instant T (workflows.graph_at): from_at < T, and until_at is null or T <= until_at. They
-- change only under the advisory lock of the tenant's graphs (docs/adr/0054-workflows.md).
CREATE TABLE job_edges (
    parent_job_id uuid NOT NULL,
    child_job_id  uuid NOT NULL,
    from_at       timestamptz NOT NULL,
    until_at      timestamptz,
    tenant        text NOT NULL,
    condition     text NOT NULL CHECK (condition IN ('success', 'failure', 'always')),
    parents       integer NOT NULL,
    PRIMARY KEY (parent_job_id, child_job_id, from_at)
);
COMMENT ON COLUMN job_edges.until_at IS 'null while the edge is in force';
COMMENT ON COLUMN job_edges.parents IS 'the number of parents of the child in this period';
CREATE INDEX job_edges_by_child ON job_edges (child_job_id, from_at);

-- The timer row is the job's lock: firing, edit, pause, resume and delete lock it first.
CREATE TABLE timers (
    job_id       uuid PRIMARY KEY,
    tenant       text NOT NULL,
    shard        smallint NOT NULL,
    due_at       timestamptz NOT NULL,
    scheduled_at timestamptz NOT NULL,
    version      integer NOT NULL,
    catch_up_end timestamptz,
    hold_reason  text CHECK (hold_reason IN ('pause', 'quarantine', 'run', 'freeze')),
    overridden   boolean NOT NULL DEFAULT false,
    repeats_until timestamptz
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN timers.due_at IS 'the time at which the scheduler must decide; infinity while paused without an end';
COMMENT ON COLUMN timers.scheduled_at IS 'the first occurrence without a record; the position of a catch-up';
COMMENT ON COLUMN timers.catch_up_end IS 'the end of a catch-up that was decided: occurrences up to it fire without a new decision';
COMMENT ON COLUMN timers.hold_reason IS 'pause: due_at is paused_until, or infinity, or later after a failure; quarantine: firing failed; run: a fixed_delay job with an open run; freeze: it came due under a freeze';
COMMENT ON COLUMN timers.repeats_until IS 'firing looks for runs of occurrences before this time: they may exist, because the timer was set back';
COMMENT ON COLUMN timers.overridden IS 'true if firing must read overrides';
CREATE INDEX timers_due ON timers (shard, due_at);
CREATE INDEX timers_frozen ON timers (job_id) WHERE hold_reason = 'freeze';

-- The time from which the next caught-up run may be published, in microseconds since 1970. A sequence, because moving
-- it takes no lock until commit: punctual firing does not wait for a catch-up.
CREATE SEQUENCE catch_up_pace MINVALUE 0 START 0;

CREATE TABLE overrides (
    job_id       uuid NOT NULL,
    scheduled_at timestamptz NOT NULL,
    tenant       text NOT NULL,
    kind         text NOT NULL CHECK (kind IN ('skip', 'move')),
    moved_to     timestamptz,
    created_at   timestamptz NOT NULL,
    created_by   text,
    done_at      timestamptz,
    reason       text,
    PRIMARY KEY (job_id, scheduled_at)
);
COMMENT ON TABLE overrides IS 'one upcoming occurrence skipped or moved; scheduled_at stays its identity';
COMMENT ON COLUMN overrides.done_at IS 'the time at which a moved occurrence became a run';
COMMENT ON COLUMN overrides.reason IS 'the reason in the request';

-- The record of occurrences that did not fire; a long span is one row.
CREATE TABLE skips (
    skip_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id      uuid NOT NULL,
    tenant      text NOT NULL,
    job_version integer NOT NULL,
    reason      text NOT NULL CHECK (reason IN ('overlap', 'misfire', 'paused', 'excluded', 'manual', 'catch_up_limit', 'frozen')),
    first_at    timestamptz NOT NULL,
    last_at     timestamptz NOT NULL,
    occurrences bigint NOT NULL,
    is_exact    boolean NOT NULL DEFAULT true,
    created_at  timestamptz NOT NULL
);
COMMENT ON COLUMN skips.is_exact IS 'false if the span holds more occurrences than were counted';
CREATE INDEX skips_by_job ON skips (job_id, first_at);

-- Named sets of days of a tenant. No foreign key to tenants: a tenant that is being deleted has no row there.
CREATE TABLE calendars (
    tenant     text NOT NULL,
    name       text NOT NULL,
    version    integer NOT NULL,
    days       date[] NOT NULL,
    weekdays   smallint[] NOT NULL,
    source     text,
    updated_at timestamptz NOT NULL,
    since      timestamptz,
    past       jsonb NOT NULL DEFAULT '[]',
    PRIMARY KEY (tenant, name)
);
COMMENT ON COLUMN calendars.weekdays IS '0 is Sunday, as in cron';
COMMENT ON COLUMN calendars.source IS 'the origin of the days, such as the name of a file';
COMMENT ON COLUMN calendars.past IS 'the last hundred sets of days before, each with the time until which it held: an audit reads them, and takes a full list for one that is cut';
COMMENT ON COLUMN calendars.since IS 'the last change of past days: occurrences before it are not shifted again';

CREATE TABLE job_calendars (
    tenant text NOT NULL,
    name   text NOT NULL,
    job_id uuid NOT NULL REFERENCES jobs,
    PRIMARY KEY (tenant, name, job_id),
    FOREIGN KEY (tenant, name) REFERENCES calendars
);
COMMENT ON TABLE job_calendars IS 'the jobs whose current version names a calendar: a change of it sets their timers again';
CREATE INDEX job_calendars_by_job ON job_calendars (job_id);

-- Jobs and outbox rows that the services cannot process, kept for an operator.
CREATE TABLE quarantine (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind       text NOT NULL CHECK (kind IN ('job', 'outbox')),
    tenant     text,
    job_id     uuid,
    topic      text,
    key        bytea,
    value      bytea,
    headers    bytea[],
    error      text NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE INDEX quarantine_by_job ON quarantine (job_id) WHERE job_id IS NOT NULL;

-- The jobs that a tenant with a quota may still add without another count of its jobs. A deletion does not raise it.
CREATE TABLE job_rooms (
    tenant text PRIMARY KEY,
    quota  integer NOT NULL,
    room   integer NOT NULL
);
COMMENT ON COLUMN job_rooms.quota IS 'the quota of the count: another one needs another count';
