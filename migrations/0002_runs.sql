-- What occurrences and triggers become. Partitions are made by tidewheel/postgres/partitions.py, a day at a time, cut by run_id
-- alone (its first 48 bits are milliseconds); there is no default partition.

-- Identity, origin and outcome. Written at firing, once more at the end. The primary key is the uniqueness of occurrences.
CREATE TABLE job_runs (
    run_id        uuid NOT NULL PRIMARY KEY,
    job_id        uuid NOT NULL,
    tenant        text NOT NULL,
    job_version   integer NOT NULL,
    shard         smallint NOT NULL,
    cause         text NOT NULL CHECK (cause IN ('timer', 'trigger', 'backfill', 'workflow', 'retry')),
    queue         text NOT NULL,
    lane          text NOT NULL CHECK (lane IN ('critical', 'standard', 'batch')),
    scheduled_at  timestamptz NOT NULL,
    created_at       timestamptz NOT NULL,
    parent_run_id uuid,
    root_run_id   uuid,
    state         text NOT NULL DEFAULT 'queued' CHECK (state IN (
        'queued', 'buffered', 'running', 'waiting', 'retrying', 'cancelling', 'blocked',
        'succeeded', 'failed', 'timed_out', 'cancelled', 'skipped')),
    attempt       integer NOT NULL DEFAULT 0,
    started_at    timestamptz,
    finished_at   timestamptz,
    reason        text,
    error_type    text
) PARTITION BY RANGE (run_id);
COMMENT ON COLUMN job_runs.state IS 'the terminal state; until then open_runs has the true one';
CREATE INDEX job_runs_by_job ON job_runs (job_id, scheduled_at);

-- What a run carries beyond its version; no row where there is nothing.
CREATE TABLE run_inputs (
    run_id               uuid NOT NULL PRIMARY KEY,
    tenant               text NOT NULL,
    payload              bytea,
    payload_content_type text,
    labels               jsonb,
    overlap              text,
    traceparent          text,
    request_id           text,
    checkpoint           bytea,
    checkpoint_attempt   integer
) PARTITION BY RANGE (run_id);

-- One row from create_runs until the run is terminal: what sweep, cancel, deadlines and listings read.
CREATE TABLE open_runs (
    run_id       uuid PRIMARY KEY,
    job_id       uuid NOT NULL,
    tenant       text NOT NULL,
    shard        smallint NOT NULL,
    queue        text NOT NULL,
    lane         text NOT NULL CHECK (lane IN ('critical', 'standard', 'batch')),
    handler      text,
    cause        text NOT NULL CHECK (cause IN ('timer', 'trigger', 'backfill', 'workflow', 'retry')),
    overlap      text NOT NULL CHECK (overlap IN (
        'skip', 'buffer_one', 'buffer_all', 'cancel_other', 'terminate_other', 'allow_all')),
    state        text NOT NULL CHECK (state IN (
        'queued', 'buffered', 'running', 'waiting', 'retrying', 'cancelling', 'blocked')),
    job_version  integer NOT NULL,
    attempt      integer NOT NULL DEFAULT 0,
    failed_attempts      integer NOT NULL DEFAULT 0,
    lost_attempts         integer NOT NULL DEFAULT 0,
    scheduled_at timestamptz NOT NULL,
    publish_at   timestamptz NOT NULL,
    deadline_at  timestamptz,
    created_at      timestamptz NOT NULL,
    started_at   timestamptz,
    executor_id  uuid,
    token_hash   bytea,
    claimed_from      text
) WITH (
    -- Room in the page, so that a claim (which grows the row and touches no indexed column) stays HOT.
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
COMMENT ON COLUMN open_runs.handler IS 'null for targets that any executor can run';
COMMENT ON COLUMN open_runs.publish_at IS 'not claimable before; infinity while buffered, blocked or waiting';
COMMENT ON COLUMN open_runs.claimed_from IS 'topic/partition/offset@timestamp of the message of the last claim';
CREATE INDEX open_runs_due ON open_runs (queue, lane, publish_at);
CREATE INDEX open_runs_by_job ON open_runs (job_id);
CREATE INDEX open_runs_deadline ON open_runs (deadline_at) WHERE deadline_at IS NOT NULL;

-- Who holds a job's turn. Claim and end both lock this row before they look.
CREATE TABLE active_runs (
    job_id uuid PRIMARY KEY,
    tenant text NOT NULL,
    run_id uuid NOT NULL
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE attempts (
    run_id        uuid NOT NULL,
    attempt       integer NOT NULL,
    tenant        text NOT NULL,
    executor_id   uuid,
    started_at    timestamptz,
    finished_at   timestamptz NOT NULL,
    outcome       text NOT NULL CHECK (outcome IN (
        'succeeded', 'failed', 'timed_out', 'cancelled', 'lost', 'released', 'snoozed')),
    error_type    text,
    error_message text,
    claimed_from       text,
    PRIMARY KEY (run_id, attempt)
) PARTITION BY RANGE (run_id);

-- Results, traces and output: kept shorter than the attempts they belong to; no row where there is nothing.
CREATE TABLE attempt_outputs (
    run_id  uuid NOT NULL,
    attempt integer NOT NULL,
    tenant  text NOT NULL,
    result  bytea,
    trace   text,
    output  bytea,
    PRIMARY KEY (run_id, attempt)
) PARTITION BY RANGE (run_id);

CREATE TABLE joins (
    child_run_id uuid PRIMARY KEY,
    tenant       text NOT NULL,
    child_job_id uuid NOT NULL,
    root_run_id  uuid NOT NULL,
    generation   integer NOT NULL,
    parents      jsonb NOT NULL,
    marks        jsonb NOT NULL DEFAULT '{}',
    created_at      timestamptz NOT NULL
);
COMMENT ON TABLE joins IS 'which parents of a workflow run have ended, and how';

CREATE TABLE signals (
    run_id      uuid NOT NULL,
    attempt     integer NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('cancel', 'terminate')),
    tenant      text NOT NULL,
    executor_id uuid NOT NULL,
    created_at     timestamptz NOT NULL,
    PRIMARY KEY (run_id, attempt, kind)
);
CREATE INDEX signals_by_executor ON signals (executor_id);

CREATE TABLE cancellations (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant      text NOT NULL,
    job_id      uuid,
    queue       text,
    lane        text,
    handler     text,
    cause       text,
    created_before timestamptz NOT NULL,
    created_by     text,
    finished_at timestamptz
);
COMMENT ON TABLE cancellations IS 'filters that every claim consults until their rows and events are written';

CREATE TABLE failed_runs (
    run_id        uuid PRIMARY KEY,
    job_id        uuid NOT NULL,
    tenant        text NOT NULL,
    job_version   integer NOT NULL,
    cause         text NOT NULL,
    queue         text NOT NULL,
    lane          text NOT NULL,
    scheduled_at  timestamptz NOT NULL,
    started_at    timestamptz,
    finished_at   timestamptz NOT NULL,
    state         text NOT NULL CHECK (state IN ('failed', 'timed_out')),
    attempt       integer NOT NULL,
    error_type    text,
    error_message text
);
CREATE INDEX failed_runs_by_tenant ON failed_runs (tenant, finished_at);

CREATE TABLE dead_letters (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant     text,
    kind       text NOT NULL CHECK (kind IN ('run', 'message')),
    run_id     uuid UNIQUE,
    job_id     uuid,
    topic      text,
    partition  integer,
    "offset"   bigint,
    key        bytea,
    value      bytea,
    reason     text NOT NULL,
    created_at    timestamptz NOT NULL,
    redriven_run_id uuid,
    UNIQUE (topic, partition, "offset")
);
CREATE INDEX dead_letters_by_tenant ON dead_letters (tenant, created_at);
